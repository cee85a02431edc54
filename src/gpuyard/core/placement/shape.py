"""A shape: the resources a task requests, prepared for the index. Tasks with the same request have the same shape.

If one task of a shape does not fit, no task of that shape fits. So the queue groups tasks by shape: after one is
refused for lack of room, the others need not be tried.
"""

from collections.abc import Iterable

from gpuyard.core.domain.refusals import GangLargerThanCluster, Never, NoNodesYet
from gpuyard.core.domain.task import Resources
from gpuyard.core.domain.values import MILLI, Link, NodeId
from gpuyard.core.placement.device_group_mask import DeviceGroupMask, members
from gpuyard.core.placement.index import DeviceGroup, Index
from gpuyard.core.placement.rules import RULES
from gpuyard.core.placement.speeds import relative


class Shape:
    """Requested resources, with the device groups that could ever hold them."""

    __slots__ = (
        "_looked_at",
        "_startable",
        "cpus",
        "eligible",
        "first_fit",
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
        """The device groups where a suspended attempt can resume: same node, same kind of GPUs. 0: no restriction."""
        self.gpus = resources.gpus
        self.nodes = resources.nodes
        self.share = resources.share
        self.cpus = resources.cpus
        self.memory_mib = resources.memory_mib
        self.link = resources.link
        self.whole_nodes = resources.whole_nodes
        self.plain = self.gpus > 0 and self.nodes == 1 and not (self.whole_nodes or self.cpus or self.memory_mib)
        """Whole GPUs on one node and nothing else."""
        self.first_fit = self.plain and self.link is Link.ANY
        """Plain, connected in any way: a device group with enough free GPUs needs no further check."""
        self.eligible: DeviceGroupMask = 0
        self.speeds = relative(resources.speeds) if resources.speeds else None
        """Relative speed by GPU model; the fastest named model is 1. None: no speeds were given."""
        self.tiers: tuple[tuple[float, DeviceGroupMask], ...] = ()
        """The eligible device groups by relative speed, fastest first; empty without speeds."""
        self.need_milli = self.gpus * self.nodes * MILLI
        """The smallest amount it can count for in quotas, over all its nodes, in thousandths of a GPU."""
        self.needs: dict[int, DeviceGroupMask] | None = None
        """For whole nodes and shares: device groups by what one part counts for there. None: the same everywhere."""
        self.version = -1
        """The version of the index when `eligible` was last computed."""
        self._looked_at = -1
        self._startable = False

    def refresh(self, index: Index) -> None:
        """Look up the eligible device groups again if nodes have changed since the last call."""
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
        """Return the relative speed on a GPU model: 1 on the fastest named one, the lowest speed on an unnamed one."""
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
        """Return the device groups where the task would count for more than a quota has left."""
        if self.needs is None:
            return 0
        dear: DeviceGroupMask = 0
        for need, device_groups in self.needs.items():
            if need * self.nodes > left_milli:
                dear |= device_groups
        return dear

    def need_on(self, nodes: Iterable[NodeId], index: Index) -> int:
        """Return the smallest amount the task counts for in quotas on these nodes, in thousandths of a GPU."""
        if self.needs is None:
            return self.need_milli
        device_groups = [index.device_groups_of((node,)) for node in nodes]
        return sum(
            min((need for need, having in self.needs.items() if having & here), default=0) for here in device_groups
        )

    def can_start(self, index: Index) -> bool:
        """Whether the task could start on an idle cluster: enough open nodes have enough usable GPUs."""
        if self._looked_at != index.changes:
            self.refresh(index)
            self._looked_at = index.changes
            fitting = self.eligible & index.by_usable.at_least(1 if self.share is not None else self.gpus)
            self._startable = bool(fitting) and (self.nodes == 1 or len(index.hosts_of(fitting)) >= self.nodes)
        return self._startable

    def share_of(self, device_group: DeviceGroup) -> tuple[int, int]:
        """Return the thousandths and MiB that this share takes of a GPU in a device group.

        The thousandths are the larger of the requested fraction and the requested memory's part of the GPU. Without a
        memory request, the MiB are the same fraction of the GPU's memory. Both are rounded up.
        """
        assert self.share is not None
        gpu_mib = device_group.gpu_memory_mib
        memory_mib = self.share.memory_mib or -(-self.share.fraction_milli * gpu_mib // MILLI)
        by_memory = -(-self.share.memory_mib * MILLI // gpu_mib) if gpu_mib else MILLI * bool(self.share.memory_mib)
        return max(self.share.fraction_milli, by_memory), memory_mib

    def never(self, index: Index) -> Never | None:
        """Return why no node of the cluster could ever hold the task, or None."""
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
        return GangLargerThanCluster(self.nodes, hosts) if hosts < self.nodes else None
