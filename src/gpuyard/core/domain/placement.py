"""A placement: which node, which GPUs, and how much of them."""

from gpuyard.core.domain.values import MILLI, NodeId, Value


class Slice(Value, frozen=True):
    """The part of a placement that lies on one node."""

    node: NodeId
    gpus: tuple[int, ...] = ()
    """Indices on that node."""
    milli: int = MILLI
    """How much of each of these GPUs, in thousandths: less than 1000 only for a share, which names one GPU."""
    gpu_memory_mib: int = 0
    """Memory taken on a shared GPU; 0 for whole ones."""
    cpus: int = 0
    memory_mib: int = 0


class Placement(Value, frozen=True):
    """All slices of one attempt: one for most tasks, several for a gang."""

    slices: tuple[Slice, ...]

    @property
    def charge_milli(self) -> int:
        """What it counts for in quotas, in thousandths of a GPU."""
        charge = 0
        for part in self.slices:
            charge += len(part.gpus) * part.milli
        return charge

    @property
    def nodes(self) -> tuple[NodeId, ...]:
        """The nodes it lies on, in the order of the slices."""
        return tuple(part.node for part in self.slices)
