"""The answer of /api/v1 with a timeline: which task held which GPU when."""

from msgspec import Struct

from gpuyard.core.domain.values import TaskStatus


class TimelineBar(Struct, frozen=True):
    """A time in which a GPU was held. Instants are seconds since 1970."""

    start: float
    end: float | None
    """Null: the task still holds the GPU."""
    task_id: str | None
    """Null: several short times that would be narrower than a pixel; `count` says how many."""
    name: str | None = None
    tenant_id: str | None = None
    status: TaskStatus | None = None
    share: float | None = None
    """The part of the GPU that the task held: 1 for a whole GPU."""
    count: int = 1


class TimelineLane(Struct, frozen=True):
    """One GPU."""

    gpu_id: str
    node_id: str
    device_index: int
    bars: list[TimelineBar]
    """By start."""


class TimelineAnswer(Struct, frozen=True, rename={"from_": "from"}):
    """Which task held which GPU when, for the GPUs of all nodes, or of one."""

    from_: float
    to: float
    lanes: list[TimelineLane]
    merged: int
    """Number of times that were merged because they are narrower than a pixel."""
