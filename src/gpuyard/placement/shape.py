"""A shape: what a task asks for, ready for the index. Tasks that ask for the same have the same shape.

Everything of one shape fits or does not fit together, which is why the queue keeps tasks by shape: when one is
refused for want of room, none of its like has to be tried.
"""

from gpuyard.domain.refusals import GangLargerThanYard, Never, NoNodesYet
from gpuyard.domain.task import Resources
from gpuyard.domain.values import MILLI, NodeId
from gpuyard.placement.bayset import BaySet
from gpuyard.placement.index import Bay, Index
from gpuyard.placement.rules import RULES


class Shape:
    """Resources with the bays that could ever hold them."""

    __slots__ = (
        "cpus",
        "eligible",
        "gpus",
        "link",
        "memory_mib",
        "need_milli",
        "nodes",
        "pin",
        "plain",
        "resources",
        "share",
        "version",
        "whole_nodes",
    )  # fmt: skip

    def __init__(self, resources: Resources, pin: tuple[NodeId, ...] = ()) -> None:
        self.resources = resources
        self.pin = pin
        """A suspended attempt can only go on where it is."""
        self.gpus = resources.gpus
        self.nodes = resources.nodes
        self.share = resources.share
        self.cpus = resources.cpus
        self.memory_mib = resources.memory_mib
        self.link = resources.link
        self.whole_nodes = resources.whole_nodes
        self.plain = self.gpus > 0 and self.nodes == 1 and not (self.whole_nodes or self.cpus or self.memory_mib)
        """Whole GPUs on one node and nothing else: the common case, which has a short way through `choose`."""
        self.eligible: BaySet = 0
        self.need_milli = self.gpus * self.nodes * MILLI
        """The most it can count for in quotas."""
        self.version = -1
        """The index's version at the last look."""

    def refresh(self, index: Index) -> None:
        """Look the eligible bays up again if nodes changed since."""
        if self.version == index.version:
            return
        self.version = index.version
        eligible = index.everywhere
        for rule in RULES:
            eligible &= rule.bays(self.resources, index)
        if self.pin:
            eligible &= index.bays_of(self.pin)
        if self.nodes > 1 and len(index.hosts_of(eligible)) < self.nodes:
            eligible = 0
        self.eligible = eligible
        if self.share is not None:
            self.need_milli = max(
                (self.share_of(bay)[0] for bay in index.all_bays() if bay.bit & eligible), default=MILLI
            )
        elif self.whole_nodes:
            self.need_milli = index.by_gpu_count.largest(eligible) * self.nodes * MILLI

    def share_of(self, bay: Bay) -> tuple[int, int]:
        """What this share takes of a card in a bay: thousandths and MiB, each the larger of what it asks and implies."""
        assert self.share is not None
        card = bay.gpu_memory_mib
        memory_mib = self.share.memory_mib or -(-self.share.fraction_milli * card // MILLI)
        by_memory = -(-self.share.memory_mib * MILLI // card) if card else MILLI
        return max(self.share.fraction_milli, by_memory), memory_mib

    def never(self, index: Index) -> Never | None:
        """Why no node of the yard could ever hold it, or nothing."""
        if not index.everywhere:
            return NoNodesYet()
        among = index.everywhere
        for rule in RULES:
            left = among & rule.bays(self.resources, index)
            if not left:
                return rule.refusal(self.resources, index, among)
            among = left
        if self.pin:
            among &= index.bays_of(self.pin)
        hosts = len(index.hosts_of(among))
        return GangLargerThanYard(self.nodes, hosts) if hosts < self.nodes else None
