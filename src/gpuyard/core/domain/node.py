"""A node and its GPUs."""

from gpuyard.core.domain.values import NodeId, Value

RESERVED_PREFIX = "gpuyard/"
"""The prefix of labels that only agents set."""
MAPPED_ONLY = ("gpuyard/accounts", "mapped")
"""The label of a node that only runs tasks of tenants and users with a system account, because its agent is root."""


def tenant_account_label(name: str) -> tuple[str, str]:
    """Return the label of a node whose own settings map this tenant to a system account."""
    return (f"gpuyard/tenant/{name}", "mapped")


def user_account_label(name: str) -> tuple[str, str]:
    """Return the label of a node whose own settings map this user to a system account."""
    return (f"gpuyard/user/{name}", "mapped")


class Gpu(Value, frozen=True):
    """One GPU as described by the agent of its node. Its index is its position in `NodeSpec.gpus`."""

    model: str
    memory_mib: int
    uuid: str = ""
    numa: int = 0
    """The NUMA domain it is attached to."""
    nvlink: int | None = None
    """GPUs with the same number are connected by NVLink; None: it has no NVLink."""
    virtual: bool = False
    """The agent simulates this GPU: tasks are real processes, but the GPU does not exist."""


class NodeSpec(Value, frozen=True):
    """The hardware and labels of a node. It may have several GPU models; a task gets GPUs of one model on each node."""

    id: NodeId
    gpus: tuple[Gpu, ...] = ()
    cpus: int = 0
    memory_mib: int = 0
    labels: tuple[tuple[str, str], ...] = ()


def has_same_gpus(before: NodeSpec, after: NodeSpec) -> bool:
    """Whether a node can be changed in place: the same GPUs in the same order, and no fewer CPUs and no less memory."""
    if len(before.gpus) != len(after.gpus) or after.cpus < before.cpus or after.memory_mib < before.memory_mib:
        return False
    return all(is_same_gpu(was, now, same_place=True) for was, now in zip(before.gpus, after.gpus, strict=True))


def is_same_gpu(was: Gpu, now: Gpu, same_place: bool) -> bool:
    """Whether two descriptions mean the same GPU. If either has no UUID, `same_place` decides."""
    if (was.model, was.memory_mib) != (now.model, now.memory_mib):
        return False
    return was.uuid == now.uuid if was.uuid and now.uuid else same_place
