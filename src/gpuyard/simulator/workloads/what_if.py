"""The workload of a journal with one thing changed: another quota, other nodes, other limits, another mix of tasks.

    quota         one split between the classes from the beginning; recorded changes of the split are left out
    cluster       other nodes instead of the recorded ones, which neither fail nor leave
    add_nodes     more nodes from the beginning;  remove_nodes: recorded nodes that never join
    tenants       limits, weights and budgets of tenants; their other limits stay as recorded
    mix           factors for the number of tasks, of all or of a tenant, user or class
    resample      draws the tasks with replacement, for confidence intervals over several seeds

New nodes are like the recorded ones: CPUs, host memory, GPU memory and labels are those of a recorded node of the same
GPU model, in proportion to the number of GPUs.

Tasks that depend on each other are kept, left out or repeated together. A factor of 2.5 repeats each task twice, and half
of them a third time; a factor of 0.3 keeps three of ten. A repeated task arrives up to an hour after its original, so that
days and nights stay as they were, and at most a tenth of the time between the first and the last submission, so that a
short journal keeps its load. With `resample` the number of repetitions has a Poisson distribution with that mean
(the Poisson bootstrap).
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import ceil, exp, isfinite
from typing import Any, Literal, NamedTuple

from msgspec.structs import replace as changed

from gpuyard.core.domain import commands as command
from gpuyard.core.domain.errors import WrongInput
from gpuyard.core.domain.node import Gpu, NodeSpec
from gpuyard.core.domain.task import TaskSpec, ranges_in
from gpuyard.core.domain.tenant import Budget, QuotaMode, Split, Tenant
from gpuyard.core.domain.validation import check_split, check_tenant
from gpuyard.core.domain.values import NodeId, TaskClass, TaskId, TenantId
from gpuyard.core.engine.state import DEFAULT_TENANT
from gpuyard.input.error_location import shortened
from gpuyard.input.nearest_name import closest_word
from gpuyard.simulator.clusters import MODEL, Cluster
from gpuyard.simulator.workloads.arrival import Arrival, TimedInput
from gpuyard.simulator.workloads.journal import JournalWorkload

COPY_SECONDS = 3600.0
"""The latest arrival of a repeated task after its original,"""
COPY_PART = 0.1
"""but at most this part of the time between the first and the last submission."""
MOST_FACTOR = 1_000.0
RANGE = 8
"""Consecutive task numbers that are stored as a range."""
LimitName = Literal["max_gpus", "guaranteed_gpus", "max_open_tasks", "weight", "gpu_hours", "period_seconds"]
COUNTS = ("max_gpus", "guaranteed_gpus", "max_open_tasks")
"""Limits that are whole numbers."""
PERIOD_SECONDS = 30 * 86400.0
"""Period of a new budget, as in `gpuyard tenants set`."""
NODE_COMMANDS = (
    command.JoinNode, command.LoseNode, command.ReturnNode, command.RemoveNode, command.CordonNode, command.UncordonNode,
    command.SetGpuHealth,
)  # fmt: skip

RandomDraw = Callable[[], float]
"""Return a random number in [0, 1)."""


class WrongChange(WrongInput):
    """A journal cannot be simulated with this change."""


def read_quota(text: str | float | None) -> tuple[float | None, QuotaMode | None]:
    """Parse the part of the GPUs for online tasks, optionally with a mode: `0.5`, `0.5:borrow` or `borrow`."""
    if text is None:
        return None, None
    part, colon, mode = str(text).partition(":")
    if not colon and part in set(QuotaMode):
        part, mode = "", part
    try:
        online = float(part) if part else None
        chosen = QuotaMode(mode) if mode else None
    except ValueError:
        online = chosen = None
    if (online is None and chosen is None) or (online is not None and not 0 <= online <= 1) or text == f"{part}:":
        raise WrongChange(
            f"The quota is {shortened(str(text))!r}; it must be the part of the GPUs for online tasks, optionally with a "
            "mode (strict, borrow or none), such as 0.6 or 0.6:borrow."
        )
    return online, chosen


@dataclass(frozen=True, slots=True)
class Changes:
    """What is different from the recorded cluster."""

    online_part: float | None = None
    """Part of the GPUs for online tasks; None: as recorded."""
    quota_mode: QuotaMode | None = None
    """None: the mode at the end of the journal."""
    cluster: Cluster | None = None
    add_nodes: Cluster | None = None
    remove_nodes: tuple[str, ...] = ()
    tenants: Mapping[str, Mapping[str, float | None]] = field(default_factory=dict)
    """New limits of tenants by the names of `LimitName`; None removes a limit."""
    mix: Mapping[str, float] = field(default_factory=dict)
    """Factors for the number of tasks: of `all`, or of a `tenant:NAME`, `user:NAME` or `class:NAME`."""
    resample: bool = False

    def apply_to(self, found: JournalWorkload, draw: RandomDraw) -> JournalWorkload:
        """Return the workload with these changes; `draw` decides which tasks are repeated."""
        came = list(found.came)
        opening = [*self._split(came), *self._tenants(came)]
        came = self._nodes(came)
        if self.online_part is not None or self.quota_mode is not None:
            came = [it for it in came if not isinstance(it[1], command.SetSplit)]
        begins = came[0][0] if came else 0.0
        came = [*((begins, order) for order in opening), *came]
        if self.mix or self.resample or self.tenants or self.cluster or self.remove_nodes:
            came = _Mixer(came, self.mix, draw, resample=self.resample).mixed()
        if not any(isinstance(coming, tuple) for _, coming in came):
            raise WrongChange("No task is left in this mix.")
        return replace(found, came=came, gpus=_most_gpus(came))

    # --- quota and limits -----------------------------------------------------------------------------------------------

    def _split(self, came: Iterable[TimedInput]) -> Iterator[command.Command]:
        if self.online_part is None and self.quota_mode is None:
            return
        recorded = Split()
        for _, coming in came:
            if isinstance(coming, command.SetSplit):
                recorded = coming.split
        online = recorded.online_percent if self.online_part is None else self.online_part
        split = Split(online, 1 - online, self.quota_mode or recorded.mode)
        if refusal := check_split(split):
            raise WrongChange(refusal.sentence())
        yield command.SetSplit(split)

    def _tenants(self, came: list[TimedInput]) -> Iterator[command.Command]:
        """Change the recorded limits in place, and return commands that set them from the beginning."""
        if not self.tenants:
            return
        recorded = [coming.tenant for _, coming in came if isinstance(coming, command.SetTenant)]
        names = {arrival.spec.tenant for arrival in _arrivals(came)} | {tenant.id for tenant in recorded}
        default = next((it for it in recorded if it.id == DEFAULT_TENANT), Tenant(DEFAULT_TENANT))
        for name, limits in self.tenants.items():
            _known("tenant", name, names | {DEFAULT_TENANT})
            first = next((it for it in recorded if it.id == name), changed(default, id=TenantId(name)))
            yield command.SetTenant(_limited(first, limits))
            for place, (at, coming) in enumerate(came):
                if isinstance(coming, command.SetTenant) and coming.tenant.id == name:
                    came[place] = at, command.SetTenant(_limited(coming.tenant, limits))

    # --- nodes ----------------------------------------------------------------------------------------------------------

    def _nodes(self, came: list[TimedInput]) -> list[TimedInput]:
        recorded = {coming.node.id: coming.node for _, coming in came if isinstance(coming, command.JoinNode)}
        for name in self.remove_nodes:
            _known("node", name, recorded)
        gone = set(recorded) if self.cluster is not None else set(map(NodeId, self.remove_nodes))
        kept = [it for it in came if not isinstance(it[1], NODE_COMMANDS) or _node_of(it[1]) not in gone]
        new = [
            *_like(recorded.values(), self.cluster, "node", taken=()),
            *_like(recorded.values(), self.add_nodes, "added", taken=recorded),
        ]
        if len(gone) == len(recorded) and not new:
            raise WrongChange("All nodes of the journal are removed, and no others are added.")
        begins = came[0][0]
        return [*((begins, command.JoinNode(node)) for node in new), *kept]


def _known(kind: str, name: str, names: Iterable[str]) -> None:
    known = sorted(names)
    if name not in known:
        near = closest_word(name, known)
        shown = f"did you mean {near!r}?" if near else f"it has: {', '.join(map(shortened, known[:20]))}."
        raise WrongChange(f"There is no {kind} {shortened(name)!r} in the journal; {shown}")


def _limited(tenant: Tenant, limits: Mapping[str, float | None]) -> Tenant:
    """Return a tenant with other limits."""
    new: dict[str, Any] = {name: value for name, value in limits.items() if name in {*COUNTS, "weight"}}
    for name in COUNTS:
        value = new.get(name)
        if value is not None:
            if value != int(value):
                raise WrongChange(f"{name} of tenant {tenant.id} is {value:g}; it must be a whole number.")
            new[name] = int(value)
    if "weight" in new and new["weight"] is None:
        new["weight"] = 1.0
    if "gpu_hours" in limits or "period_seconds" in limits:
        old = tenant.budget
        hours = limits.get("gpu_hours", old.gpu_hours if old else None)
        period = limits.get("period_seconds") or (old.period_seconds if old else PERIOD_SECONDS)
        new["budget"] = None if hours is None else Budget(hours, period)
    found = changed(tenant, **new)
    if refusal := check_tenant(found):
        raise WrongChange(f"Tenant {tenant.id}: {refusal.sentence()}")
    return found


def _like(
    recorded: Iterable[NodeSpec], wanted: Cluster | None, prefix: str, taken: Iterable[str]
) -> Iterator[NodeSpec]:
    """Return nodes of the wanted sizes and models; everything else is as on a recorded node, in proportion."""
    patterns = sorted((node for node in recorded if node.gpus), key=lambda node: -len(node.gpus))
    names = set(taken)
    number = 0
    for node in wanted.nodes if wanted is not None else ():
        model = node.gpus[0].model
        pattern = next((it for it in patterns if model in {gpu.model for gpu in it.gpus}), None)
        other = pattern or (patterns[0] if patterns else None)
        number += 1
        while (name := f"{prefix}-{number:04}") in names:
            number += 1
        if other is None:
            yield changed(node, id=NodeId(name))
            continue
        like = next((gpu for gpu in other.gpus if gpu.model == model), other.gpus[0])
        gpu = Gpu(like.model if model == MODEL else model, like.memory_mib, virtual=like.virtual)
        part = len(node.gpus) / len(other.gpus)
        yield NodeSpec(
            NodeId(name), (gpu,) * len(node.gpus), ceil(other.cpus * part), ceil(other.memory_mib * part), other.labels
        )


def _node_of(order: command.Command) -> NodeId:
    node: NodeSpec | NodeId = order.node  # type: ignore[attr-defined]
    return node.id if isinstance(node, NodeSpec) else node


def _most_gpus(came: Iterable[TimedInput]) -> int:
    """Return the largest number of GPUs at the same time."""
    gpus: dict[NodeId, int] = {}
    most = 0
    for _, coming in came:
        if isinstance(coming, command.JoinNode):
            gpus[coming.node.id] = len(coming.node.gpus)
            most = max(most, sum(gpus.values()))
        elif isinstance(coming, command.RemoveNode):
            gpus.pop(coming.node, None)
    return most


# --- the mix of tasks -------------------------------------------------------------------------------------------------


class _Copied(NamedTuple):
    """A task of one repetition: 0 is the original."""

    task: TaskId
    copy: int


class _Entry(NamedTuple):
    """Something that happens at an instant; the other fields order what happens at the same instant."""

    at: float
    place: int
    copy: int
    coming: tuple[Arrival, ...] | command.Command


class _Mixer:
    """Repeats and leaves out tasks with everything that depends on them, and numbers them in their new order."""

    def __init__(
        self, came: Sequence[TimedInput], mix: Mapping[str, float], draw: RandomDraw, *, resample: bool
    ) -> None:
        self._came = came
        self._factor = _factors(mix, list(_arrivals(came)))
        self._draw = draw
        self._resample = resample
        self._units = _units(came)
        self._latest = _latest_copy(came)
        self._shifts: dict[TaskId, list[float]] = {}
        """Delay of every repetition of a unit, by its first task."""

    def mixed(self) -> list[TimedInput]:
        """Return the input with the new mix."""
        entries: list[_Entry] = []
        for place, (at, coming) in enumerate(self._came):
            entries += self._repeated(at, place, coming)
        entries.sort(key=lambda entry: entry[:3])
        numbers: dict[_Copied, TaskId] = {}
        for entry in entries:
            if isinstance(entry.coming, tuple):
                for arrival in entry.coming:
                    numbers[_Copied(arrival.task, entry.copy)] = TaskId(len(numbers) + 1)
        return [(entry.at, _numbered(entry, numbers)) for entry in entries]

    def _repeated(self, at: float, place: int, coming: tuple[Arrival, ...] | command.Command) -> Iterator[_Entry]:
        if isinstance(coming, tuple):
            together: dict[TaskId, list[Arrival]] = {}
            for arrival in coming:
                together.setdefault(self._units[arrival.task], []).append(arrival)
            for unit, arrivals in together.items():
                for copy, shift in enumerate(self._shifts_of(unit, arrivals[0].spec)):
                    yield _Entry(at + shift, place, copy, tuple(_later(arrival, shift) for arrival in arrivals))
            return
        task = getattr(coming, "task", None)
        if task is None:
            yield _Entry(at, place, 0, coming)
        elif task in self._units:
            for copy, shift in enumerate(self._shifts[self._units[task]]):
                later = coming
                if isinstance(coming, command.ExtendTask) and coming.deadline is not None:
                    later = changed(coming, deadline=coming.deadline + shift)
                yield _Entry(at + shift, place, copy, later)

    def _shifts_of(self, unit: TaskId, spec: TaskSpec) -> list[float]:
        if unit not in self._shifts:
            factor = self._factor(spec)
            count = self._poisson(factor) if self._resample else self._rounded(factor)
            self._shifts[unit] = [self._latest * self._draw() if copy else 0.0 for copy in range(count)]
        return self._shifts[unit]

    def _rounded(self, factor: float) -> int:
        rest = factor - int(factor)
        return int(factor) + (bool(rest) and self._draw() < rest)

    def _poisson(self, mean: float) -> int:
        """Return a number with a Poisson distribution, by inversion; large means in parts, because exp underflows."""
        count = 0
        while mean > 0:
            part = min(mean, 100.0)
            mean -= part
            chance, left = exp(-part), self._draw()
            drawn = 0
            while left >= chance and drawn < 1_000:
                left -= chance
                drawn += 1
                chance *= part / drawn
            count += drawn
        return count


def _latest_copy(came: Iterable[TimedInput]) -> float:
    """Return the seconds within which a repeated task follows its original."""
    submitted = [at for at, coming in came if isinstance(coming, tuple)]
    return min(COPY_SECONDS, COPY_PART * (max(submitted) - min(submitted))) if submitted else 0.0


def _arrivals(came: Iterable[TimedInput]) -> Iterator[Arrival]:
    for _, coming in came:
        if isinstance(coming, tuple):
            yield from coming


def _units(came: Iterable[TimedInput]) -> dict[TaskId, TaskId]:
    """Return for every task the first of the tasks that are connected with it by dependencies."""
    first: dict[TaskId, TaskId] = {}

    def root(task: TaskId) -> TaskId:
        while first[task] != task:
            first[task] = first[first[task]]
            task = first[task]
        return task

    arrivals = list(_arrivals(came))
    for arrival in arrivals:
        first[arrival.task] = arrival.task
    for arrival in arrivals:
        for begin, end, _ in arrival.spec.prerequisites():
            for number in range(begin, end + 1):
                if number in first:
                    one, other = sorted((root(arrival.task), root(TaskId(number))))
                    first[other] = one
    return {task: root(task) for task in first}


def _later(arrival: Arrival, shift: float) -> Arrival:
    deadline = arrival.spec.deadline
    if not shift or deadline is None:
        return arrival
    return arrival._replace(spec=changed(arrival.spec, deadline=deadline + shift))


def _numbered(entry: _Entry, numbers: Mapping[_Copied, TaskId]) -> tuple[Arrival, ...] | command.Command:
    """Return what happens with the new numbers of its tasks."""
    copy, coming = entry.copy, entry.coming
    if isinstance(coming, tuple):
        return tuple(
            arrival._replace(task=numbers[_Copied(arrival.task, copy)], spec=_depending(arrival.spec, copy, numbers))
            for arrival in coming
        )
    if (task := getattr(coming, "task", None)) is None:
        return coming
    return changed(coming, task=numbers[_Copied(task, copy)])


def _depending(spec: TaskSpec, copy: int, numbers: Mapping[_Copied, TaskId]) -> TaskSpec:
    """Return the task with its dependencies under their new numbers."""
    if not spec.has_prerequisites:
        return spec
    after: dict[bool, list[TaskId]] = {True: [], False: []}
    for first, last, success in spec.prerequisites():
        for number in range(first, last + 1):
            if (new := numbers.get(_Copied(TaskId(number), copy))) is not None:
                after[success].append(new)
    (succeeded, succeeded_ranges), (ended, ended_ranges) = ranges_in(after[True], RANGE), ranges_in(after[False], RANGE)
    return changed(
        spec,
        after_success=succeeded,
        after_success_ranges=succeeded_ranges,
        after_any=ended,
        after_any_ranges=ended_ranges,
    )


def _factors(mix: Mapping[str, float], arrivals: Sequence[Arrival]) -> Callable[[TaskSpec], float]:
    """Return a function for the factor of a task: that of its user, else of its tenant, of its class, of all tasks."""
    known: dict[str, set[str]] = {
        "user": {arrival.spec.user for arrival in arrivals},
        "tenant": {str(arrival.spec.tenant) for arrival in arrivals},
        "class": {str(each) for each in TaskClass},
    }
    for selector, factor in mix.items():
        kind, _, name = selector.partition(":")
        if not (selector == "all" or (kind in known and name)):
            raise WrongChange(
                f"A mix names tasks as all, tenant:NAME, user:NAME or class:NAME, and not as {shortened(selector)!r}."
            )
        if selector != "all":
            _known(kind, name, known[kind])
        if not isfinite(factor) or not 0 <= factor <= MOST_FACTOR:
            raise WrongChange(f"The factor of {selector} is {factor:g}; it must be from 0 to {MOST_FACTOR:,.0f}.")

    def factor_of(spec: TaskSpec) -> float:
        for selector in (f"user:{spec.user}", f"tenant:{spec.tenant}", f"class:{spec.task_class}", "all"):
            if selector in mix:
                return mix[selector]
        return 1.0

    return factor_of
