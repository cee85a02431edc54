"""Commands: requests and reports to the engine. The engine answers each with events or with a refusal."""

from gpuyard.core.domain.actual import Actual
from gpuyard.core.domain.node import NodeSpec
from gpuyard.core.domain.notice import Moment
from gpuyard.core.domain.placement import Slice
from gpuyard.core.domain.settings import Settings
from gpuyard.core.domain.task import Estimate, NewTask, RunLimit
from gpuyard.core.domain.tenant import Split, Tenant
from gpuyard.core.domain.values import AttemptRef, GpuHealth, NodeId, Outcome, TaskId, TenantId, Value


class Command(Value, frozen=True):
    """Base of all commands."""


class SubmitTasks(Command, frozen=True):
    """Submit these tasks: all are accepted, or none. They may depend on each other in any order."""

    tasks: tuple[NewTask, ...]
    key: str = ""
    """The idempotency key of the request: a repeated request with the same key submits nothing."""
    digest: str = ""
    """A hash of the body: requests with the same key must have the same one."""
    limits: tuple[RunLimit, ...] = ()
    """How many of these tasks may run at the same time. A task has at most one such limit."""


class CancelTask(Command, frozen=True):
    """End a task in any phase."""

    task: TaskId


class HoldTask(Command, frozen=True):
    """Put a waiting task on hold."""

    task: TaskId


class ReleaseTask(Command, frozen=True):
    """Return a held task to the queue."""

    task: TaskId


class SuspendTask(Command, frozen=True):
    """Move a running task to host memory until `ResumeTask`."""

    task: TaskId


class ResumeTask(Command, frozen=True):
    """Resume a task that a user has suspended."""

    task: TaskId


class ChangePriority(Command, frozen=True):
    """Change the priority of a task within its class."""

    task: TaskId
    priority: int


class ReviseEstimate(Command, frozen=True):
    """Replace the estimated run time of a task."""

    task: TaskId
    estimate: Estimate | None


class ExtendTask(Command, frozen=True):
    """Raise the timeout or the deadline of a task or lease. A field that is None stays unchanged."""

    task: TaskId
    timeout_seconds: float | None = None
    """The new maximum run time of an attempt, counted from its start."""
    deadline: float | None = None


class SetRunLimit(Command, frozen=True):
    """Set how many tasks of an array or sweep may run at the same time; running tasks continue."""

    task: TaskId
    """A task of it that has not ended."""
    limit: RunLimit
    """Its tasks as the caller knows them. A limit that the task has already decides which tasks these are."""


class SettleNotice(Command, frozen=True):
    """A message about a task was delivered, or is given up."""

    task: TaskId
    number: int
    moment: Moment
    delivered: bool
    tries: int = 1
    message: str = ""


class MakeBooking(Command, frozen=True):
    """Book GPUs from one instant to another, or nodes for maintenance. The engine chooses the nodes."""

    tenant: TenantId
    begins_at: float
    ends_at: float
    gpus: int = 0
    """Number of GPUs; ignored under maintenance."""
    models: tuple[str, ...] = ()
    nodes: tuple[NodeId, ...] = ()
    """Nodes that may be used; under maintenance, all of them are closed. Empty: any."""
    user: str = ""
    maintenance: bool = False
    preempt: bool = False
    note: str = ""


class CancelBooking(Command, frozen=True):
    """Cancel a booking, or end it if it has begun."""

    booking: int


# --- reports of nodes -------------------------------------------------------------------------------------------------


class ReportStarted(Command, frozen=True):
    """The attempt, or its part on one node, has started; a gang runs when all its parts have started."""

    task: TaskId
    attempt: int
    node: NodeId | None = None
    """The node of the part; None: the whole attempt."""
    origin: int = 0
    """The origin of the attempt (`AttemptRef.origin`), as in all reports."""
    started_at: float | None = None
    """The time at which its process started; None: now."""


class ReportSuspended(Command, frozen=True):
    """The attempt, or its part on one node, is in host memory, and its GPUs are free."""

    task: TaskId
    attempt: int
    round: int
    """The number of the suspension, as in the command to the node."""
    node: NodeId | None = None
    origin: int = 0


class ReportNotSuspended(Command, frozen=True):
    """The attempt, or its part on one node, could not be moved to host memory and continues to run."""

    task: TaskId
    attempt: int
    round: int
    message: str = ""
    """The reason, in one sentence."""
    node: NodeId | None = None
    origin: int = 0


class ReportResumed(Command, frozen=True):
    """The attempt, or its part on one node, runs again."""

    task: TaskId
    attempt: int
    round: int
    """The number of the suspension that ends."""
    node: NodeId | None = None
    origin: int = 0


class ReportNotResumed(Command, frozen=True):
    """The attempt, or its part on one node, could not be resumed; the node has ended it."""

    task: TaskId
    attempt: int
    round: int
    message: str = ""
    node: NodeId | None = None
    origin: int = 0


class ReportEnded(Command, frozen=True):
    """The attempt, or its part on one node, has ended."""

    task: TaskId
    attempt: int
    outcome: Outcome
    exit_code: int | None = None
    node: NodeId | None = None
    """The node of the part; None: the whole attempt."""
    signal: int | None = None
    """The signal that ended it."""
    message: str = ""
    """An explanation by the node, in one sentence."""
    actual: Actual | None = None
    """The GPU usage that the node has measured."""
    origin: int = 0
    ended_at: float | None = None
    """The time at which its process ended; None: now."""
    result: str = ""
    """The SHA-256 of the blob with its result; empty: it stored none."""


# --- nodes ------------------------------------------------------------------------------------------------------------


class JoinNode(Command, frozen=True):
    """A node registers: a new one, or a known one that may have changed or been lost."""

    node: NodeSpec
    attempts: tuple[AttemptRef, ...] = ()
    """The attempts that the node has. Resources of other attempts that a lost node could have had are freed."""
    running: tuple[AttemptRef, ...] = ()
    """Those of them that run; if the task of one still waits, the attempt is recovered."""
    parts: tuple[tuple[AttemptRef, Slice], ...] = ()
    """The resources that each holds, as reported by the agent; used for attempts that the scheduler does not know."""
    complete: bool = False
    """The list is complete: every other attempt on this node is gone."""
    instance: str = ""
    boot: str = ""
    ended: tuple[AttemptRef, ...] = ()
    """Attempts that have ended on the node and whose ends it has yet to report."""


class StopNode(Command, frozen=True):
    """The agent of a node is being stopped on purpose and announces when it will be back."""

    node: NodeId
    back_within_seconds: float


class LoseNode(Command, frozen=True):
    """Declare a node lost: it has sent no heartbeat for too long."""

    node: NodeId


class ReturnNode(Command, frozen=True):
    """A lost node is back with its attempts."""

    node: NodeId
    attempts: tuple[AttemptRef, ...] = ()
    """The attempts that the node still has."""
    running: tuple[AttemptRef, ...] = ()


class RemoveNode(Command, frozen=True):
    """Remove a node from the cluster: an idle one, or a lost one, whose attempts then count as lost."""

    node: NodeId


class CordonNode(Command, frozen=True):
    """Place no new tasks on a node; with `drain`, also move away the tasks that allow it."""

    node: NodeId
    drain: bool = False
    force: bool = False
    """Also drain suspended tasks: they start from the beginning on another node and lose their progress."""
    reason: str = ""
    """Why, for other people; empty: the reason given before is kept."""


class UncordonNode(Command, frozen=True):
    """Allow new tasks on a node again."""

    node: NodeId


class SetGpuHealth(Command, frozen=True):
    """Set whether a GPU is usable, used by another process, or broken."""

    node: NodeId
    gpu: int
    health: GpuHealth


# --- the cluster ------------------------------------------------------------------------------------------------------


class CreateCluster(Command, frozen=True):
    """Give a new journal the ID of its cluster."""

    cluster_id: str


class BeginEpoch(Command, frozen=True):
    """A scheduler takes over the cluster; nodes obey no earlier one from now on."""

    version: str
    above: int = 0
    """Use an epoch above this one, which the journal does not know; set by an operator to replace that scheduler."""
    origin: int = 0
    """A random number of the scheduler process."""
    offline_after_seconds: float = 0.0


class SkipTaskNumbers(Command, frozen=True):
    """A node knows this task, but the journal does not: assign no number up to it again."""

    last_task: TaskId


class EndEpoch(Command, frozen=True):
    """The scheduler stops on purpose for a while; it has told the nodes to wait for it this long."""

    absence_seconds: float


class RecordAccessChange(Command, frozen=True):
    """Record in the journal that a user or a token was changed, for the audit trail."""

    what: str
    subject: str


class SetTenant(Command, frozen=True):
    """Set the limits of a tenant."""

    tenant: Tenant


class SetSplit(Command, frozen=True):
    """Split the GPUs of the cluster between online and batch tasks."""

    split: Split


class ChangeSettings(Command, frozen=True):
    """Replace the settings of the engine."""

    settings: Settings
