"""A placement: the nodes and GPUs of an attempt, and how much of each GPU it holds."""

from gpuyard.core.domain.values import MILLI, NodeId, Value


class Slice(Value, frozen=True):
    """The part of a placement on one node."""

    node: NodeId
    gpus: tuple[int, ...] = ()
    """GPU indexes on that node."""
    milli: int = MILLI
    """The part of each GPU, in thousandths; less than 1000 only for a share, which has exactly one GPU."""
    gpu_memory_mib: int = 0
    """Memory taken on a shared GPU; 0 for whole ones."""
    cpus: int = 0
    memory_mib: int = 0


class Placement(Value, frozen=True):
    """All slices of one attempt: one for most tasks, one per node for a gang."""

    slices: tuple[Slice, ...]

    @property
    def charge_milli(self) -> int:
        """The amount that counts in quotas, in thousandths of a GPU."""
        charge = 0
        for part in self.slices:
            charge += len(part.gpus) * part.milli
        return charge

    @property
    def nodes(self) -> tuple[NodeId, ...]:
        """The nodes of the placement, in the order of the slices."""
        return tuple(part.node for part in self.slices)
