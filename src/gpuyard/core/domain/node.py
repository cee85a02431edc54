"""A node and its GPUs."""

from gpuyard.core.domain.values import NodeId, Value

RESERVED_PREFIX = "gpuyard/"
"""Labels that begin with it are made by agents themselves."""
MAPPED_ONLY = ("gpuyard/accounts", "mapped")
"""The label of a node whose agent is root: it runs only tasks of tenants and users that are mapped to a system account."""


def tenant_account_label(name: str) -> tuple[str, str]:
    """The label of a node whose own settings map a tenant to a system account."""
    return (f"gpuyard/tenant/{name}", "mapped")


def user_account_label(name: str) -> tuple[str, str]:
    """The same for a user."""
    return (f"gpuyard/user/{name}", "mapped")


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


def has_same_gpus(before: NodeSpec, after: NodeSpec) -> bool:
    """Whether a node can be changed in place: the same cards in the same order, and no less of anything else."""
    if len(before.gpus) != len(after.gpus) or after.cpus < before.cpus or after.memory_mib < before.memory_mib:
        return False
    return all(is_same_gpu(was, now, same_place=True) for was, now in zip(before.gpus, after.gpus, strict=True))


def is_same_gpu(was: Gpu, now: Gpu, same_place: bool) -> bool:
    """Whether two descriptions are of one card; without a UUID its place in the node tells."""
    if (was.model, was.memory_mib) != (now.model, now.memory_mib):
        return False
    return was.uuid == now.uuid if was.uuid and now.uuid else same_place
