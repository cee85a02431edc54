"""A task: what a user submits."""

from collections.abc import Iterable, Iterator

from msgspec.structs import replace

from gpuyard.core.domain.remaining_time import RemainingTimeLevels
from gpuyard.core.domain.values import MILLI, Link, OnLost, Preemption, TaskClass, TaskId, TenantId, Value
from gpuyard.core.domain.workload import Forecast, WorkloadSpec

TaskRange = tuple[TaskId, TaskId]
"""Tasks with consecutive numbers: the first and the last of them."""
Prerequisite = tuple[TaskId, TaskId, bool]
"""A range of tasks that must have ended, and whether all of them must have succeeded."""


class Share(Value, frozen=True):
    """A part of one GPU. The larger of its two sides is what it counts for in quotas."""

    fraction_milli: int = 0
    """Compute, in thousandths of the GPU; 0: not limited, only the memory is."""
    memory_mib: int = 0
    """Memory; 0: the same fraction of the card's memory as of its compute."""


class Resources(Value, frozen=True, cache_hash=True):
    """What one task needs to run. Everything but `nodes` is for each node it runs on."""

    gpus: int = 0
    share: Share | None = None
    """Part of one GPU instead of whole ones; then `gpus` is 0."""
    nodes: int = 1
    """More than one: a gang, which starts on all of them together or not at all."""
    whole_nodes: bool = False
    """Take every GPU of each node, however many that is; then `gpus` is the least a node must have."""
    models: tuple[str, ...] = ()
    """Acceptable GPU models, in any order; empty: any."""
    gpu_memory_mib: int = 0
    """Least memory of each GPU."""
    cpus: int = 0
    memory_mib: int = 0
    """Host memory."""
    labels: tuple[tuple[str, str], ...] = ()
    """Labels a node must carry, sorted."""
    link: Link = Link.ANY
    speeds: tuple[tuple[str, float], ...] = ()
    """How fast it is on GPU models, sorted; only their ratios count. A model that is not named is as slow as the slowest
    that is; empty: it is as fast on all."""
    account: tuple[str, str] | None = None
    """Tenant and user of a task that the scheduler maps to no system account: a node must map one of them, or none."""

    def with_gpu_memory(self, mib: int) -> "Resources":
        """The same with so much memory on each GPU: the least a whole one has, or what a share may use."""
        if self.share is None:
            return replace(self, gpu_memory_mib=mib)
        return replace(self, share=replace(self.share, memory_mib=mib))

    @property
    def gpu_memory_asked_mib(self) -> int:
        """What it asks for on each GPU; 0: nothing, or the part of a card that its share is."""
        return self.gpu_memory_mib if self.share is None else self.share.memory_mib

    @property
    def all_gpus(self) -> float:
        """How many GPUs it asks for on all its nodes; a share counts as its part of one."""
        return float(self.gpus * self.nodes) if self.share is None else self.share.fraction_milli / MILLI


class Estimate(Value, frozen=True):
    """How long a task is thought to run: the likely value, and a band that nine of ten stay in.

    A task with speeds runs so long on the fastest model it names.
    """

    seconds: float
    low_seconds: float
    high_seconds: float
    runs: int = 0
    """How many runs of its kind it was predicted from; 0: whoever submitted the task said so."""


class TaskSpec(Value, frozen=True):
    """Everything a task is, fixed when it is submitted."""

    tenant: TenantId
    resources: Resources
    name: str = ""
    user: str = ""
    project: str = ""
    description: str = ""
    task_class: TaskClass = TaskClass.BATCH
    priority: int = 50
    priority_in_words: bool = False
    """It was given as `high` or `low`, and is told so while it is what the word means."""
    command: tuple[str, ...] | str | None = None
    """An argument list, a line for the shell, or nothing: then the task is a lease."""
    env: tuple[tuple[str, str], ...] = ()
    work_dir: str = ""
    timeout_seconds: float | None = None
    """Longest run of one attempt."""
    deadline: float | None = None
    """The instant by which it must have ended; a task that has not is ended then."""
    retries: int = 0
    """Further attempts after its own failures. Lost nodes and preemptions do not count."""
    after_success: tuple[TaskId, ...] = ()
    """Waits until these succeeded; cancelled when one of them ends in any other way."""
    after_any: tuple[TaskId, ...] = ()
    """Waits until these ended, however they did."""
    after_success_ranges: tuple[TaskRange, ...] = ()
    """`after_success` for consecutive numbers, such as the tasks of an array: the size does not depend on the count."""
    after_any_ranges: tuple[TaskRange, ...] = ()
    array_index: int | None = None
    preemption: Preemption = Preemption.NEVER
    on_lost: OnLost = OnLost.RERUN
    estimate: Estimate | None = None
    outlook: RemainingTimeLevels = ()
    """How likely it is to end soon, at each age."""
    require_fit: bool = False
    """Refuse it at once if no node of today could ever hold it, instead of waiting for one that joins."""
    secrets: tuple[str, ...] = ()
    """Names of environment variables whose values only the nodes that run it are told."""
    work: WorkloadSpec | None = None
    """What it computes."""
    forecasts: tuple[Forecast, ...] = ()
    """What that was foreseen to take when the task came, on each model of GPU of the yard that fits."""
    model_name: str = ""
    """Which machine-learning model it trains or serves, in the user's words."""

    @property
    def has_prerequisites(self) -> bool:
        """Whether it waits for other tasks."""
        return bool(self.after_success or self.after_success_ranges or self.after_any or self.after_any_ranges)

    def prerequisites(self) -> Iterator[Prerequisite]:
        """Everything it waits for, as ranges; a single task is a range of one."""
        for task in self.after_success:
            yield (task, task, True)
        for first, last in self.after_success_ranges:
            yield (first, last, True)
        for task in self.after_any:
            yield (task, task, False)
        for first, last in self.after_any_ranges:
            yield (first, last, False)

    def depends_on(self, number: TaskId) -> bool:
        """Whether it waits for this task."""
        return any(first <= number <= last for first, last, _ in self.prerequisites())


def ranges_in(numbers: Iterable[TaskId], least: int) -> tuple[tuple[TaskId, ...], tuple[TaskRange, ...]]:
    """Task numbers as single ones, in the order given, and as ranges of at least so many consecutive ones."""
    given = dict.fromkeys(numbers)
    ranges: list[TaskRange] = []
    if len(given) >= least:
        ordered = sorted(given)
        first = last = ordered[0]
        for number in [*ordered[1:], None]:
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


class NewTask(Value, frozen=True):
    """A task with the number it is to have."""

    id: TaskId
    spec: TaskSpec
