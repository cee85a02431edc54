"""The phases of a task and the transitions between them. `make docs` draws the table in the manual; `apply` checks it.

Each phase has exactly the fields that apply to it; phases with an attempt on a node derive from `WithPlacement`. A task
holds GPUs in Placed, Running, Suspending, Resuming and Stopping, and in no other phase. Settling is never visible
outside: the end of an attempt and its consequence (`TaskRequeued` or `TaskEnded`) are events of the same step.
"""

from gpuyard.core.domain import events
from gpuyard.core.domain.causes import Cause
from gpuyard.core.domain.placement import Placement
from gpuyard.core.domain.values import Outcome, TaskStatus, Value


class Phase(Value, frozen=True, tag_field="phase", tag=True):
    """Base of all phases."""


class Waiting(Phase, frozen=True):
    """The task has no GPUs: it is queued, on hold, in its retry delay, or waits for other tasks."""

    since: float
    not_before: float = 0.0


class WithPlacement(Phase, frozen=True):
    """Base of the phases in which the task has an attempt on a node, and so a placement."""

    attempt: int
    placement: Placement
    since: float


class Placed(WithPlacement, frozen=True):
    """GPUs are assigned; the node has not reported the start."""


class Running(WithPlacement, frozen=True):
    """The node has reported that the attempt runs or continues; it holds its GPUs until it ends."""


class Suspending(WithPlacement, frozen=True):
    """The attempt is being moved to host memory; it holds its GPUs until the node reports that it is there."""

    cause: Cause


class Suspended(WithPlacement, frozen=True):
    """The attempt is in host memory of the nodes it ran on, and can only resume there."""

    by_user: bool
    """A user suspended it; it then resumes only when a user requests it."""


class Resuming(WithPlacement, frozen=True):
    """GPUs are assigned again; the node has not reported that the attempt runs."""


class Stopping(WithPlacement, frozen=True):
    """The attempt is being stopped; it holds its resources until the node reports the end."""

    cause: Cause
    holds_gpus: bool = True
    """False for a suspended attempt that is being stopped: it holds only host memory."""


class Settling(Phase, frozen=True):
    """The attempt has ended; the same step decides whether the task waits again or has ended."""

    attempt: int
    outcome: Outcome
    exit_code: int | None
    cause: Cause | None
    """Why the scheduler stopped it; None: it ended by itself."""


class Ended(Phase, frozen=True):
    """The task has ended."""

    status: TaskStatus


HOLDING = (Placed, Running, Suspending, Resuming, Stopping)
ACTIVE = (*HOLDING, Suspended)
"""Phases with an attempt on a node."""

TRANSITIONS: dict[tuple[type[Phase], type[events.Event]], type[Phase]] = {
    (Waiting, events.TaskPlaced): Placed,
    (Waiting, events.AttemptRecovered): Running,
    (Waiting, events.TaskEnded): Ended,
    (Placed, events.AttemptStarted): Running,
    (Running, events.AttemptSuspending): Suspending,
    (Suspending, events.AttemptSuspended): Suspended,
    (Suspending, events.SuspensionFailed): Running,
    (Suspended, events.AttemptResuming): Resuming,
    (Resuming, events.AttemptResumed): Running,
    (Placed, events.AttemptStopping): Stopping,
    (Running, events.AttemptStopping): Stopping,
    (Suspending, events.AttemptStopping): Stopping,
    (Suspended, events.AttemptStopping): Stopping,
    (Resuming, events.AttemptStopping): Stopping,
    (Stopping, events.AttemptStopping): Stopping,
    (Placed, events.AttemptEnded): Settling,
    (Running, events.AttemptEnded): Settling,
    (Suspending, events.AttemptEnded): Settling,
    (Suspended, events.AttemptEnded): Settling,
    (Resuming, events.AttemptEnded): Settling,
    (Stopping, events.AttemptEnded): Settling,
    (Settling, events.TaskRequeued): Waiting,
    (Settling, events.TaskEnded): Ended,
}

STATUS: dict[type[Phase], TaskStatus] = {
    Waiting: TaskStatus.PENDING,
    Placed: TaskStatus.PENDING,
    Running: TaskStatus.RUNNING,
    Suspending: TaskStatus.RUNNING,
    Suspended: TaskStatus.SUSPENDED,
    Resuming: TaskStatus.SUSPENDED,
    Stopping: TaskStatus.RUNNING,
    Settling: TaskStatus.RUNNING,
}
"""The status shown to users; the phase `Ended` contains its own."""
