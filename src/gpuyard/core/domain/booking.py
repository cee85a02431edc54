"""A booking: GPUs of certain nodes that are held for a tenant from one instant to another, or a node under maintenance."""

from gpuyard.core.domain.values import NodeId, TenantId, Value


class BookedGpus(Value, frozen=True):
    """The part of a booking on one node."""

    node: NodeId
    gpus: int
    """Number of GPUs; which of them is decided when tasks are placed."""
    gpu: int = 0
    """Index of one GPU of the kind that is booked, for nodes with several kinds. Ignored under maintenance."""


class Booking(Value, frozen=True):
    """GPUs that are held for the tasks that name the booking, or nodes that are empty for maintenance."""

    id: int
    tenant: TenantId
    begins_at: float
    ends_at: float
    parts: tuple[BookedGpus, ...]
    user: str = ""
    models: tuple[str, ...] = ()
    """The GPU models that were asked for; empty: any."""
    nodes: tuple[NodeId, ...] = ()
    """The nodes that were asked for; empty: any."""
    maintenance: bool = False
    """Whole nodes: no task runs there between begin and end, and the nodes are drained at the begin."""
    preempt: bool = False
    """Tasks that allow preemption are stopped at the begin if they are in the way; all others are waited for."""
    note: str = ""

    @property
    def gpus(self) -> int:
        """The number of GPUs on all nodes together."""
        return sum(part.gpus for part in self.parts)
