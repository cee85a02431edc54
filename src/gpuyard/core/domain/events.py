"""Events: everything that can happen. The state is the result of applying them in order; a replay needs nothing else.

The name of an event is in the past tense, and its fields are all that is needed to apply it. Decisions of the engine
(`TaskPlaced`, `ReservationMade`) are events like reports of nodes, so a replay makes no decisions.
The time of an event and its origin are in the journal record that contains it. Fields are only added, with a default;
any other change needs a new version and an upgrade in gpuyard.core.journal.codec.
"""

import msgspec

from gpuyard.core.domain.actual import Actual
from gpuyard.core.domain.booking import BookedGpus, Booking
from gpuyard.core.domain.causes import Cause
from gpuyard.core.domain.node import NodeSpec
from gpuyard.core.domain.notice import Moment
from gpuyard.core.domain.placement import Placement, Slice
from gpuyard.core.domain.settings import Settings
from gpuyard.core.domain.task import Estimate, RunLimit, TaskSpec
from gpuyard.core.domain.tenant import Split, Tenant
from gpuyard.core.domain.values import AttemptRef, GpuHealth, NodeId, Outcome, TaskId, TaskStatus, Value


class Event(Value, frozen=True, tag_field="type", tag=True):
    """Base of all events."""


def name_of(event: Event | type[Event]) -> str:
    """Return the name of an event in the journal and in the API; a few classes have been renamed since it was chosen."""
    return str(event.__struct_config__.tag)


# --- tasks ------------------------------------------------------------------------------------------------------------


class TaskSubmitted(Event, frozen=True):
    """A task was accepted."""

    task: TaskId
    spec: TaskSpec
    key: str = ""
    """The idempotency key of the request, if it had one."""
    digest: str = ""
    """A hash of the body of the request."""


class TaskHeld(Event, frozen=True):
    """A waiting task was put on hold."""

    task: TaskId


class TaskReleased(Event, frozen=True):
    """A held task was released."""

    task: TaskId


class PriorityChanged(Event, frozen=True):
    """The priority of a task was changed."""

    task: TaskId
    priority: int


class EstimateRevised(Event, frozen=True):
    """The estimated run time of a task was replaced."""

    task: TaskId
    estimate: Estimate | None


class TaskExtended(Event, frozen=True):
    """The timeout or the deadline of a task was raised."""

    task: TaskId
    timeout_seconds: float | None
    deadline: float | None


class TaskRequeued(Event, frozen=True):
    """The attempt of a task has ended, and the task waits again."""

    task: TaskId
    cause: Cause
    not_before: float
    """The task is not placed before this time: the retry delay after a failure."""
    gpu_memory_mib: int = 0
    """Above 0: the new memory request per GPU, because the attempt ran out of GPU memory."""


class TaskEnded(Event, frozen=True):
    """A task has ended."""

    task: TaskId
    status: TaskStatus
    cause: Cause


class RunLimitSet(Event, frozen=True):
    """The number of tasks of an array or sweep that may run at the same time was set; at submission, before its tasks."""

    limit: RunLimit


class NoticeSettled(Event, frozen=True):
    """A message about a task was delivered, or was given up."""

    task: TaskId
    number: int
    """The position of the notice in the list of the task."""
    moment: Moment
    delivered: bool
    tries: int = 1
    message: str = ""
    """Why it was given up."""


# --- attempts ---------------------------------------------------------------------------------------------------------


class TaskPlaced(Event, frozen=True):
    """Resources were assigned to a waiting task, for a new attempt."""

    task: TaskId
    attempt: int
    placement: Placement
    because: Cause | None = None
    """The cause of this scheduling attempt."""


class AttemptStarted(Event, frozen=True):
    """The node reported the start of the attempt."""

    task: TaskId
    attempt: int
    started_at: float | None = None
    """The time at which its process started, by the clock of the node; None: the time of the record."""


class AttemptRecovered(Event, frozen=True):
    """A lost node returned and still runs the attempt; the task had not started elsewhere, so the attempt continues."""

    task: TaskId
    attempt: int
    node: NodeId


class AttemptSuspending(Event, frozen=True):
    """The engine decided to move a running attempt to host memory."""

    task: TaskId
    attempt: int
    cause: Cause
    round: int
    """The number of this suspension of the attempt; it identifies reports that arrive late or twice."""


class SuspensionFailed(Event, frozen=True):
    """The node could not suspend the attempt, which continues and is not suspended again. Suspended parts are resumed."""

    task: TaskId
    attempt: int
    round: int
    message: str = ""


class AttemptSuspended(Event, frozen=True):
    """The node reported that the attempt is in host memory; its GPUs are free."""

    task: TaskId
    attempt: int


class AttemptResuming(Event, frozen=True):
    """GPUs were assigned to a suspended attempt again."""

    task: TaskId
    attempt: int
    placement: Placement
    round: int
    """The number of the suspension that ends."""
    because: Cause | None = None
    """The cause of this scheduling attempt."""


class AttemptResumed(Event, frozen=True):
    """The node reported that the attempt runs again."""

    task: TaskId
    attempt: int


class AttemptStopping(Event, frozen=True):
    """The engine decided to stop an attempt; its GPUs stay assigned until the node reports the end."""

    task: TaskId
    attempt: int
    cause: Cause


class MemberReady(Event, frozen=True):
    """A part of a gang on one node has started, is suspended, or has resumed; the attempt changes with the last part."""

    task: TaskId
    attempt: int
    node: NodeId


class MemberEnded(Event, frozen=True):
    """A part of a gang on one node has ended; the attempt ends with the last part."""

    task: TaskId
    attempt: int
    node: NodeId
    outcome: Outcome
    exit_code: int | None = None
    signal: int | None = None
    message: str = ""
    actual: Actual | None = None


class AttemptEnded(Event, frozen=True):
    """An attempt has ended and its GPUs are free, except on lost nodes, where it may still run."""

    task: TaskId
    attempt: int
    outcome: Outcome
    exit_code: int | None = None
    signal: int | None = None
    """The signal that ended it."""
    message: str = ""
    """An explanation by the node, in one sentence."""
    orphaned_on: tuple[NodeId, ...] = msgspec.field(default=(), name="remains")
    """Lost nodes that may still run it: its resources there stay in use until the nodes report that it is gone."""
    actual: Actual | None = None
    """The GPU usage, if it was measured."""
    ended_at: float | None = None
    """The time at which its process ended, by the clock of the node; None: the time of the record."""
    result: str = ""
    """The SHA-256 of the blob with its result; empty: it stored none."""


# --- reservations -----------------------------------------------------------------------------------------------------


class ReservationMade(Event, frozen=True):
    """Nodes were reserved for a waiting task; tasks that would delay it are not placed there. It replaces an earlier one."""

    task: TaskId
    nodes: tuple[NodeId, ...]
    starts_at: float | None
    """The expected time at which the nodes are free; None: unknown, because tasks there have no estimate."""
    claim: bool = False
    """Tasks on these nodes are already being preempted for it."""
    borrowed: bool = False
    """It was made while the class of the task used more than its part; the other class does not have to respect it."""
    tenant_key: float = 0.0
    """The `tenant_key` of the tenant when it was made; later usage of other tenants does not weaken a reservation."""
    because: Cause | None = None
    """The cause of this scheduling attempt."""


class ReservationDropped(Event, frozen=True):
    """A reservation was removed."""

    task: TaskId
    cause: Cause


# --- bookings ---------------------------------------------------------------------------------------------------------


class BookingMade(Event, frozen=True):
    """GPUs were booked for a tenant, or nodes for maintenance."""

    booking: Booking


class BookingMoved(Event, frozen=True):
    """A booking uses other GPUs, because a node of it is gone or closed."""

    booking: int
    parts: tuple[BookedGpus, ...]


class BookingBegan(Event, frozen=True):
    """The time of a booking began: its GPUs are held for it from now on."""

    booking: int
    late: tuple[TaskId, ...] = ()
    """Tasks that still hold booked GPUs, or run on nodes under maintenance. No other task starts in their place."""
    cordoned: tuple[NodeId, ...] = ()
    """Nodes that are cordoned for it, and are uncordoned when it ends."""


class BookingEnded(Event, frozen=True):
    """The time of a booking ended, or it was cancelled; tasks that run on its GPUs continue."""

    booking: int
    cause: Cause


# --- nodes ------------------------------------------------------------------------------------------------------------


class NodeJoined(Event, frozen=True):
    """A node registered for the first time."""

    node: NodeSpec
    instance: str = ""
    """The ID of its agent, generated once for a work folder."""
    boot: str = ""
    """The boot ID of its machine, which differs on another machine with a copy of the work folder."""


class NodeLost(Event, frozen=True):
    """A node sent no heartbeat for too long."""

    node: NodeId


class NodeStopped(Event, frozen=True):
    """The agent of a node was stopped on purpose; its tasks continue, and it is expected back by this time."""

    node: NodeId
    back_by: float


class NodeReturned(Event, frozen=True):
    """A node registered again that was lost, stopped, or known only to an earlier scheduler."""

    node: NodeId
    orphaned_attempts: tuple[AttemptRef, ...] = msgspec.field(default=(), name="remains")
    """Ended attempts that the node still has; all other ended attempts are gone from it."""
    instance: str = ""
    """The ID of its agent if that has changed; empty: the same as before."""
    boot: str = ""


class OrphanedAttemptFound(Event, frozen=True, tag="RemainsFound"):
    """A node has an attempt that is unknown or was placed elsewhere; its resources stay in use until it ends."""

    node: NodeId
    task: TaskId
    attempt: int
    origin: int
    part: Slice
    """The free resources that it occupies."""
    wanted: Slice | None = None
    """All resources that it holds, if some are assigned to other attempts; it occupies these when they end."""


class OrphanedAttemptEnded(Event, frozen=True, tag="RemainsEnded"):
    """An attempt that was unknown or had already ended for the scheduler is gone from its node."""

    node: NodeId
    task: TaskId
    attempt: int
    origin: int = 0


class NodeChanged(Event, frozen=True):
    """A node has other labels, more CPUs or memory, or more details of its GPUs; the GPUs are the same, and tasks continue."""

    node: NodeSpec


class NodeRemoved(Event, frozen=True):
    """A node was removed from the cluster."""

    node: NodeId


class NodeCordoned(Event, frozen=True):
    """No new tasks are placed on a node; if it is draining, its tasks are moved away where they allow it."""

    node: NodeId
    draining: bool = False
    reason: str = ""
    """Why, in the words of the operator."""


class NodeUncordoned(Event, frozen=True):
    """New tasks are placed on a node again."""

    node: NodeId


class GpuHealthChanged(Event, frozen=True):
    """The health of a GPU changed; only a GPU that is `ok` is assigned to tasks."""

    node: NodeId
    gpu: int
    health: GpuHealth


# --- the cluster ------------------------------------------------------------------------------------------------------


class ClusterCreated(Event, frozen=True, tag="YardFounded"):
    """The first event of every journal: the ID of this cluster."""

    cluster_id: str = msgspec.field(name="yard")


class EpochBegan(Event, frozen=True):
    """A scheduler took over. Nodes obey only the highest epoch they have seen, so they ignore its predecessor."""

    epoch: int
    version: str
    last_task: TaskId = TaskId(0)
    """The highest task number in use, including tasks that this journal does not know."""
    origin: int = 0
    """A random number of this scheduler, which is part of the attempts that it places."""
    offline_after_seconds: float = 0.0
    """The time without a heartbeat after which it declares a node lost; the next scheduler waits at least as long."""


class TaskNumbersSkipped(Event, frozen=True):
    """A node knows tasks that this journal does not know; no number up to this one is assigned again."""

    last_task: TaskId


class EpochEnded(Event, frozen=True):
    """A scheduler stopped on purpose; until this time nodes wait for the next one and are not declared lost."""

    epoch: int
    scheduler_back_by: float = msgspec.field(name="patient_until")


class AccessChanged(Event, frozen=True):
    """A user or a token was added, changed or removed. Passwords and tokens themselves are not in the journal."""

    what: str
    """The kind of change, for example `user_added` or `token_revoked`."""
    subject: str
    """The user, and the ID of the token."""


class TenantSet(Event, frozen=True):
    """The limits of a tenant were set."""

    tenant: Tenant


class SplitSet(Event, frozen=True):
    """The split of the GPUs between online and batch tasks was set."""

    split: Split


class SettingsChanged(Event, frozen=True):
    """The settings of the engine were replaced."""

    settings: Settings


EVENTS: tuple[type[Event], ...] = (
    ClusterCreated,
    TaskSubmitted, TaskHeld, TaskReleased, PriorityChanged, EstimateRevised, TaskExtended, TaskRequeued, TaskEnded, RunLimitSet, NoticeSettled,
    TaskPlaced, AttemptStarted, AttemptSuspending, AttemptSuspended, SuspensionFailed, AttemptResuming, AttemptResumed,
    AttemptStopping, MemberReady, MemberEnded, AttemptEnded, AttemptRecovered,
    ReservationMade, ReservationDropped, BookingMade, BookingMoved, BookingBegan, BookingEnded,
    NodeJoined, NodeLost, NodeStopped, NodeReturned, OrphanedAttemptFound, OrphanedAttemptEnded, NodeChanged, NodeRemoved, NodeCordoned, NodeUncordoned, GpuHealthChanged,
    EpochBegan, EpochEnded, TaskNumbersSkipped, AccessChanged, TenantSet, SplitSet, SettingsChanged,
)  # fmt: skip
"""All event classes; a test compares this list with the classes above."""
