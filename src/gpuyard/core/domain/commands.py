"""Commands: what the outside asks the engine to do or reports to it. Each is answered by events or by a refusal."""

from gpuyard.core.domain.actual import Actual
from gpuyard.core.domain.node import NodeSpec
from gpuyard.core.domain.placement import Slice
from gpuyard.core.domain.settings import Settings
from gpuyard.core.domain.task import Estimate, NewTask
from gpuyard.core.domain.tenant import Split, Tenant
from gpuyard.core.domain.values import AttemptRef, GpuHealth, NodeId, Outcome, TaskId, Value


class Command(Value, frozen=True):
    """Base of all commands."""


class SubmitTasks(Command, frozen=True):
    """Accept all of these or none. They may depend on each other in any order."""

    tasks: tuple[NewTask, ...]
    key: str = ""
    """The client's name for this request: said twice, it is accepted once."""
    digest: str = ""
    """Of the request's body: under one key it must be the same."""


class CancelTask(Command, frozen=True):
    """End a task, whatever it does at the moment."""

    task: TaskId


class HoldTask(Command, frozen=True):
    """Keep a waiting task out of the queue."""

    task: TaskId


class ReleaseTask(Command, frozen=True):
    """Let a held task go on."""

    task: TaskId


class SuspendTask(Command, frozen=True):
    """Move a running task to host memory and leave it there until `ResumeTask`."""

    task: TaskId


class ResumeTask(Command, frozen=True):
    """Let a task that was suspended on request go on."""

    task: TaskId


class ChangePriority(Command, frozen=True):
    """Give a task another priority, within its class."""

    task: TaskId
    priority: int


class ReviseEstimate(Command, frozen=True):
    """Say anew how long a task is thought to run."""

    task: TaskId
    estimate: Estimate | None


class ExtendTask(Command, frozen=True):
    """Let a lease or a run last longer than it was to. What is not named stays as it is."""

    task: TaskId
    timeout_seconds: float | None = None
    """Longest run of one attempt from now on, counted from its start."""
    deadline: float | None = None


# --- reports of nodes -------------------------------------------------------------------------------------------------


class ReportStarted(Command, frozen=True):
    """The attempt runs, or its part on one node does; a gang runs when all of its parts do."""

    task: TaskId
    attempt: int
    node: NodeId | None = None
    """Which part; none: all of it."""
    origin: int = 0
    """Of the scheduler that placed it, here and in all reports."""
    started_at: float | None = None
    """When its process started; none: now."""


class ReportSuspended(Command, frozen=True):
    """The attempt, or its part on one node, is in host memory, its GPUs are free."""

    task: TaskId
    attempt: int
    round: int
    """Which suspension of the attempt this is about: the number it was asked for under."""
    node: NodeId | None = None
    origin: int = 0


class ReportNotSuspended(Command, frozen=True):
    """The attempt, or its part on one node, could not be moved to host memory and runs on."""

    task: TaskId
    attempt: int
    round: int
    message: str = ""
    """Why not, one sentence."""
    node: NodeId | None = None
    origin: int = 0


class ReportResumed(Command, frozen=True):
    """The attempt, or its part on one node, runs again."""

    task: TaskId
    attempt: int
    round: int
    """Of the suspension it comes back from."""
    node: NodeId | None = None
    origin: int = 0


class ReportNotResumed(Command, frozen=True):
    """The attempt, or its part on one node, could not go on and is gone: the node has ended what was left of it."""

    task: TaskId
    attempt: int
    round: int
    message: str = ""
    node: NodeId | None = None
    origin: int = 0


class ReportEnded(Command, frozen=True):
    """The attempt, or its part on one node, is over."""

    task: TaskId
    attempt: int
    outcome: Outcome
    exit_code: int | None = None
    node: NodeId | None = None
    """Which part; none: all of it."""
    signal: int | None = None
    """Which signal ended it."""
    message: str = ""
    """What the node has to say about it, one sentence."""
    actual: Actual | None = None
    """What it took of its GPUs, as far as the node has measured it."""
    origin: int = 0
    ended_at: float | None = None
    """When its process ended; none: now."""


# --- nodes ------------------------------------------------------------------------------------------------------------


class JoinNode(Command, frozen=True):
    """A node says what it has: a new one, or a known one that may have changed or was lost."""

    node: NodeSpec
    attempts: tuple[AttemptRef, ...] = ()
    """The attempts it still has. What a lost node may have gone on with, and has not, is free by that."""
    running: tuple[AttemptRef, ...] = ()
    """Those of them that run: one whose task still waits is taken back."""
    parts: tuple[tuple[AttemptRef, Slice], ...] = ()
    """What each of them holds, as its agent says: taken where the attempt is not known here."""
    complete: bool = False
    """That is all it has: whatever else is thought to be there is gone."""
    instance: str = ""
    boot: str = ""
    ended: tuple[AttemptRef, ...] = ()
    """Attempts that are over there and whose ends are still to be reported."""


class StopNode(Command, frozen=True):
    """The agent of a node is stopped on purpose, and says within how long it will be back."""

    node: NodeId
    back_within_seconds: float


class LoseNode(Command, frozen=True):
    """A node has not been heard of for too long."""

    node: NodeId


class ReturnNode(Command, frozen=True):
    """A lost node is back, with what it ran."""

    node: NodeId
    attempts: tuple[AttemptRef, ...] = ()
    """The attempts it still has."""
    running: tuple[AttemptRef, ...] = ()


class RemoveNode(Command, frozen=True):
    """Take a node out of the cluster: one that runs nothing, or a lost one, whose tasks count as lost with it."""

    node: NodeId


class CordonNode(Command, frozen=True):
    """Place nothing new on a node; with `drain`, also move away what allows it."""

    node: NodeId
    drain: bool = False
    force: bool = False
    """Drain what is suspended there, too: it starts over elsewhere, and what it had done is lost."""


class UncordonNode(Command, frozen=True):
    """Open a node again."""

    node: NodeId


class SetGpuHealth(Command, frozen=True):
    """A GPU is usable, used from outside, or broken."""

    node: NodeId
    gpu: int
    health: GpuHealth


# --- the cluster ------------------------------------------------------------------------------------------------------


class CreateCluster(Command, frozen=True):
    """Begin a journal."""

    cluster_id: str


class BeginEpoch(Command, frozen=True):
    """A scheduler takes over: from now on only its word counts."""

    version: str
    above: int = 0
    """An operator says that this scheduler goes before one of this epoch, which the journal does not know."""
    origin: int = 0
    """Drawn at random by the scheduler's process."""
    offline_after_seconds: float = 0.0


class SkipTaskNumbers(Command, frozen=True):
    """A node has heard of this task, which the journal does not know: no number up to it is given out again."""

    last_task: TaskId


class EndEpoch(Command, frozen=True):
    """A scheduler stops for a while, on purpose, and has told the nodes how long to wait."""

    absence_seconds: float


class RecordAccessChange(Command, frozen=True):
    """Write down that a user or a token was changed, for those who ask later who did it."""

    what: str
    subject: str


class SetTenant(Command, frozen=True):
    """Give a tenant these limits."""

    tenant: Tenant


class SetSplit(Command, frozen=True):
    """Split the cluster between online and batch work."""

    split: Split


class ChangeSettings(Command, frozen=True):
    """Decide by other settings from now on."""

    settings: Settings
