"""Events: everything that can happen. Applied in order they give the state; a replay needs nothing else.

An event says, in the past tense, what is true from now on, and carries everything that is needed to apply it. Decisions
of the engine (`TaskPlaced`, `ReservationMade`) are events like reports from outside, so a replay never decides again.
The time of an event and its origin are in the journal record that contains it. Fields are only added, with a default;
any other change needs a new version and an upgrade in gpuyard.core.journal.codec.
"""

import msgspec

from gpuyard.core.domain.actual import Actual
from gpuyard.core.domain.causes import Cause
from gpuyard.core.domain.node import NodeSpec
from gpuyard.core.domain.placement import Placement, Slice
from gpuyard.core.domain.settings import Settings
from gpuyard.core.domain.task import Estimate, TaskSpec
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
    """The client's name for the request it came with, if it gave one."""
    digest: str = ""
    """Of that request's body."""


class TaskHeld(Event, frozen=True):
    """A waiting task was told to stay out of the queue."""

    task: TaskId


class TaskReleased(Event, frozen=True):
    """A held task may go on."""

    task: TaskId


class PriorityChanged(Event, frozen=True):
    """A task got another priority."""

    task: TaskId
    priority: int


class EstimateRevised(Event, frozen=True):
    """A task is thought to run for another time than before."""

    task: TaskId
    estimate: Estimate | None


class TaskExtended(Event, frozen=True):
    """A task may run until then from now on."""

    task: TaskId
    timeout_seconds: float | None
    deadline: float | None


class TaskRequeued(Event, frozen=True):
    """A task whose attempt ended waits again."""

    task: TaskId
    cause: Cause
    not_before: float
    """Not placed before this instant: back-off after a failure."""
    gpu_memory_mib: int = 0
    """Above 0: it asks for so much memory on each of its GPUs from now on, because what it had was too little."""


class TaskEnded(Event, frozen=True):
    """A task is over, for good."""

    task: TaskId
    status: TaskStatus
    cause: Cause


# --- attempts ---------------------------------------------------------------------------------------------------------


class TaskPlaced(Event, frozen=True):
    """A waiting task was given GPUs, for a new attempt."""

    task: TaskId
    attempt: int
    placement: Placement
    because: Cause | None = None
    """What made the scheduler try the task just then."""


class AttemptStarted(Event, frozen=True):
    """The node reported that the attempt runs."""

    task: TaskId
    attempt: int
    started_at: float | None = None
    """When its process started, by the clock of its node; none: when this was recorded."""


class AttemptRecovered(Event, frozen=True):
    """A node that was lost came back and still runs the attempt; the task had not started elsewhere, so it goes on."""

    task: TaskId
    attempt: int
    node: NodeId


class AttemptSuspending(Event, frozen=True):
    """A running attempt is to be moved to host memory."""

    task: TaskId
    attempt: int
    cause: Cause
    round: int
    """Suspensions of an attempt are numbered: a report that comes late or twice speaks of an earlier one."""


class SuspensionFailed(Event, frozen=True):
    """The node could not move it; it runs on, and is left alone from now on. Parts that were moved are to come back."""

    task: TaskId
    attempt: int
    round: int
    message: str = ""


class AttemptSuspended(Event, frozen=True):
    """The node reported that it is there; its GPUs are free."""

    task: TaskId
    attempt: int


class AttemptResuming(Event, frozen=True):
    """A suspended attempt was given GPUs again."""

    task: TaskId
    attempt: int
    placement: Placement
    round: int
    """Of the suspension it comes back from."""
    because: Cause | None = None
    """What made the scheduler try the task just then."""


class AttemptResumed(Event, frozen=True):
    """The node reported that it runs again."""

    task: TaskId
    attempt: int


class AttemptStopping(Event, frozen=True):
    """An attempt is to be ended; its GPUs stay held until the node reports the end."""

    task: TaskId
    attempt: int
    cause: Cause


class MemberReady(Event, frozen=True):
    """One node's part of a gang started, is in host memory, or runs again; the attempt follows with the last of them."""

    task: TaskId
    attempt: int
    node: NodeId


class MemberEnded(Event, frozen=True):
    """One node's part of a gang is over; the attempt ends with the last of them."""

    task: TaskId
    attempt: int
    node: NodeId
    outcome: Outcome
    exit_code: int | None = None
    signal: int | None = None
    message: str = ""
    actual: Actual | None = None


class AttemptEnded(Event, frozen=True):
    """An attempt is over and its GPUs are free, except where it may still run because nobody hears of the node."""

    task: TaskId
    attempt: int
    outcome: Outcome
    exit_code: int | None = None
    signal: int | None = None
    """Which signal ended it."""
    message: str = ""
    """What the node has to say about it, one sentence."""
    orphaned_on: tuple[NodeId, ...] = msgspec.field(default=(), name="remains")
    """Lost nodes that may run it still: what it held there stays taken until they say that it is gone."""
    actual: Actual | None = None
    """What it took of its GPUs, where somebody has measured it."""
    ended_at: float | None = None
    """When its process ended, by the clock of its node; none: when this was recorded."""


# --- reservations -----------------------------------------------------------------------------------------------------


class ReservationMade(Event, frozen=True):
    """A waiting task was promised these nodes; what would delay it there stays away. A second one replaces the first."""

    task: TaskId
    nodes: tuple[NodeId, ...]
    starts_at: float | None
    """When the nodes are expected to be free; none: nobody knows how long the tasks there run."""
    claim: bool = False
    """Its victims are already being stopped."""
    borrowed: bool = False
    """It was made while the task's class used more than its part: the other class need not respect it."""
    tenant_key: float = 0.0
    """The tenant's place in the order when it was made. A promise does not grow weaker because others used the cluster since."""
    because: Cause | None = None
    """What made the scheduler try the task just then."""


class ReservationDropped(Event, frozen=True):
    """The promise is off."""

    task: TaskId
    cause: Cause


# --- nodes ------------------------------------------------------------------------------------------------------------


class NodeJoined(Event, frozen=True):
    """A node came."""

    node: NodeSpec
    instance: str = ""
    """Which agent speaks for it: drawn once for a work folder."""
    boot: str = ""
    """Which start of its machine: another machine with a copy of the folder has another one."""


class NodeLost(Event, frozen=True):
    """A node was not heard of for too long."""

    node: NodeId


class NodeStopped(Event, frozen=True):
    """The agent of a node was stopped on purpose; its tasks go on, and it is expected back by then."""

    node: NodeId
    back_by: float


class NodeReturned(Event, frozen=True):
    """A node that was lost, stopped or known to an earlier scheduler only has registered again."""

    node: NodeId
    orphaned_attempts: tuple[AttemptRef, ...] = msgspec.field(default=(), name="remains")
    """Attempts that are over for us and that it still has; of all others there nothing is left."""
    instance: str = ""
    """Another agent than before speaks for it; empty: the same."""
    boot: str = ""


class OrphanedAttemptFound(Event, frozen=True, tag="RemainsFound"):
    """A node has an attempt that nobody here knows of, or that went on elsewhere: what it holds is taken until it ends."""

    node: NodeId
    task: TaskId
    attempt: int
    origin: int
    part: Slice
    """What of it was free."""
    wanted: Slice | None = None
    """All that it holds, where some of that counts as taken by others; it takes it when they end."""


class OrphanedAttemptEnded(Event, frozen=True, tag="RemainsEnded"):
    """What a node still had of an attempt that was over for us is gone."""

    node: NodeId
    task: TaskId
    attempt: int
    origin: int = 0


class NodeChanged(Event, frozen=True):
    """A node has other labels, more CPUs or memory, or says more about its GPUs; the GPUs are the same, tasks go on."""

    node: NodeSpec


class NodeRemoved(Event, frozen=True):
    """A node was taken out of the cluster."""

    node: NodeId


class NodeCordoned(Event, frozen=True):
    """A node gets nothing new; a draining one is emptied too."""

    node: NodeId
    draining: bool = False


class NodeUncordoned(Event, frozen=True):
    """A node is open again."""

    node: NodeId


class GpuHealthChanged(Event, frozen=True):
    """A GPU may, or may not, be given to tasks from now on."""

    node: NodeId
    gpu: int
    health: GpuHealth


# --- the cluster ------------------------------------------------------------------------------------------------------


class ClusterCreated(Event, frozen=True, tag="YardFounded"):
    """The first event of every journal: the ID of this cluster."""

    cluster_id: str = msgspec.field(name="yard")


class EpochBegan(Event, frozen=True):
    """A scheduler took over. Nodes obey the highest epoch they have seen, so its predecessor has no say any more."""

    epoch: int
    version: str
    last_task: TaskId = TaskId(0)
    """Task numbers up to here were used, whether or not this journal knows of the tasks."""
    origin: int = 0
    """Drawn at random by this scheduler: attempts that it places carry it."""
    offline_after_seconds: float = 0.0
    """After how long without a word it counts a node as lost: the next scheduler waits at least as long for each."""


class TaskNumbersSkipped(Event, frozen=True):
    """A node has heard of tasks that this journal does not know; no number up to here is given out again."""

    last_task: TaskId


class EpochEnded(Event, frozen=True):
    """A scheduler stopped on purpose; until then nodes wait for the next one, and nobody counts them as lost."""

    epoch: int
    scheduler_back_by: float = msgspec.field(name="patient_until")


class AccessChanged(Event, frozen=True):
    """A user or a token was added, changed or taken away. Passwords and tokens themselves are kept elsewhere."""

    what: str
    """`user_added`, `token_revoked` and the like."""
    subject: str
    """Which user, and which token by its id."""


class TenantSet(Event, frozen=True):
    """A tenant has these limits from now on."""

    tenant: Tenant


class SplitSet(Event, frozen=True):
    """The cluster is split so from now on."""

    split: Split


class SettingsChanged(Event, frozen=True):
    """The engine decides so from now on."""

    settings: Settings


EVENTS: tuple[type[Event], ...] = (
    ClusterCreated,
    TaskSubmitted, TaskHeld, TaskReleased, PriorityChanged, EstimateRevised, TaskExtended, TaskRequeued, TaskEnded,
    TaskPlaced, AttemptStarted, AttemptSuspending, AttemptSuspended, SuspensionFailed, AttemptResuming, AttemptResumed,
    AttemptStopping, MemberReady, MemberEnded, AttemptEnded, AttemptRecovered,
    ReservationMade, ReservationDropped,
    NodeJoined, NodeLost, NodeStopped, NodeReturned, OrphanedAttemptFound, OrphanedAttemptEnded, NodeChanged, NodeRemoved, NodeCordoned, NodeUncordoned, GpuHealthChanged,
    EpochBegan, EpochEnded, TaskNumbersSkipped, AccessChanged, TenantSet, SplitSet, SettingsChanged,
)  # fmt: skip
"""Every event there is. A test holds this list and the classes above together."""
