"""A task: what a user submits."""

from collections.abc import Iterable, Iterator

import msgspec
from msgspec.structs import replace

from gpuyard.core.domain.notice import TaskNotice
from gpuyard.core.domain.remaining_time import RemainingTimeLevels
from gpuyard.core.domain.values import MILLI, Link, OnLost, Preemption, TaskClass, TaskId, TenantId, Value
from gpuyard.core.domain.workload import Forecast, WorkloadSpec

TaskRange = tuple[TaskId, TaskId]
"""Tasks with consecutive numbers: the first and the last number, both included."""
Prerequisite = tuple[TaskId, TaskId, bool]
"""A range of tasks that must have ended, and whether all of them must have succeeded."""


class Share(Value, frozen=True):
    """A part of one GPU. In quotas it counts as the larger of its compute fraction and its memory fraction."""

    fraction_milli: int = 0
    """Compute, in thousandths of the GPU; 0: only the memory is limited."""
    memory_mib: int = 0
    """Memory; 0: the same fraction of the GPU's memory as of its compute."""


class Console(Value, frozen=True):
    """A terminal of a command, or only its standard input, to which clients are attached while it runs."""

    terminal: bool = True
    """Its standard streams are a terminal; otherwise only its standard input is open."""
    columns: int = 80
    rows: int = 24
    linger_seconds: float | None = 900.0
    """How long it goes on without a client; None: for ever."""


class Resources(Value, frozen=True, cache_hash=True):
    """The resources one task requests. All fields except `nodes` apply to each of its nodes."""

    gpus: int = 0
    share: Share | None = None
    """A part of one GPU instead of whole GPUs; `gpus` is then 0."""
    nodes: int = 1
    """More than one: a gang, which starts on all nodes together or not at all."""
    whole_nodes: bool = False
    """Take all GPUs of one model on each node; `gpus` is then the minimum a node must have."""
    models: tuple[str, ...] = ()
    """Accepted GPU models, in any order; empty: any."""
    gpu_memory_mib: int = 0
    """Minimum memory of each GPU."""
    cpus: int = 0
    memory_mib: int = 0
    """Host memory."""
    labels: tuple[tuple[str, str], ...] = ()
    """Labels that a node must have, sorted."""
    link: Link = Link.ANY
    speeds: tuple[tuple[str, float], ...] = ()
    """Speed of the task by GPU model, sorted; only the ratios count. An unnamed model is as slow as the slowest named
    one. Empty: equally fast on all models."""
    account: tuple[str, str] | None = None
    """Tenant and user, if the scheduler maps neither to a system account; a node that requires an account must map one
    of them. None: no such restriction."""
    booking: int = 0
    """The booking whose GPUs the task uses while it lasts; 0: none."""

    def with_gpu_memory(self, mib: int) -> "Resources":
        """Return a copy with this much memory per GPU: the minimum of a whole GPU, or the memory of a share."""
        if self.share is None:
            return replace(self, gpu_memory_mib=mib)
        return replace(self, share=replace(self.share, memory_mib=mib))

    @property
    def gpu_memory_asked_mib(self) -> int:
        """The requested memory per GPU; 0: no request, or for a share the same fraction as its compute."""
        return self.gpu_memory_mib if self.share is None else self.share.memory_mib

    @property
    def all_gpus(self) -> float:
        """The number of GPUs requested on all nodes together; a share counts as its compute fraction."""
        return float(self.gpus * self.nodes) if self.share is None else self.share.fraction_milli / MILLI


class Estimate(Value, frozen=True):
    """The estimated run time of a task: the likely value and a 90 % interval.

    For a task with speeds, it is the run time on the fastest model that the task names.
    """

    seconds: float
    low_seconds: float
    high_seconds: float
    runs: int = 0
    """The number of similar runs the estimate is based on; 0: the submitter supplied it."""
    from_other_work: bool = False
    """Too few tasks of its user and kind had ended, so it says what other work of the cluster took."""


class CodeSnapshot(Value, frozen=True):
    """The code of a task as it was when the task was submitted."""

    manifest: str
    """The SHA-256 of the blob that lists its files."""
    commit: str = ""
    """The commit of the folder; empty: it is not in a repository."""
    dirty: bool = False
    """Whether the folder had changes that the commit does not have."""


class SubmitProcess(Value, frozen=True):
    """The process that submitted a task: what the task gets from it besides environment variables."""

    host: str = ""
    """Its machine; PATH is used as it is on that machine only. Empty: unknown."""
    python: str = ""
    """The Python of its virtual or conda environment, which must exist on the node. Empty: none."""
    umask: int | None = None
    """None: that of the node's supervisor."""
    limits: tuple[tuple[str, int], ...] = ()
    """Soft limits by name (nofile, stack, memlock, core), sorted; -1: unlimited. The node's hard limits apply."""


class TaskSpec(Value, frozen=True):
    """The specification of a task, fixed at submission."""

    tenant: TenantId
    resources: Resources
    name: str = ""
    user: str = ""
    project: str = ""
    description: str = ""
    task_class: TaskClass = TaskClass.BATCH
    priority: int = 50
    priority_in_words: bool = False
    """The priority was given as a word such as `high`, and is shown as that word while it still has that value."""
    command: tuple[str, ...] | str | None = None
    """An argument list, or a command line for the shell. None: the task is a lease."""
    env: tuple[tuple[str, str], ...] = ()
    work_dir: str = ""
    timeout_seconds: float | None = None
    """Maximum run time of one attempt; None: no limit."""
    deadline: float | None = None
    """The time at which the task is ended if it has not ended before; None: no deadline."""
    retries: int = 0
    """How often the task is retried after it fails. Lost nodes and preemptions do not count."""
    after_success: tuple[TaskId, ...] = ()
    """The task waits until these have succeeded, and is cancelled if one of them ends in any other way."""
    after_any: tuple[TaskId, ...] = ()
    """The task waits until these have ended with any result."""
    after_success_ranges: tuple[TaskRange, ...] = ()
    """`after_success` for consecutive numbers, such as the tasks of an array; the size is independent of the count."""
    after_any_ranges: tuple[TaskRange, ...] = ()
    array_index: int | None = None
    preemption: Preemption = Preemption.NEVER
    on_lost: OnLost = OnLost.RERUN
    estimate: Estimate | None = None
    remaining_time_levels: RemainingTimeLevels = msgspec.field(default=(), name="outlook")
    """The expected remaining time at each age; see `remaining_time`."""
    run_level: int | None = None
    """The level of a task that is never stopped, or that loses its progress when it is; None: see the level by age."""
    unpredictable: bool = False
    """Run times were hardly predictable when the task was submitted, so nodes are reserved for it much later."""
    kind_varies: bool = False
    """Some tasks of its kind have run much longer than most, so one that has run for a while is far from its end."""
    require_fit: bool = False
    """Refuse the task at once if no current node could ever hold it, instead of waiting for a suitable node to join."""
    secrets: tuple[str, ...] = ()
    """Names of environment variables whose values are sent only to the nodes that run the task."""
    work: WorkloadSpec | None = None
    """The computation of the task; None: not declared."""
    forecasts: tuple[Forecast, ...] = ()
    """Predictions for `work` at submission, one for each GPU model of the cluster that the task fits on."""
    model_name: str = ""
    """The machine-learning model that the task trains or serves, as named by the user."""
    grace_seconds: float | None = None
    """Time between SIGTERM and SIGKILL when an attempt is stopped; None: that of its node."""
    snapshot: CodeSnapshot | None = None
    """The code that the task runs in; None: the folder as it is."""
    files: tuple[tuple[str, str], ...] = ()
    """Blobs that the task finds as files, by name: pairs of a name and a SHA-256, sorted."""
    store_result: bool = False
    """Whether the file that the task leaves as its result is stored as a blob."""
    submit_process: SubmitProcess | None = None
    """None: not known, as for tasks that programs submit."""
    setup: str = ""
    """A line for the shell that runs before the command; its failure fails the task."""

    notify: tuple[TaskNotice, ...] = ()
    """Who is told when the task starts, ends or fails."""
    console: Console | None = None
    """Clients can be attached to its command; None: it reads nothing."""
    group: str = ""
    """Tasks of one user with the same group are one line of the queue, such as the calls of a map; empty: no group."""

    @property
    def has_prerequisites(self) -> bool:
        """Whether the task depends on other tasks."""
        return bool(self.after_success or self.after_success_ranges or self.after_any or self.after_any_ranges)

    def prerequisites(self) -> Iterator[Prerequisite]:
        """Iterate over all dependencies as ranges; a single task is a range of one."""
        for task in self.after_success:
            yield (task, task, True)
        for first, last in self.after_success_ranges:
            yield (first, last, True)
        for task in self.after_any:
            yield (task, task, False)
        for first, last in self.after_any_ranges:
            yield (first, last, False)

    def depends_on(self, number: TaskId) -> bool:
        """Whether the task depends on this task."""
        return any(first <= number <= last for first, last, _ in self.prerequisites())


def ranges_in(numbers: Iterable[TaskId], least: int) -> tuple[tuple[TaskId, ...], tuple[TaskRange, ...]]:
    """Split task numbers into single ones, in the given order, and ranges of at least `least` consecutive ones."""
    given = dict.fromkeys(numbers)
    ranges: list[TaskRange] = []
    if len(given) >= least:
        ordered = sorted(given)
        first = last = ordered[0]
        for number in [*ordered[1:], None]:  # None closes the last range
            if number is not None and number == last + 1:
                last = number
                continue
            if last - first + 1 >= least:
                ranges.append((first, last))
            if number is not None:
                first = last = number
    for first, last in ranges:
        for member in range(first, last + 1):
            del given[TaskId(member)]
    return tuple(given), tuple(ranges)


class RunLimit(Value, frozen=True):
    """How many tasks with consecutive numbers, those of an array or sweep, may run at the same time."""

    first: TaskId
    last: TaskId
    most: int
    """0: any number."""


class NewTask(Value, frozen=True):
    """A task to be submitted, with the number assigned to it."""

    id: TaskId
    spec: TaskSpec
