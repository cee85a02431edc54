"""Refusals: a "no" is a value, and it says what would change its mind.

    Refusal
    ├── Invalid    the request itself is wrong: nothing was changed, correct it and send it again
    ├── Conflict   the request does not fit what is so now: nothing was changed
    ├── Never      no node or quota of the yard could ever do it; waits only for nodes or limits to change
    └── NotNow     it waits; the engine tries again on the events that can matter, not on a timer

The class is what programs act on, its tag is the code on the API, `sentence()` is what people read.
"""

import re
from typing import ClassVar

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
        fields = {name: _spoken(getattr(self, name)) for name in self.__struct_fields__}
        return _ONE.sub(r"1 \1\2", self.text.format(**fields))


_ONE = re.compile(r"\b1 ((?:[a-z]+ )*)(GPU|CPU|node|task)s\b")
"""One of a thing is not many."""


def _spoken(value: object) -> object:
    if isinstance(value, tuple):
        return ", ".join(str(item) for item in value) or "none"
    if isinstance(value, float):
        return f"{value:g}"
    return value


class Invalid(Refusal, frozen=True):
    """The request itself is wrong."""


class Conflict(Refusal, frozen=True):
    """The request does not fit what is so now."""


class Never(Refusal, frozen=True):
    """No node of the yard, as it is now, could ever do it. A task that was accepted waits until one joins that can."""


class NotNow(Refusal, frozen=True):
    """Not at the moment."""


# --- Invalid ----------------------------------------------------------------------------------------------------------


class NegativeCount(Invalid, frozen=True):
    """A count is below zero."""

    text = "{field} is {value}, and a count can not be negative."
    field: str
    value: float


class TooLarge(Invalid, frozen=True):
    """A count beyond anything that exists."""

    text = "{field} is {value}; more than {most} is not possible here."
    field: str
    value: float
    most: int


class NothingAsked(Invalid, frozen=True):
    """Neither GPUs nor CPUs."""

    text = "The task asks for no GPU and no CPU; ask for at least one of them."


class ShareOutOfRange(Invalid, frozen=True):
    """A share of more than a whole GPU, or of nothing."""

    text = "A share of {fraction_milli} thousandths of a GPU is not between 1 and 1000; ask for whole GPUs with gpus."
    fraction_milli: int


class ShareWithGpus(Invalid, frozen=True):
    """Both a share and whole GPUs."""

    text = "The task asks for a share of one GPU and for {gpus} whole ones; it can have one or the other."
    gpus: int


class EmptyShare(Invalid, frozen=True):
    """A share without compute and without memory."""

    text = "The share names neither compute nor memory; give it at least one."


class ShareOfGang(Invalid, frozen=True):
    """A share together with several nodes."""

    text = "A share of a GPU lies on one node, not on {nodes}."
    nodes: int


class NoNodes(Invalid, frozen=True):
    """A gang of no nodes."""

    text = "The task asks for {nodes} nodes; it needs at least one."
    nodes: int


class WholeNodesWithoutGpus(Invalid, frozen=True):
    """Whole nodes, and no GPU in them."""

    text = "whole_nodes takes all GPUs of a node; say with gpus how many it must have at least."


class PriorityOutOfRange(Invalid, frozen=True):
    """Priority outside 0–100."""

    text = "Priority {priority} is not between 0 and 100."
    priority: int


class WrongOutlook(Invalid, frozen=True):
    """An outlook that is no list of levels."""

    text = "The outlook must be at most {ages} levels, each between 0 and {last_level}."
    ages: int
    last_level: int


class NotPositive(Invalid, frozen=True):
    """A time or weight that must be above zero is not."""

    text = "{field} is {value}; it must be above zero."
    field: str
    value: float


class NotFinite(Invalid, frozen=True):
    """Infinity or not-a-number where a number is needed."""

    text = "{field} is not a finite number."
    field: str


class EstimateOutOfOrder(Invalid, frozen=True):
    """The band of an estimate does not hold its middle."""

    text = "The estimate says low {low_seconds} s, likely {seconds} s, high {high_seconds} s; they must rise in this order."
    low_seconds: float
    seconds: float
    high_seconds: float


class NothingToExtend(Invalid, frozen=True):
    """Neither a timeout nor a deadline."""

    text = "Name a timeout_seconds or a deadline to extend the task to."


class EmptyName(Invalid, frozen=True):
    """A name that must be there is missing."""

    text = "{field} is empty."
    field: str


class EmptyCommand(Invalid, frozen=True):
    """A command without words."""

    text = "The command is empty; leave it out to ask for a lease."


class DuplicateLabel(Invalid, frozen=True):
    """A label is named twice."""

    text = "The label {label} is named more than once."
    label: str


class SpeedOutOfRange(Invalid, frozen=True):
    """How fast a task is on a GPU model is no sensible number."""

    text = "The speed on {model} is {speed}; it must be between 0.000001 and 1000000, and only the ratios count."
    model: str
    speed: float


class DuplicateSpeed(Invalid, frozen=True):
    """The speed on a GPU model is said twice."""

    text = "The speed on {model} is given more than once."
    model: str


class NoTasks(Invalid, frozen=True):
    """An empty submission."""

    text = "The submission holds no task."


class UnknownDependency(Invalid, frozen=True):
    """A dependency nobody knows."""

    text = "Task {task} depends on task {dependency}, which is not known here (or ended too long ago)."
    task: TaskId
    dependency: TaskId


class DependencyCycle(Invalid, frozen=True):
    """Tasks that wait for each other."""

    text = "These tasks wait for each other and none could ever start: {tasks}."
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
    """A tenant is guaranteed more than it may have."""

    text = "Tenant {tenant} is guaranteed {guaranteed_gpus} GPUs and may have only {max_gpus}."
    tenant: TenantId
    guaranteed_gpus: int
    max_gpus: int


class UnknownPolicy(Invalid, frozen=True):
    """A policy that does not exist."""

    text = "There is no policy {name}; there are {known}."
    name: str
    known: tuple[str, ...]


class UnknownScore(Invalid, frozen=True):
    """A placement score that does not exist."""

    text = "There is no score {name}; there are {known}."
    name: str
    known: tuple[str, ...]


# --- Conflict ---------------------------------------------------------------------------------------------------------


class TaskIdTaken(Conflict, frozen=True):
    """A task number was used before."""

    text = "Task number {task} is taken."
    task: TaskId


class UnknownTask(Conflict, frozen=True):
    """A task nobody knows."""

    text = "There is no task {task}."
    task: TaskId


class TaskIsOver(Conflict, frozen=True):
    """The task ended before."""

    text = "Task {task} is over: {status}."
    task: TaskId
    status: str


class WrongPhase(Conflict, frozen=True):
    """What is asked does not go with what the task does at the moment."""

    text = "Task {task} is {phase}; {asked} needs it to be {needed}."
    task: TaskId
    phase: str
    asked: str
    needed: str


class NotSuspendable(Conflict, frozen=True):
    """The task did not allow to be suspended."""

    text = (
        "Task {task} was submitted with preemption {preemption}; only tasks with preemption suspend can be suspended."
    )
    task: TaskId
    preemption: str


class SuspensionFailedBefore(Conflict, frozen=True):
    """The node tried to suspend the task and could not."""

    text = 'Task {task} can not be suspended: its node tried before, and said "{message}".'
    task: TaskId
    message: str


class NotLonger(Conflict, frozen=True):
    """An extension that would end the task sooner."""

    text = "Task {task} may run longer than this {field} of {value} allows already; it can only be raised."
    task: TaskId
    field: str
    value: float


class StaleReport(Conflict, frozen=True):
    """A report about an attempt that is over or unknown."""

    text = (
        "Attempt {attempt} of task {task} is over, or was asked for something else since; the report changes nothing."
    )
    task: TaskId
    attempt: int


class NotOnNode(Conflict, frozen=True):
    """A report of a node that the attempt is not on."""

    text = "Attempt {attempt} of task {task} is not on node {node}; the report changes nothing."
    task: TaskId
    attempt: int
    node: NodeId


class UnknownNode(Conflict, frozen=True):
    """A node nobody knows."""

    text = "There is no node {node}."
    node: NodeId


class UnknownGpu(Conflict, frozen=True):
    """A GPU that does not exist."""

    text = "Node {node} has no GPU {gpu}; it has {count}."
    node: NodeId
    gpu: int
    count: int


class TooFarAhead(Invalid, frozen=True):
    """A node names a task or an epoch that can not have been."""

    text = (
        "The {field} {value} is more than {most} above {known}, the highest one known here, so it is taken for an error. "
        "Give that agent an empty work folder if its own was damaged."
    )
    field: str
    value: int
    known: int
    most: int


class NodeChangedInUse(Conflict, frozen=True):
    """A node came back with other properties while tasks run on it."""

    text = "Node {node} joined again with other GPUs or resources while tasks hold it; drain or remove it first."
    node: NodeId


class AttemptElsewhere(Conflict, frozen=True):
    """A node registers with an attempt that is active on other nodes."""

    text = (
        "Node {node} reports attempt {attempt} of task {task}, which is active on {nodes}. If the node was renamed, it is "
        "accepted when its old name is lost or removed; otherwise give its agent an empty work folder."
    )
    node: NodeId
    task: TaskId
    attempt: int
    nodes: tuple[NodeId, ...]


class AttemptNeverPlaced(Conflict, frozen=True):
    """A node registers with an attempt of this scheduler that was never placed."""

    text = (
        "Node {node} reports attempt {attempt} of task {task}, which this scheduler has never placed; "
        "give its agent an empty work folder."
    )
    node: NodeId
    task: TaskId
    attempt: int


class NodeInUse(Conflict, frozen=True):
    """A node that is there and runs something can not be taken out."""

    text = "Node {node} has these tasks: {tasks}; drain it, or stop its agent first."
    node: NodeId
    tasks: tuple[TaskId, ...]


class GangsElsewhere(Conflict, frozen=True):
    """A lost node can not be taken out while gangs of it run on other nodes."""

    text = "Gangs of node {node} still run on other nodes: {tasks}; cancel them or let them end first."
    node: NodeId
    tasks: tuple[TaskId, ...]


class AlreadyFounded(Conflict, frozen=True):
    """A second founding."""

    text = "This yard was founded before, as {yard}."
    yard: str


class QuotaForbids(Conflict, frozen=True):
    """The tenant's own limit is smaller than the task."""

    text = (
        "The task needs {needed} GPUs{of_model} and tenant {tenant} may have no more than {limit}; "
        "ask for fewer, or have the limit raised."
    )
    tenant: TenantId
    needed: float
    limit: int
    model: str = ""

    def sentence(self) -> str:
        """Name the model only where the limit is for one."""
        of_model = f" of model {self.model}" if self.model else ""
        spoken = self.text.format(needed=f"{self.needed:g}", of_model=of_model, tenant=self.tenant, limit=self.limit)
        return _ONE.sub(r"1 \1\2", spoken)


class QueueFull(Conflict, frozen=True):
    """As many tasks wait as may wait in the whole yard."""

    text = (
        "{waiting} tasks wait, and {new} more would be above the limit of {limit} (scheduler.queue_size); "
        "submit again when some of them have started."
    )
    waiting: int
    new: int
    limit: int


class TooManyOpenTasks(Conflict, frozen=True):
    """The tenant has as many tasks that have not ended as it may have."""

    text = (
        "Tenant {tenant} has {open_tasks} tasks that have not ended, and {new} more would be above its limit of {limit} "
        "(max_open_tasks of the tenant); submit again when some of them have ended, or have the limit raised."
    )
    tenant: TenantId
    open_tasks: int
    new: int
    limit: int


# --- Never ------------------------------------------------------------------------------------------------------------


class NoNodesYet(Never, frozen=True):
    """The yard is empty."""

    text = "No node has joined yet. Start `gpuyard agent` on a GPU host; nodes of a pool join by themselves once they are booted."


class UnknownGpuModel(Never, frozen=True):
    """No node has this model."""

    text = "No node has a GPU of model {asked}; the models here are {known}."
    asked: tuple[str, ...]
    known: tuple[str, ...]
    nearest: str = ""

    def sentence(self) -> str:
        """With the nearest name, where there is one."""
        hint = f" Did you mean {self.nearest}?" if self.nearest else ""
        return super().sentence() + hint


class GpuMemoryTooSmall(Never, frozen=True):
    """No card is large enough."""

    text = "The task needs {needed_mib} MiB on each GPU; the largest suitable GPU has {largest_mib}."
    needed_mib: int
    largest_mib: int


class WorkDoesNotFit(Never, frozen=True):
    """Even the low side of the memory that its work is foreseen to need is more than any card has."""

    text = (
        "{model} needs about {needed_mib} MiB on each GPU at batch {batch}; the largest GPU here that it may use has "
        "{largest_mib}."
    )
    model: str
    batch: int
    needed_mib: int
    largest_mib: int


class NodeTooSmall(Never, frozen=True):
    """No node has so many GPUs of one model."""

    text = "The task needs {needed} GPUs of one model on a node; the largest suitable node has {largest}."
    needed: int
    largest: int


class TooFewCpus(Never, frozen=True):
    """No node has so many CPUs."""

    text = "The task needs {needed} CPUs on a node; the largest suitable node has {largest}."
    needed: int
    largest: int


class HostMemoryTooSmall(Never, frozen=True):
    """No node has so much host memory."""

    text = "The task needs {needed_mib} MiB of host memory; the largest suitable node has {largest_mib}."
    needed_mib: int
    largest_mib: int


class NoNodeWithLabels(Never, frozen=True):
    """No node carries these labels."""

    text = "No suitable node carries the labels {labels}."
    labels: tuple[str, ...]


class NoSystemUser(Never, frozen=True):
    """The task is mapped to no system account that it could run as, and no node shares its agent's own."""

    text = (
        "No present node runs tasks of user {user}: agents share their own system account with nobody, and {user} is mapped "
        "to none. With agents that run as root, an administrator maps the user with `gpuyard users set {user} --system-user "
        "ACCOUNT`, or the whole tenant {tenant} with tenants.{tenant}.user in the scheduler's settings. Where everybody is "
        "trusted, executor.shared_user: true in the agent's settings lets tasks run as the agent's own user. Then submit it again."
    )
    tenant: str
    user: str


class GangLargerThanYard(Never, frozen=True):
    """More nodes than there are."""

    text = "The task needs {needed} nodes at once; the yard has {nodes} that could take part."
    needed: int
    nodes: int


class ClassQuotaTooSmall(Never, frozen=True):
    """The task needs more than the whole part of its class."""

    text = (
        "{task_class} work may use {limit} GPUs of this yard and the task needs {needed}: it never starts, unless the "
        "split changes (gpuyard quota --mode borrow) or GPUs are added."
    )
    task_class: TaskClass
    limit: int
    needed: float


class TenantQuotaTooSmall(Never, frozen=True):
    """The task needs more than its tenant may have; the limit was lowered after the task was accepted."""

    text = (
        "Tenant {tenant} may use {limit} GPUs and the task needs {needed}: it never starts, unless the limit is raised "
        "(gpuyard tenants set {tenant} --max-gpus {enough})."
    )
    tenant: TenantId
    limit: int
    needed: float
    enough: int


# --- NotNow -----------------------------------------------------------------------------------------------------------


class NoRoom(NotNow, frozen=True):
    """Every node that could hold it is too full."""

    text = "It needs {needed} GPUs on one node; the emptiest of {nodes} suitable nodes has {free} free."
    needed: float
    nodes: int
    free: int

    def sentence(self) -> str:
        """One node is not the emptiest of many."""
        return super().sentence().replace("the emptiest of 1 suitable node has", "the only suitable node has")


class HeldBack(NotNow, frozen=True):
    """The policy's advisor keeps it for something better; it is asked again when GPUs are freed."""

    text = (
        "GPUs are free for it, and the advisor of the policy expects that all are done sooner if it waits for others; "
        "it is looked at again when GPUs are freed, and every {minutes} minutes."
    )
    minutes: float


class NoCpuRoom(NotNow, frozen=True):
    """GPUs would be free, CPUs or host memory beside them are not."""

    text = "No suitable node has {cpus} CPUs and {memory_mib} MiB of host memory free beside the GPUs."
    cpus: int
    memory_mib: int


class GangIncomplete(NotNow, frozen=True):
    """Not all parts of a gang find room."""

    text = "The gang needs {needed} nodes at once and {can_start} are free enough now."
    needed: int
    can_start: int


class NodesClosed(NotNow, frozen=True):
    """The nodes that could hold it are lost, cordoned or have broken GPUs."""

    text = (
        "It needs {needed} nodes; of {nodes} that could hold it, {open} can be used at the moment: "
        "others are offline, cordoned or have GPUs that are out of use."
    )
    needed: int
    nodes: int
    open: int


class ClassQuotaFull(NotNow, frozen=True):
    """The class uses its part of the yard."""

    text = "{task_class} work may use {limit} GPUs, uses {used} and this needs {needed} more."
    task_class: TaskClass
    limit: int
    used: float
    needed: float


class TenantQuotaFull(NotNow, frozen=True):
    """The tenant uses all it may have."""

    text = "Tenant {tenant} may use {limit} GPUs, uses {used} and this needs {needed} more."
    tenant: TenantId
    limit: int
    used: float
    needed: float


class TenantModelQuotaFull(NotNow, frozen=True):
    """The tenant uses all it may have of the models that would do."""

    text = "Tenant {tenant} uses all it may have of the GPU models that would do: {models}."
    tenant: TenantId
    models: tuple[str, ...]


class BudgetSpent(NotNow, frozen=True):
    """The tenant's GPU-hours of this period are used up."""

    text = "Tenant {tenant} has used its {gpu_hours} GPU-hours of this period, and waits for the next one."
    tenant: TenantId
    gpu_hours: float
    renews_at: float


class ReservedFor(NotNow, frozen=True):
    """There would be room, but it is promised to a task that goes before."""

    text = "The room it would fit in is reserved for task {task}, which goes before it."
    task: TaskId


class QuotaReservedFor(NotNow, frozen=True):
    """The quota has too little left for a task with precedence, which the task must not delay."""

    text = "The quota that the task needs is reserved for task {task}, which is ahead of it and needs more."
    task: TaskId


class WaitingForTasks(NotNow, frozen=True):
    """Its dependencies are not over."""

    text = "It waits for {open} other tasks to end, the first of them is task {first}."
    first: TaskId
    open: int

    def sentence(self) -> str:
        """One is not the first of many."""
        return f"It waits for task {self.first} to end." if self.open == 1 else super().sentence()


class OnHold(NotNow, frozen=True):
    """Somebody holds it."""

    text = "It is on hold until somebody releases it."


class StrayRuns(NotNow, frozen=True):
    """A node runs an attempt of it that the scheduler does not know, as after a restored backup."""

    text = (
        "Node {node} runs an attempt of it that this scheduler does not know, so it waits until that has ended. "
        "To end that attempt: gpuyard nodes stop-stray {node} task-{task}."
    )
    task: TaskId
    node: NodeId


class BackingOff(NotNow, frozen=True):
    """It failed and waits a little before the next attempt."""

    text = "It waits a little before the next attempt."
    until: float


class WaitingForVictims(NotNow, frozen=True):
    """Others are being stopped for it."""

    text = "{count} tasks are being stopped so that it can start on {node}."
    count: int
    node: NodeId


def _leaves(kind: type[Refusal]) -> list[type[Refusal]]:
    below = kind.__subclasses__()
    return [leaf for child in below for leaf in _leaves(child)] if below else [kind]


REFUSALS: tuple[type[Refusal], ...] = tuple(_leaves(Refusal))
"""Every refusal there is; tests hold the manual and this list together."""
