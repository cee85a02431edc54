"""Refusals: the reason why a request is rejected or a task waits, as a value with a code and a sentence.

    Refusal
    ├── Invalid    the request is wrong: nothing was changed; correct it and send it again
    ├── Conflict   the request contradicts the current state: nothing was changed
    ├── Never      no node or quota of the cluster is large enough; the task waits until nodes or limits change
    └── NotNow     the task waits; the engine tries again after events that can change the result, not on a timer

Programs use the class, the API shows its tag as the code, and users read `sentence()`.
"""

import re
from typing import ClassVar

from gpuyard.core.domain.instants import utc_text
from gpuyard.core.domain.values import NodeId, TaskClass, TaskId, TenantId, Value


class Refusal(Value, frozen=True, tag_field="code", tag=True):
    """Base of all refusals. `text` is the sentence, with the fields in braces."""

    text: ClassVar[str]

    @property
    def code(self) -> str:
        """The stable name on the API."""
        return type(self).__name__

    def sentence(self) -> str:
        """One sentence for the user."""
        return _spelled_out(self, self.text)


_ONE = re.compile(r"\b1 ((?:[a-z]+ )*)(GPU|CPU|node|task)s\b")
"""Makes the singular of "1 GPUs"."""


def _spelled_out(refusal: Refusal, text: str) -> str:
    fields = {name: _spoken(name, getattr(refusal, name)) for name in refusal.__struct_fields__}
    return _ONE.sub(r"1 \1\2", text.format(**fields)).replace(" 1 are in use", " 1 is in use")


def _spoken(name: str, value: object) -> object:
    if isinstance(value, tuple):
        before = "task-" if name == "tasks" else ""
        return ", ".join(f"{before}{item}" for item in value) or "none"
    if isinstance(value, float):
        return utc_text(value) if name.endswith("_at") else f"{value:g}"
    return value


class Invalid(Refusal, frozen=True):
    """The request is wrong."""


class Conflict(Refusal, frozen=True):
    """The request contradicts the current state."""


class Never(Refusal, frozen=True):
    """No current node or quota is large enough. An accepted task waits until this changes."""


class NotNow(Refusal, frozen=True):
    """The task cannot start now."""


# --- Invalid ----------------------------------------------------------------------------------------------------------


class NegativeCount(Invalid, frozen=True):
    """A count is below zero."""

    text = "{field} is {value}; it must not be negative."
    field: str
    value: float


class TooLarge(Invalid, frozen=True):
    """A count is above the limit."""

    text = "{field} is {value}; the maximum is {most}."
    field: str
    value: float
    most: int


class NothingAsked(Invalid, frozen=True):
    """The task requests neither GPUs nor CPUs."""

    text = "The task requests no GPU and no CPU. Request at least one of them."


class ShareOutOfRange(Invalid, frozen=True):
    """The share of a GPU is outside 1–1000 thousandths."""

    text = "The GPU share is {fraction_milli} thousandths; it must be between 1 and 1000. Request whole GPUs with gpus."
    fraction_milli: int


class ShareWithGpus(Invalid, frozen=True):
    """The task requests both a share and whole GPUs."""

    text = "The task requests a share of a GPU and {gpus} whole GPUs. Request only one of the two."
    gpus: int


class EmptyShare(Invalid, frozen=True):
    """The share has neither compute nor memory."""

    text = "The GPU share specifies neither compute nor memory. Specify at least one of them."


class ShareOfGang(Invalid, frozen=True):
    """The task requests a share on several nodes."""

    text = "A share of a GPU is on one node, but the task requests {nodes} nodes. Set nodes to 1."
    nodes: int


class NoNodes(Invalid, frozen=True):
    """The number of nodes is below 1."""

    text = "The task requests {nodes} nodes; the minimum is 1."
    nodes: int


class WholeNodesWithoutGpus(Invalid, frozen=True):
    """The task requests whole nodes without GPUs."""

    text = "whole_nodes allocates all GPUs of a node. Set gpus to the minimum number of GPUs that the node must have."


class PriorityOutOfRange(Invalid, frozen=True):
    """The priority is outside 0–100."""

    text = "The priority is {priority}; it must be between 0 and 100."
    priority: int


class WrongRemainingTimeLevels(Invalid, frozen=True):
    """The list of expected remaining times is malformed."""

    text = "remaining_time_levels must have at most {ages} levels, each between 0 and {last_level}."
    ages: int
    last_level: int


class WrongRunLevel(Invalid, frozen=True):
    """The level of the expected run time is out of range."""

    text = "run_level must be between 0 and {last_level}."
    last_level: int


class NotPositive(Invalid, frozen=True):
    """A time or weight is not above zero."""

    text = "{field} is {value}; it must be above zero."
    field: str
    value: float


class NotFinite(Invalid, frozen=True):
    """A number is infinite or NaN."""

    text = "{field} is not a finite number."
    field: str


class EstimateOutOfOrder(Invalid, frozen=True):
    """The range of an estimate does not contain its middle value."""

    text = (
        "The estimate is low {low_seconds} s, likely {seconds} s, high {high_seconds} s; "
        "each value must be at least the one before."
    )
    low_seconds: float
    seconds: float
    high_seconds: float


class NothingToExtend(Invalid, frozen=True):
    """The request contains neither a timeout nor a deadline."""

    text = "Specify timeout_seconds or deadline to extend the task."


class EmptyName(Invalid, frozen=True):
    """A required name is empty."""

    text = "{field} must not be empty."
    field: str


class EmptyCommand(Invalid, frozen=True):
    """The command has no words."""

    text = "The command is empty. Omit it to request a lease."


class DuplicateLabel(Invalid, frozen=True):
    """A label occurs twice."""

    text = "The label {label} occurs more than once."
    label: str


class SpeedOutOfRange(Invalid, frozen=True):
    """The speed on a GPU model is out of range."""

    text = (
        "The speed on {model} is {speed}; it must be between 0.000001 and 1000000. "
        "Only the ratios between GPU models matter."
    )
    model: str
    speed: float


class DuplicateSpeed(Invalid, frozen=True):
    """The speed on a GPU model occurs twice."""

    text = "The speed on {model} is given more than once."
    model: str


class NoTasks(Invalid, frozen=True):
    """The submission is empty."""

    text = "The submission contains no tasks."


class UnknownDependency(Invalid, frozen=True):
    """A dependency does not exist."""

    text = "task-{task} depends on task-{dependency}, which does not exist or was removed after it ended."
    task: TaskId
    dependency: TaskId


class DependencyCycle(Invalid, frozen=True):
    """Tasks depend on each other."""

    text = "These tasks depend on each other, so none of them can start: {tasks}."
    tasks: tuple[TaskId, ...]


class SplitDoesNotSum(Invalid, frozen=True):
    """Online and batch percent do not add up to the whole."""

    text = "online_percent {online_percent} and batch_percent {batch_percent} must add up to 1."
    online_percent: float
    batch_percent: float


class PercentOutOfRange(Invalid, frozen=True):
    """A percentage outside 0–1."""

    text = "{field} is {value}; it must be between 0 and 1."
    field: str
    value: float


class GuaranteeAboveMaximum(Invalid, frozen=True):
    """The guarantee of a tenant is above its maximum."""

    text = "The guarantee of tenant {tenant}, {guaranteed_gpus} GPUs, is above its maximum of {max_gpus}."
    tenant: TenantId
    guaranteed_gpus: int
    max_gpus: int


class UnknownPolicy(Invalid, frozen=True):
    """The policy does not exist."""

    text = "Unknown policy {name}. Available policies: {known}."
    name: str
    known: tuple[str, ...]


class UnknownScore(Invalid, frozen=True):
    """The placement score does not exist."""

    text = "Unknown placement score {name}. Available scores: {known}."
    name: str
    known: tuple[str, ...]


# --- Conflict ---------------------------------------------------------------------------------------------------------


class TaskIdTaken(Conflict, frozen=True):
    """The task number is already in use."""

    text = "Task number {task} is already in use."
    task: TaskId


class UnknownTask(Conflict, frozen=True):
    """The task does not exist."""

    text = "Task task-{task} does not exist."
    task: TaskId


class TaskIsOver(Conflict, frozen=True):
    """The task has ended."""

    text = "task-{task} has ended: {status}."
    task: TaskId
    status: str


class WrongPhase(Conflict, frozen=True):
    """The request is not possible in the current phase of the task."""

    text = "task-{task} is {phase}; {asked} requires a task that is {needed}."
    task: TaskId
    phase: str
    asked: str
    needed: str


class NotSuspendable(Conflict, frozen=True):
    """The task does not allow suspension."""

    text = (
        "task-{task} was submitted with preemption {preemption}; only tasks with preemption suspend can be suspended."
    )
    task: TaskId
    preemption: str


class SuspensionFailedBefore(Conflict, frozen=True):
    """An earlier suspension of the task failed."""

    text = 'task-{task} cannot be suspended. An earlier attempt on its node failed: "{message}".'
    task: TaskId
    message: str


class NotLonger(Conflict, frozen=True):
    """The extension does not raise the limit."""

    text = "The {field} of task-{task} can only be raised; {value} is not above the current one."
    task: TaskId
    field: str
    value: float


class StaleReport(Conflict, frozen=True):
    """The report concerns an attempt that has ended or is unknown."""

    text = "Attempt {attempt} of task-{task} has ended or received another request since; the report was ignored."
    task: TaskId
    attempt: int


class NotOnNode(Conflict, frozen=True):
    """The attempt does not run on the node that reports it."""

    text = "Attempt {attempt} of task-{task} is not on node {node}; the report was ignored."
    task: TaskId
    attempt: int
    node: NodeId


class UnknownNode(Conflict, frozen=True):
    """The node does not exist."""

    text = "Node {node} does not exist."
    node: NodeId


class UnknownGpu(Conflict, frozen=True):
    """The GPU does not exist."""

    text = "Node {node} has no GPU {gpu}; it has {count} GPUs, numbered from 0."
    node: NodeId
    gpu: int
    count: int


class TooFarAhead(Invalid, frozen=True):
    """A node reports a task number or an epoch that is implausibly high."""

    text = (
        "The {field} {value} was rejected: it is more than {most} above {known}, the highest value of this scheduler. "
        "If the work folder of the agent is damaged, start the agent with an empty one."
    )
    field: str
    value: int
    known: int
    most: int


class NodeChangedInUse(Conflict, frozen=True):
    """A node joined again with other properties while tasks use it."""

    text = "Node {node} joined again with other GPUs or resources while tasks use it. Drain or remove the node first."
    node: NodeId


class AttemptElsewhere(Conflict, frozen=True):
    """A node registers with an attempt that is active on other nodes."""

    text = (
        "Node {node} reports attempt {attempt} of task-{task}, which is active on {nodes}. If the node was renamed, it can "
        "join once its old name is lost or removed; otherwise start its agent with an empty work folder."
    )
    node: NodeId
    task: TaskId
    attempt: int
    nodes: tuple[NodeId, ...]


class AttemptNeverPlaced(Conflict, frozen=True):
    """A node registers with an attempt of this scheduler that was never placed."""

    text = (
        "Node {node} reports attempt {attempt} of task-{task}, which this scheduler has never placed. "
        "Start its agent with an empty work folder."
    )
    node: NodeId
    task: TaskId
    attempt: int


class NodeInUse(Conflict, frozen=True):
    """The node runs tasks, so it cannot be removed."""

    text = "Node {node} runs these tasks: {tasks}. Drain the node or stop its agent first."
    node: NodeId
    tasks: tuple[TaskId, ...]


class GangsElsewhere(Conflict, frozen=True):
    """The node is lost, but gangs that include it still run on other nodes."""

    text = "These gangs include node {node} and still run on other nodes: {tasks}. Cancel them or wait until they end."
    node: NodeId
    tasks: tuple[TaskId, ...]


class ClusterAlreadyFounded(Conflict, frozen=True):
    """The cluster already has an identity."""

    text = "This cluster already has the identity {cluster_id}."
    cluster_id: str


class QuotaForbids(Conflict, frozen=True):
    """The task is larger than the limit of its tenant."""

    text = (
        "The task needs {needed} GPUs{of_model}, but the limit of tenant {tenant} is {limit}. "
        "Request fewer GPUs or ask an administrator to raise the limit."
    )
    tenant: TenantId
    needed: float
    limit: int
    model: str = ""

    def sentence(self) -> str:
        """Name the GPU model if the limit is for one."""
        of_model = f" of model {self.model}" if self.model else ""
        spoken = self.text.format(needed=f"{self.needed:g}", of_model=of_model, tenant=self.tenant, limit=self.limit)
        return _ONE.sub(r"1 \1\2", spoken)


class QueueFull(Conflict, frozen=True):
    """The queue of the cluster is full."""

    text = (
        "{waiting} tasks wait, and {new} more would exceed the limit of {limit} (scheduler.queue_size). "
        "Submit again when some of them have started."
    )
    waiting: int
    new: int
    limit: int


class TooManyOpenTasks(Conflict, frozen=True):
    """The tenant has reached its limit of open tasks."""

    text = (
        "Tenant {tenant} has {open_tasks} open tasks, and {new} more would exceed its limit of {limit} (max_open_tasks of the "
        "tenant). Submit again when some of them have ended, or ask an administrator to raise the limit."
    )
    tenant: TenantId
    open_tasks: int
    new: int
    limit: int


class RunLimitsOverlap(Conflict, frozen=True):
    """A limit on running tasks is not for tasks of one array or sweep."""

    text = (
        "A limit for task-{first} to task-{last} is not possible: some of these tasks have another limit, are of another tenant, "
        "or are not part of the request."
    )
    first: TaskId
    last: TaskId


class UnknownBooking(Conflict, frozen=True):
    """The booking does not exist."""

    text = "booking-{booking} does not exist or has ended (see gpuyard bookings)."
    booking: int


class BookingOfOthers(Conflict, frozen=True):
    """The booking belongs to another tenant."""

    text = "booking-{booking} is not a booking of tenant {tenant}."
    booking: int
    tenant: TenantId


class BookingTooSmall(Conflict, frozen=True):
    """The task is larger than its booking on any node."""

    text = "The task needs {needed} GPUs on each of {nodes} nodes; booking-{booking} has {parts}."
    booking: int
    needed: int
    nodes: int
    parts: str


class TooLittleToBook(Conflict, frozen=True):
    """Too few GPUs are left for a booking."""

    text = "{asked} GPUs cannot be booked: {free} suitable GPUs are not booked in that time. Choose another time or fewer GPUs."
    asked: int
    free: int


class BookingAboveQuota(Conflict, frozen=True):
    """The booking, with the others of its tenant in that time, is larger than the limit of the tenant."""

    text = "{asked} GPUs cannot be booked: the limit of tenant {tenant} is {limit} GPUs."
    tenant: TenantId
    asked: int
    limit: int


class NodeBooked(Conflict, frozen=True):
    """A node for maintenance is booked in that time."""

    text = "Node {node} is booked by booking-{booking} in that time. Choose another time or cancel that booking."
    node: NodeId
    booking: int


class BookingTimes(Invalid, frozen=True):
    """The time of a booking is empty or over."""

    text = "The booking must end after its begin, and in the future."


class BookingTooLong(Invalid, frozen=True):
    """A booking is longer than the cluster allows."""

    text = "The booking is longer than {most} days, the maximum. Book a shorter time, or several times."
    days: float
    most: float


class BookingTooFar(Invalid, frozen=True):
    """A booking begins later than the cluster allows."""

    text = (
        "The booking begins more than {most} days from now, the latest that is allowed. Check the year, or book later."
    )
    days: float
    most: float


class MaintenanceWithoutNodes(Invalid, frozen=True):
    """A maintenance window names no node."""

    text = "A maintenance window needs at least one node (--node)."


class TooManyBookings(Conflict, frozen=True):
    """There are too many bookings."""

    text = "{limit} bookings exist, which is the maximum. Cancel one, or wait until one has ended."
    limit: int


# --- Never ------------------------------------------------------------------------------------------------------------


class NoNodesYet(Never, frozen=True):
    """The cluster has no nodes."""

    text = "No node has joined yet. Start `gpuyard agent` on a GPU host; nodes of a pool join automatically after they boot."


class UnknownGpuModel(Never, frozen=True):
    """No node has this GPU model."""

    text = "No node has a GPU of model {asked}. The cluster has {known}."
    asked: tuple[str, ...]
    known: tuple[str, ...]
    nearest: str = ""

    def sentence(self) -> str:
        """Suggest the nearest name if there is one."""
        hint = f" Did you mean {self.nearest}?" if self.nearest else ""
        return super().sentence() + hint


class GpuMemoryTooSmall(Never, frozen=True):
    """No GPU has enough memory."""

    text = "The task needs {needed_mib} MiB on each GPU; the largest suitable GPU has {largest_mib} MiB."
    needed_mib: int
    largest_mib: int


class WorkDoesNotFit(Never, frozen=True):
    """The lower bound of the predicted memory is above the memory of every GPU."""

    text = (
        "{model} is predicted to need {needed_mib} MiB on each GPU with batch size {batch}; the largest GPU that the task may use "
        "has {largest_mib} MiB."
    )
    model: str
    batch: int
    needed_mib: int
    largest_mib: int


class NodeTooSmall(Never, frozen=True):
    """No node has enough GPUs of one model."""

    text = "The task needs {needed} GPUs of one model on a node; the largest suitable node has {largest}."
    needed: int
    largest: int


class TooFewCpus(Never, frozen=True):
    """No node has enough CPUs."""

    text = "The task needs {needed} CPUs on a node; the largest suitable node has {largest}."
    needed: int
    largest: int


class HostMemoryTooSmall(Never, frozen=True):
    """No node has enough host memory."""

    text = "The task needs {needed_mib} MiB of host memory; the largest suitable node has {largest_mib} MiB."
    needed_mib: int
    largest_mib: int


class NoNodeWithLabels(Never, frozen=True):
    """No node has these labels."""

    text = "No suitable node has the labels {labels}."
    labels: tuple[str, ...]


class NoSystemUser(Never, frozen=True):
    """The user has no system account, and no agent runs tasks as its own user."""

    text = (
        "No node can run tasks of user {user}: the user has no system account, and no agent runs tasks as its own user. If agents "
        "run as root, an administrator sets an account for the user (`gpuyard users set {user} --system-user ACCOUNT`) or for "
        "the tenant (tenants.{tenant}.user in the settings of the scheduler). If all users are trusted, set "
        "executor.shared_user: true in the settings of the agents. Then submit the task again."
    )
    tenant: str
    user: str


class GangLargerThanCluster(Never, frozen=True):
    """The cluster has too few nodes."""

    text = "The task needs {needed} nodes at the same time; the cluster has {nodes} suitable nodes."
    needed: int
    nodes: int


class ClassQuotaTooSmall(Never, frozen=True):
    """The task is larger than the quota of its class."""

    text = (
        "The quota of {task_class} tasks is {limit} GPUs, and the task needs {needed}. It can only start if the quota changes "
        "(gpuyard quota --mode borrow) or GPUs are added."
    )
    task_class: TaskClass
    limit: int
    needed: float


class TenantQuotaTooSmall(Never, frozen=True):
    """The task is larger than the limit of its tenant, which was lowered after the task was accepted."""

    text = (
        "The limit of tenant {tenant} is {limit} GPUs, and the task needs {needed}. It can only start if the limit is raised "
        "(gpuyard tenants set {tenant} --max-gpus {enough})."
    )
    tenant: TenantId
    limit: int
    needed: float
    enough: int


class BookedNodesUnsuitable(Never, frozen=True):
    """The GPUs of the booking do not suit the task."""

    text = (
        "The task uses booking-{booking}, and no GPU of that booking has the model, memory, CPUs or labels that the task "
        "requests. It can start when the booking has ended."
    )
    booking: int


# --- NotNow -----------------------------------------------------------------------------------------------------------


class NoRoom(NotNow, frozen=True):
    """No suitable node has enough free GPUs."""

    text = "The task needs {needed} GPUs on one node; the emptiest of {nodes} suitable nodes has {free} free. It starts when enough are free."
    needed: float
    nodes: int
    free: int

    def sentence(self) -> str:
        """Say "the only suitable node" if there is one."""
        return super().sentence().replace("the emptiest of 1 suitable node has", "the only suitable node has")


class HeldBack(NotNow, frozen=True):
    """The task waits for faster GPUs although slower ones are free; this is decided again when GPUs become free."""

    text = (
        "Slower GPUs are free, but the task is expected to end earlier, or to delay others less, if it waits for faster ones. "
        "This is decided again when GPUs become free, and every {minutes} minutes."
    )
    minutes: float


class NoCpuRoom(NotNow, frozen=True):
    """GPUs are free, but CPUs or host memory on the same node are not."""

    text = "No suitable node has {cpus} free CPUs and {memory_mib} MiB of free host memory in addition to the GPUs."
    cpus: int
    memory_mib: int


class GangIncomplete(NotNow, frozen=True):
    """Not enough nodes are free for all members of the gang."""

    text = "The gang needs {needed} nodes at the same time; nodes with enough free GPUs now: {can_start}."
    needed: int
    can_start: int


class NodesClosed(NotNow, frozen=True):
    """The suitable nodes are lost or cordoned, or their GPUs are broken."""

    text = (
        "The task needs {needed} nodes; {open} of {nodes} suitable nodes can be used now. "
        "The others are offline or cordoned, or their GPUs are out of use."
    )
    needed: int
    nodes: int
    open: int

    def sentence(self) -> str:
        """Speak of all nodes if none can be used."""
        if self.open or self.needed > self.nodes:
            return super().sentence()
        if self.nodes == 1:
            return "The only suitable node cannot be used now: it is offline or cordoned, or its GPUs are out of use."
        return (
            f"None of {self.nodes} suitable nodes can be used now: they are offline or cordoned, "
            "or their GPUs are out of use."
        )


class ClassQuotaFull(NotNow, frozen=True):
    """The class has used its quota."""

    text = (
        "The quota of {task_class} tasks is {limit} GPUs; {used} are in use and the task needs {needed}. "
        "It starts when {task_class} tasks end or the quota is raised (gpuyard quota)."
    )
    task_class: TaskClass
    limit: int
    used: float
    needed: float


class TenantQuotaFull(NotNow, frozen=True):
    """The tenant has reached its GPU limit."""

    text = (
        "The limit of tenant {tenant} is {limit} GPUs; {used} are in use and the task needs {needed}. "
        "It starts when tasks of the tenant end or an administrator raises the limit."
    )
    tenant: TenantId
    limit: int
    used: float
    needed: float


class TenantModelQuotaFull(NotNow, frozen=True):
    """The tenant has reached its limit for the suitable GPU models."""

    text = "Tenant {tenant} has reached its limit for the suitable GPU models: {models}."
    tenant: TenantId
    models: tuple[str, ...]


class BudgetSpent(NotNow, frozen=True):
    """The tenant has used its GPU-hours of this period."""

    text = "Tenant {tenant} has used its {gpu_hours} GPU-hours of this period. The task waits for the next period."
    tenant: TenantId
    gpu_hours: float
    renews_at: float


class ReservedFor(NotNow, frozen=True):
    """The free GPUs are reserved for a task with precedence."""

    text = "The GPUs that the task could use are reserved for task-{task}, which is ahead of it."
    task: TaskId


class QuotaReservedFor(NotNow, frozen=True):
    """The quota has too little left for a task with precedence, which the task must not delay."""

    text = "The quota that the task needs is reserved for task-{task}, which is ahead of it and needs more."
    task: TaskId


class WaitingForTasks(NotNow, frozen=True):
    """Dependencies of the task have not ended."""

    text = "The task waits for {open} other tasks to end; the first is task-{first} (see gpuyard explain task-{first})."
    first: TaskId
    open: int

    def sentence(self) -> str:
        """Name the task if it is the only one."""
        one = f"The task waits for task-{self.first} to end (see gpuyard explain task-{self.first})."
        return one if self.open == 1 else super().sentence()


class RunLimitReached(NotNow, frozen=True):
    """As many tasks of the array or sweep run as may run at the same time, or will once there are GPUs for them."""

    text = (
        "Its array or sweep (task-{first} to task-{last}) is limited to {limit} running tasks; running now: {running}. It starts "
        "after those before it, or when the limit is raised (gpuyard max-running task-{task} N)."
    )
    task: TaskId
    first: TaskId
    last: TaskId
    limit: int
    running: int
    """Number of its tasks that run, are suspended, or have GPUs cleared for them."""


class OnHold(NotNow, frozen=True):
    """The task is on hold."""

    text = "The task is on hold. Release it with `gpuyard release task-{task}`."
    task: TaskId


class UnknownAttemptRuns(NotNow, frozen=True):
    """A node runs an attempt of the task that the scheduler does not know, as after a restored backup."""

    text = (
        "Node {node} runs an attempt of the task that this scheduler does not know; the task waits until that attempt has ended. "
        "To stop it, run gpuyard nodes stop-unknown-attempt {node} task-{task}."
    )
    task: TaskId
    node: NodeId


class BackingOff(NotNow, frozen=True):
    """The task failed and waits before the next attempt."""

    text = "The task waits for its retry delay before the next attempt."
    until: float


class WaitingForVictims(NotNow, frozen=True):
    """Other tasks are being preempted for this one."""

    text = "{count} tasks are being preempted so that the task can start on node {node}."
    count: int
    node: NodeId


class WaitingForMoves(NotNow, frozen=True):
    """Other tasks are being moved to make room for this one."""

    text = "To make room for the task on node {node}, these tasks are being moved to other nodes: {tasks}."
    tasks: tuple[TaskId, ...]
    node: NodeId


SHORTER = "With a shorter --timeout it may start earlier."
ENDLESS = "Its run time is not known well enough: with a --timeout it may start earlier."


class Booked(NotNow, frozen=True):
    """The free GPUs are booked, now or before the task could end."""

    text = (
        "The free GPUs are booked from {begins_at} to {ends_at} (booking-{booking}), and the task may run longer than until then. "
        "It starts after the booking or on other GPUs."
    )
    text_begun: ClassVar[str] = (
        "The free GPUs are booked until {ends_at} (booking-{booking}). It starts after the booking or on other GPUs."
    )
    booking: int
    begins_at: float
    ends_at: float
    has_begun: bool = False
    end_is_known: bool = True
    """It has a timeout, or an estimate that counts for bookings."""

    def sentence(self) -> str:
        """Return what would let it start earlier, too, unless the booking has begun."""
        return _before_or_since(self)


class BookingNotBegun(NotNow, frozen=True):
    """The booking of the task has not begun."""

    text = "The task uses booking-{booking}, which begins at {begins_at}."
    booking: int
    begins_at: float


class BookingFull(NotNow, frozen=True):
    """Other tasks use the GPUs of the booking."""

    text = "The task uses booking-{booking}, and too few of its {gpus} GPUs are free: tasks of the booking use them, or tasks that started before it."
    booking: int
    gpus: int


class UnderMaintenance(NotNow, frozen=True):
    """A suitable node is under maintenance, now or before the task could end."""

    text = (
        "Node {node} has a maintenance window from {begins_at} to {ends_at} (booking-{booking}), and the task may run into it. "
        "It starts after the window or on another node."
    )
    text_begun: ClassVar[str] = (
        "Node {node} is under maintenance until {ends_at} (booking-{booking}). It starts after the window or on another node."
    )
    node: NodeId
    booking: int
    begins_at: float
    ends_at: float
    has_begun: bool = False
    end_is_known: bool = True
    """It has a timeout, or an estimate that counts for bookings."""

    def sentence(self) -> str:
        """Return what would let it start earlier, too, unless the window has begun."""
        return _before_or_since(self)


def _before_or_since(refusal: Booked | UnderMaintenance) -> str:
    if refusal.has_begun:
        return _spelled_out(refusal, refusal.text_begun)
    return _spelled_out(refusal, f"{refusal.text} {SHORTER if refusal.end_is_known else ENDLESS}")


def _leaves(kind: type[Refusal]) -> list[type[Refusal]]:
    below = kind.__subclasses__()
    return [leaf for child in below for leaf in _leaves(child)] if below else [kind]


REFUSALS: tuple[type[Refusal], ...] = tuple(_leaves(Refusal))
"""Every refusal; a test compares the manual with this list."""
