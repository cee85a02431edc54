"""A shape: what a task asks for, ready for the index. Tasks that ask for the same have the same shape.

Everything of one shape fits or does not fit together, which is why the queue keeps tasks by shape: when one is
refused for want of room, none of its like has to be tried.
"""

from collections.abc import Iterable

from gpuyard.core.domain.refusals import GangLargerThanYard, Never, NoNodesYet
from gpuyard.core.domain.task import Resources
from gpuyard.core.domain.values import MILLI, NodeId
from gpuyard.core.placement.device_group_mask import DeviceGroupMask, members
from gpuyard.core.placement.index import DeviceGroup, Index
from gpuyard.core.placement.rules import RULES
from gpuyard.core.placement.speeds import relative


class Shape:
    """Resources with the device groups that could ever hold them."""

    __slots__ = (
        "_looked_at",
        "_startable",
        "cpus",
        "eligible",
        "gpus",
        "link",
        "memory_mib",
        "need_milli",
        "needs",
        "nodes",
        "pin",
        "plain",
        "resources",
        "share",
        "speeds",
        "tiers",
        "version",
        "whole_nodes",
    )  # fmt: skip

    def __init__(self, resources: Resources, pin: DeviceGroupMask = 0) -> None:
        self.resources = resources
        self.pin = pin
        """A suspended attempt can only go on where it is, on cards of the same kind; 0: anywhere."""
        self.gpus = resources.gpus
        self.nodes = resources.nodes
        self.share = resources.share
        self.cpus = resources.cpus
        self.memory_mib = resources.memory_mib
        self.link = resources.link
        self.whole_nodes = resources.whole_nodes
        self.plain = self.gpus > 0 and self.nodes == 1 and not (self.whole_nodes or self.cpus or self.memory_mib)
        """Whole GPUs on one node and nothing else: the common case, which has a short way through `choose`."""
        self.eligible: DeviceGroupMask = 0
        self.speeds = relative(resources.speeds) if resources.speeds else None
        """On each model it names, where 1 is the fastest of them."""
        self.tiers: tuple[tuple[float, DeviceGroupMask], ...] = ()
        """If it has speeds: the eligible device groups by how fast it is there, fastest first."""
        self.need_milli = self.gpus * self.nodes * MILLI
        """The least it can count for in quotas."""
        self.needs: dict[int, DeviceGroupMask] | None = None
        """Where that depends on the device group (whole nodes, shares): the device groups by what one part counts for there."""
        self.version = -1
        """The index's version at the last look."""
        self._looked_at = -1
        self._startable = False

    def refresh(self, index: Index) -> None:
        """Look the eligible device groups up again if nodes changed since."""
        if self.version == index.version:
            return
        self.version = index.version
        eligible = index.everywhere
        for rule in RULES:
            eligible &= rule.device_groups(self.resources, index)
        if self.pin:
            eligible &= self.pin
        if self.nodes > 1 and len(index.hosts_of(eligible)) < self.nodes:
            eligible = 0
        self.eligible = eligible
        if self.speeds is not None:
            self._look_up_tiers(index)
        if self.share is not None or self.whole_nodes:
            self._look_up_needs(index)

    def _look_up_tiers(self, index: Index) -> None:
        tiers: dict[float, DeviceGroupMask] = {}
        for model, device_groups in index.by_model.items():
            if here := device_groups & self.eligible:
                speed = self.speed_on(model)
                tiers[speed] = tiers.get(speed, 0) | here
        self.tiers = tuple(sorted(tiers.items(), reverse=True))

    def speed_on(self, model: str) -> float:
        """How fast it is on a model, where 1 is the fastest it names."""
        return 1.0 if self.speeds is None else self.speeds.get(model) or min(self.speeds.values())

    def _look_up_needs(self, index: Index) -> None:
        self.needs = {}
        for number in members(self.eligible):
            device_group = index.device_group(number)
            need = self.share_of(device_group)[0] if self.share is not None else device_group.usable.bit_count() * MILLI
            if self.share is not None or need >= self.gpus * MILLI:
                self.needs[need] = self.needs.get(need, 0) | device_group.bit
        least = MILLI if self.share is not None else self.gpus * MILLI
        self.need_milli = min(self.needs, default=least) * self.nodes

    def above_quota(self, left_milli: int) -> DeviceGroupMask:
        """The device groups where it would count for more than a quota has left."""
        if self.needs is None:
            return 0
        dear: DeviceGroupMask = 0
        for need, device_groups in self.needs.items():
            if need * self.nodes > left_milli:
                dear |= device_groups
        return dear

    def need_on(self, nodes: Iterable[NodeId], index: Index) -> int:
        """The least it counts for on these nodes."""
        if self.needs is None:
            return self.need_milli
        device_groups = [index.device_groups_of((node,)) for node in nodes]
        return sum(
            min((need for need, having in self.needs.items() if having & here), default=0) for here in device_groups
        )

    def can_start(self, index: Index) -> bool:
        """Whether it could start if nothing ran: enough open nodes with enough cards that may be used."""
        if self._looked_at != index.changes:
            self.refresh(index)
            self._looked_at = index.changes
            fitting = self.eligible & index.by_usable.at_least(1 if self.share is not None else self.gpus)
            self._startable = bool(fitting) and (self.nodes == 1 or len(index.hosts_of(fitting)) >= self.nodes)
        return self._startable

    def share_of(self, device_group: DeviceGroup) -> tuple[int, int]:
        """What this share takes of a card in a device group: thousandths and MiB, each the larger of what it asks and implies."""
        assert self.share is not None
        card = device_group.gpu_memory_mib
        memory_mib = self.share.memory_mib or -(-self.share.fraction_milli * card // MILLI)
        by_memory = -(-self.share.memory_mib * MILLI // card) if card else MILLI * bool(self.share.memory_mib)
        return max(self.share.fraction_milli, by_memory), memory_mib

    def never(self, index: Index) -> Never | None:
        """Why no node of the yard could ever hold it, or nothing."""
        if not index.everywhere:
            return NoNodesYet()
        among = index.everywhere
        for rule in RULES:
            left = among & rule.device_groups(self.resources, index)
            if not left:
                return rule.refusal(self.resources, index, among)
            among = left
        if self.pin:
            among &= self.pin
        hosts = len(index.hosts_of(among))
        return GangLargerThanYard(self.nodes, hosts) if hosts < self.nodes else None
