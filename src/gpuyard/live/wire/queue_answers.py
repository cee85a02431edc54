"""The answers of `GET /api/v1/queue` and `/api/v1/queue/ended`: tasks as a person reads a queue."""

from msgspec import Struct, field

from gpuyard.core.domain.values import TaskClass, TaskStatus
from gpuyard.live.wire.limits import Instant


class QueueRow(Struct, frozen=True, kw_only=True, gc=False):
    """A task, or several tasks of an array, sweep or group; the fields are then those of the first one.

    Open tasks on one row have one status. Ended ones may have several, and the first one is the one that ended last.
    """

    id: str
    name: str
    command: str | None
    """The beginning of its command; null: a lease."""
    status: TaskStatus
    tenant_id: str
    user: str
    project: str
    task_class: TaskClass = field(name="class")
    priority: str | int
    gpu_count: int
    nodes: int
    gpu_fraction: float | None
    gpu_model: str | list[str] | None
    node_ids: list[str]
    array_index: int | None
    attempts: int
    created_at: Instant
    started_at: Instant | None
    running_since: Instant | None
    ran_before_seconds: float | None
    """Run time before `running_since`, or of a task that does not run now."""
    place: int | None
    """1 for the first task of the queue; null: it is not in the queue, because it runs, is on hold or depends on others."""
    expected_start: Instant | None
    """When it is likely to start, for tasks at the beginning of the queue; null: unknown."""
    reason: str | None
    """Why it waits."""
    reason_code: str | None
    count: int = 1
    """Number of tasks on this row."""
    first_id: str | None = None
    """With several tasks, the one with the lowest number."""
    last_id: str | None = None
    group: str | None = None
    finished_at: Instant | None = None
    run_seconds: float | None = None
    """Of an ended task: how long it ran without suspensions."""
    exit_code: int | None = None
    counts: dict[TaskStatus, int] = {}
    """With several ended tasks, the number of each status."""


class EndedAnswer(Struct, frozen=True, kw_only=True):
    """Rows of ended tasks, the latest end first."""

    rows: list[QueueRow]
    tasks: int
    """Number of ended tasks that match."""
    has_more: bool
    """Whether there are further rows, of tasks that ended earlier."""


class QueueAnswer(Struct, frozen=True, kw_only=True):
    """A page of rows: running tasks, then waiting ones in queue order; or in the order that was asked for."""

    rows: list[QueueRow]
    total: int
    """Number of matching rows over all pages."""
    tasks: int
    """Number of matching tasks."""
    running: int
    """Of all open tasks that the caller may see, those that run or have GPUs and are about to."""
    suspended: int
    pending: int
