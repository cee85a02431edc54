"""Commands: what the outside asks the engine to do or reports to it. Each is answered by facts or by a refusal."""

from gpuyard.domain.node import NodeSpec
from gpuyard.domain.settings import Settings
from gpuyard.domain.task import Estimate, NewTask
from gpuyard.domain.tenant import Split, Tenant
from gpuyard.domain.values import GpuHealth, NodeId, Outcome, TaskId, Value


class Command(Value):
    """Base of all commands."""


class SubmitTasks(Command):
    """Accept all of these or none. They may depend on each other in any order."""

    tasks: tuple[NewTask, ...]


class CancelTask(Command):
    """End a task, whatever it does at the moment."""

    task: TaskId


class HoldTask(Command):
    """Keep a waiting task out of the queue."""

    task: TaskId


class ReleaseTask(Command):
    """Let a held task go on."""

    task: TaskId


class SuspendTask(Command):
    """Move a running task to host memory and leave it there until `ResumeTask`."""

    task: TaskId


class ResumeTask(Command):
    """Let a task that was suspended on request go on."""

    task: TaskId


class ChangePriority(Command):
    """Give a task another priority, within its class."""

    task: TaskId
    priority: int


class ReviseEstimate(Command):
    """Say anew how long a task is thought to run."""

    task: TaskId
    estimate: Estimate | None


# --- reports of nodes -------------------------------------------------------------------------------------------------


class ReportStarted(Command):
    """The attempt runs (a gang: all of it)."""

    task: TaskId
    attempt: int


class ReportSuspended(Command):
    """The attempt is in host memory, its GPUs are free."""

    task: TaskId
    attempt: int


class ReportResumed(Command):
    """The attempt runs again."""

    task: TaskId
    attempt: int


class ReportEnded(Command):
    """The attempt, or its part on one node, is over."""

    task: TaskId
    attempt: int
    outcome: Outcome
    exit_code: int | None = None
    node: NodeId | None = None
    """Which part; none: all of it."""


# --- nodes ------------------------------------------------------------------------------------------------------------


class JoinNode(Command):
    """A node says what it has: a new one, or a known one that may have changed."""

    node: NodeSpec


class LoseNode(Command):
    """A node has not been heard of for too long."""

    node: NodeId


class ReturnNode(Command):
    """A lost node is back, with what it ran."""

    node: NodeId


class RemoveNode(Command):
    """Take a node out of the yard; what runs there counts as lost."""

    node: NodeId


class CordonNode(Command):
    """Place nothing new on a node; with `drain`, also move away what allows it."""

    node: NodeId
    drain: bool = False


class UncordonNode(Command):
    """Open a node again."""

    node: NodeId


class SetGpuHealth(Command):
    """A GPU is usable, used from outside, or broken."""

    node: NodeId
    gpu: int
    health: GpuHealth


# --- the yard ---------------------------------------------------------------------------------------------------------


class FoundYard(Command):
    """Begin a journal."""

    yard: str


class SetTenant(Command):
    """Give a tenant these limits."""

    tenant: Tenant


class SetSplit(Command):
    """Split the yard between online and batch work."""

    split: Split


class ChangeSettings(Command):
    """Decide by other settings from now on."""

    settings: Settings
