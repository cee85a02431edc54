"""The life of a task, as a table. The drawing in the manual is made from it (`make docs`), and `apply` checks it.

Each phase carries exactly what is true in it; those in which some node knows of an attempt are `WithPlacement`. GPUs are
held in Placed, Running, Suspending, Resuming and Stopping, and in no other. Settling is never seen from outside: the
end of an attempt and the decision what follows from it are events of one step.
"""

from gpuyard.core.domain import events
from gpuyard.core.domain.causes import Cause
from gpuyard.core.domain.placement import Placement
from gpuyard.core.domain.values import Outcome, TaskStatus, Value


class Phase(Value, frozen=True, tag_field="phase", tag=True):
    """Where a task stands."""


class Waiting(Phase, frozen=True):
    """It has no GPUs: queued, held, backing off, or waiting for other tasks."""

    since: float
    not_before: float = 0.0


class WithPlacement(Phase, frozen=True):
    """It has an attempt that some node knows of: base of the phases that have a placement."""

    attempt: int
    placement: Placement
    since: float


class Placed(WithPlacement, frozen=True):
    """It was given GPUs; the node has not reported the start."""


class Running(WithPlacement, frozen=True):
    """The node reported the start (or that it goes on); the GPUs are held until the attempt ends."""


class Suspending(WithPlacement, frozen=True):
    """It is being moved to host memory; it holds its GPUs until the node says so."""

    cause: Cause


class Suspended(WithPlacement, frozen=True):
    """It is in host memory of the nodes it ran on, and can only go on there."""

    by_user: bool
    """On request: then it waits for a request to go on, too."""


class Resuming(WithPlacement, frozen=True):
    """It was given GPUs again; the node has not reported that it runs."""


class Stopping(WithPlacement, frozen=True):
    """It is being ended; what it holds is held until the node reports the end."""

    cause: Cause
    holds_gpus: bool = True
    """A suspended attempt that is ended holds host memory only."""


class Settling(Phase, frozen=True):
    """Its attempt ended; whether it waits again or is over follows in the same step."""

    attempt: int
    outcome: Outcome
    exit_code: int | None
    cause: Cause | None
    """Why we stopped it, if we did."""


class Ended(Phase, frozen=True):
    """It is over."""

    status: TaskStatus


HOLDING = (Placed, Running, Suspending, Resuming, Stopping)
ACTIVE = (*HOLDING, Suspended)
"""Phases with an attempt that some node knows of."""

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
"""What a user is told; an ended task tells its own status."""
