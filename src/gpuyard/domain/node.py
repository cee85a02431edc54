"""A node and its GPUs."""

from gpuyard.domain.values import NodeId, Value


class Gpu(Value, frozen=True):
    """One card, as the node's agent describes it. Its index is its place in the node's list."""

    model: str
    memory_mib: int
    uuid: str = ""
    numa: int = 0
    """The NUMA domain it hangs on."""
    nvlink: int | None = None
    """Cards with the same number reach each other over NVLink; none: it has no such link."""
    virtual: bool = False
    """It is only played by the agent: tasks are real processes, the card is not there."""


class NodeSpec(Value, frozen=True):
    """What a node has. Cards of several models may sit in one node; a task gets cards of one model on each node."""

    id: NodeId
    gpus: tuple[Gpu, ...] = ()
    cpus: int = 0
    memory_mib: int = 0
    labels: tuple[tuple[str, str], ...] = ()
