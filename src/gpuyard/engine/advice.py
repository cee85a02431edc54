"""Advice: somebody who looks at the present state is asked where there is something to choose.

The order of the queue is a key, given once. What depends on the moment (is it better to begin on the slow GPUs that are
free, or to wait for the fast ones that soon will be?) no key can say. So a policy may be *advised*: when the pass has
found a place for the first task in line, it puts a question, and whoever advises picks one of a few candidates.

    candidates, each a row of figures                        what is done
      0        the first task, where the pass would place it   placed, as without advice
      1 …      the same task on GPUs of another speed          placed there
      …        another task that wants the same GPUs           placed before the first
      last     the first task waits                            its line sleeps until GPUs are freed on which it is faster

The figures are functions of state and instant and name neither tasks nor GPUs, so that one adviser serves yards of any
size. What is looked at is bounded: `TASKS` tasks, `SPEEDS` speeds, `LOOK` lines and bays. A question is put only where
some candidate could be faster elsewhere: where all GPUs are equal, the order of the queue is all there is to say. Waiting
is offered only while something runs that will free GPUs for the task, so that no yard stands still; and after `PATIENCE`
it is asked again. An adviser answers with a number of a candidate and has no other say: quotas, promises and rules
have been seen to before it is asked.
"""

from collections.abc import Iterator, Sequence
from heapq import nsmallest
from itertools import islice
from math import inf, log1p, log2
from typing import NamedTuple, Protocol

from gpuyard.domain.placement import Placement
from gpuyard.domain.values import Preemption, TaskId
from gpuyard.engine.backfill import earliest
from gpuyard.engine.phases import Running
from gpuyard.engine.queue import Group, Line
from gpuyard.engine.state import State, holds_gpus
from gpuyard.engine.task import Task
from gpuyard.placement.bayset import BaySet, members, without
from gpuyard.placement.choose import choose
from gpuyard.placement.shape import Shape

TASKS, SPEEDS, LOOK = 4, 3, 32
PATIENCE = 3_600.0
"""Seconds after which a task that waits on advice is asked about again, though nothing was freed."""
DAY = 86_400.0
RULE_SAVES, RULE_MOST = 0.3, 0.7
"""A rule of thumb, as a figure for whoever learns: waiting is good as far as it saves more than this part of a run."""
UNKNOWN_SECONDS = 3_600.0
"""How long a task runs of which nobody has an idea."""

FEATURES = (
    "waits",
    "first",
    "log_seconds_here",
    "log_seconds_best",
    "log_band",
    "log2_gpus",
    "speed",
    "log_seconds_until",
    "saved",
    "log_queue_before",
    "log_queue_behind",
    "log_waited",
    "free_after",
    "free_faster",
    "wide_waits",
    "log2_wide_gpus",
    "log_wide_seconds",
    "log_tasks_waiting",
    "log_work_waiting",
    "gain_of_first",
    "ends_an_hour",
    "rule",
)
"""What each figure of a row is called, in order; `_row` says what it is."""

Rows = Sequence[Sequence[float]]


class Advisor(Protocol):
    """Whoever picks one of the candidates. The same rows must always give the same answer."""

    def pick(self, rows: Rows) -> int:
        """The number of a candidate; 0 is what would be done without advice."""
        ...


class Candidate(NamedTuple):
    """A task and where it would go; nowhere: it waits."""

    task: Task
    line: Line
    group: Group
    placement: Placement | None
    speed: float


Ready = tuple[object, TaskId, Line, Group]
"""See gpuyard.engine.schedule."""


def is_advised(state: State, task: Task) -> bool:
    """Whether anybody is to be asked about a task that wants whole GPUs.

    Not about one that may be stopped: it begins at once, for it can be moved later. Nor while nodes are promised to
    anybody: promises are kept in the order of the queue.
    """
    stays = task.preemption is Preemption.NEVER and task.spec.resources.gpus > 0
    return state.policy.advised and stays and not state.holds


def candidates(state: State, first: Candidate, ready: Sequence[Ready], closed: BaySet) -> list[Candidate]:
    """All that could be done instead of placing the first; only itself if there is nothing to ask."""
    assert first.placement is not None
    found = [first]
    found += _elsewhere(state, first, closed)
    bays = state.index.bays_of(first.placement.nodes)
    for _, number, line, group in nsmallest(TASKS - 1, ready, key=lambda entry: entry[:2]):
        task = state.tasks.get(number)
        if task is None or task.group is not group or not line.awake or line is first.line:
            continue
        if (other := _instead(state, task, line, group, bays)) is not None:
            found.append(other)
    if (_could_be_faster(first) or len(found) > 1 or _wider(state, first, bays)) and _runs_something(
        state, better_than(first)
    ):
        found.append(first._replace(placement=None))
    return found if any(_could_be_faster(each) for each in found) else [first]


def _could_be_faster(candidate: Candidate) -> bool:
    tiers = candidate.line.shape.tiers
    return bool(tiers) and candidate.speed < tiers[0][0]


def better_than(first: Candidate) -> BaySet:
    """What a task waits for instead of its place: bays where it is faster; if there are none, whatever is freed."""
    faster: BaySet = 0
    for speed, bays in first.line.shape.tiers:
        if speed > first.speed:
            faster |= bays
    return faster or first.line.shape.eligible


def _elsewhere(state: State, first: Candidate, closed: BaySet) -> Iterator[Candidate]:
    """The same task on GPUs of other speeds."""
    shape, order = first.line.shape, state.order_for(first.line.shape.gpus)
    if shape.nodes > 1:
        return
    for speed, bays in shape.tiers[: SPEEDS + 1]:
        if speed != first.speed:
            away = closed | without(shape.eligible, bays)
            placement = choose(shape, state.index, order, away, wherever=True, model=first.task.model)
            if placement is not None:
                yield first._replace(placement=placement, speed=speed)


def _instead(state: State, task: Task, line: Line, group: Group, bays: BaySet) -> Candidate | None:
    """Another task in the place of the first, if it would go there and nothing but its turn is missing."""
    shape, tenant, need = line.shape, group.tenant, line.shape.need_milli
    if not is_advised(state, task):
        return None
    shape.refresh(state.index)
    book = state.classes[group.class_index]
    if tenant.model_limits or tenant.tenant.budget is not None or shape.needs is not None:
        return None
    if book.used + need > book.limit or tenant.used + need > tenant.limit or task.avoid is not None:
        return None
    placement = choose(shape, state.index, state.order_for(shape.gpus), model=task.model)
    if placement is None or not state.index.bays_of(placement.nodes) & bays:
        return None
    return Candidate(task, line, group, placement, speed_at(state, shape, placement))


def speed_at(state: State, shape: Shape, placement: Placement) -> float:
    """How fast tasks of a shape are where they would be placed."""
    if shape.speeds is None:
        return 1.0
    hosts = state.index.hosts
    return min(shape.speed_on(hosts[part.node].bay_of[part.gpus[0]].model) for part in placement.slices if part.gpus)


def _wider(state: State, first: Candidate, bays: BaySet) -> Task | None:
    """The first of those asleep who want more GPUs than the first task, and some of the same."""
    gpus = first.line.shape.need_milli
    best: tuple[float, TaskId] | None = None
    for line in islice(state.queue.lines.values(), LOOK):
        if line.awake or line.shape.need_milli <= gpus or not line.shape.eligible & bays:
            continue
        for heads in line.heads:
            if heads and (best is None or heads[0][:2] < best) and heads[0][1] in state.tasks:
                best = heads[0][:2]
    return None if best is None else state.tasks[best[1]]


def _runs_something(state: State, bays: BaySet) -> bool:
    """Whether a task will free GPUs there."""
    return any(_on_bay(state, number) for number in islice(members(bays), LOOK))


def _on_bay(state: State, number: int) -> bool:
    bay = state.index.bay(number)
    return bay.free_mask != bay.usable and any(
        holds_gpus(task.phase) for task in state.on_node[bay.host.spec.id].values()
    )


# --- figures -----------------------------------------------------------------------------------------------------------


def rows_of(state: State, found: Sequence[Candidate], at: float) -> list[list[float]]:
    """What the adviser sees of each candidate."""
    first = found[0]
    assert first.placement is not None
    index, queue = state.index, state.queue
    work, ends = _work_waiting(state, at), _ends_within(state, at, 3_600.0)
    bays = index.bays_of(first.placement.nodes)
    wide = _wider(state, first, bays)
    yard = max(1, index.gpus_up)
    of_all = [
        float(wide is not None),
        log2(1 + wide.spec.resources.all_gpus) if wide is not None else 0.0,
        log1p(_seconds(wide, 1.0, at)) if wide is not None else 0.0,
        log1p(queue.waiting / yard),
        log1p(work / yard),
    ]
    views = {each.line.number: _View(state, each, at) for each in found}
    gains = [views[each.line.number].saved(each) for each in found]
    return [
        _row(state, each, views[each.line.number], gain, place == 0, [*of_all, gains[0], ends / yard], at)
        for place, (each, gain) in enumerate(zip(found, gains, strict=True))
    ]


class _View:
    """What one candidate's task has before it: when faster GPUs are free, and who else wants them."""

    def __init__(self, state: State, candidate: Candidate, at: float) -> None:
        shape, task = candidate.line.shape, candidate.task
        self._task, self._at = task, at
        self.tiers = shape.tiers or ((1.0, shape.eligible),)
        self.until: list[float] = []
        """For each speed, how long until GPUs that fast are free."""
        for speed, bays in self.tiers[: SPEEDS + 1]:
            seconds = _seconds(task, speed, at)
            soonest = inf
            for number in islice(members(bays & state.index.open), LOOK):
                when = earliest(
                    state, state.index.bay(number), shape, seconds, at, holds=(), not_before=at, side="likely"
                )
                soonest = min(soonest, when - at)
                if soonest <= 0:
                    break
            self.until.append(min(soonest, 10 * DAY))
        self.before, self.behind = _queue_around(state, candidate, self.tiers[0][1])
        self.free_faster = _free(state, self.tiers[0][1])

    def best(self, below: float = -inf) -> tuple[float, float]:
        """How long until it could be done, and until it could begin, where that is soonest, on GPUs faster than this."""
        ways = [
            (until + _seconds(self._task, speed, self._at), until)
            for (speed, _), until in zip(self.tiers, self.until, strict=False)
            if speed > below
        ]
        return min(ways, default=(10 * DAY, 10 * DAY))

    def saved(self, candidate: Candidate) -> float:
        """Which part of its run it would save by waiting for faster GPUs, if nobody else took them."""
        here = _seconds(self._task, candidate.speed, self._at)
        done, _ = self.best(candidate.speed)
        return max(-1.0, (here - done) / max(here, 1.0))


def _row(
    state: State, it: Candidate, view: _View, saved: float, first: bool, of_all: list[float], at: float
) -> list[float]:
    task, shape = it.task, it.line.shape
    here = _seconds(task, it.speed, at)
    estimate = task.estimate
    _, until = view.best(it.speed) if it.placement is None else (0.0, 0.0)
    free = _free(state, _bays_at(view, it.speed))
    return [
        float(it.placement is None),
        float(first),
        log1p(here),
        log1p(_seconds(task, 1.0, at)),
        log1p(estimate.high_seconds / max(estimate.seconds, 1e-3)) if estimate is not None else 8.0,
        log2(1 + task.spec.resources.all_gpus),
        it.speed,
        log1p(until),
        saved,
        log1p(view.before),
        log1p(view.behind),
        log1p(max(0.0, at - task.submitted_at)),
        (free - (0 if it.placement is None else shape.gpus)) / max(1, shape.gpus),
        view.free_faster / max(1, shape.gpus),
        *of_all,
        min(RULE_MOST, max(-RULE_SAVES, saved - RULE_SAVES)) if it.placement is None else 0.0,
    ]


def _seconds(task: Task, speed: float, at: float) -> float:
    seconds = task.seconds_at(speed, at, "likely")
    return seconds if seconds < inf else UNKNOWN_SECONDS / speed


def _bays_at(view: _View, speed: float) -> BaySet:
    return next((bays for each, bays in view.tiers if each == speed), view.tiers[0][1])


def _free(state: State, bays: BaySet) -> int:
    return sum(free * (having & bays).bit_count() for free, having in enumerate(state.index.by_free) if free)


def _queue_around(state: State, candidate: Candidate, bays: BaySet) -> tuple[float, float]:
    """Hours of work for each GPU of these bays that wait before and behind a task, as far as one looks."""
    mine = (candidate.task.key, candidate.task.id)
    gpus = max(1, sum(state.index.bay(number).usable.bit_count() for number in islice(members(bays), LOOK)))
    before = behind = 0.0
    for line in islice(state.queue.lines.values(), LOOK):
        if not line.shape.eligible & bays:
            continue
        for group in line.groups.values():
            if group.size and (top := group.top()) is not None and top[2] is not candidate.task:
                work = group.size * line.shape.need_milli / 1000 * _seconds(top[2], 1.0, state.now)
                if top[:2] < mine:
                    before += work
                else:
                    behind += work
    return before / gpus / 3_600.0, behind / gpus / 3_600.0


def _work_waiting(state: State, at: float) -> float:
    """GPU-hours that wait, as far as one looks: each group counts as so many of its first."""
    work = 0.0
    for line in islice(state.queue.lines.values(), LOOK):
        for group in line.groups.values():
            if group.size and (top := group.top()) is not None:
                work += group.size * line.shape.need_milli / 1000 * _seconds(top[2], 1.0, at)
    return work / 3_600.0


def _ends_within(state: State, at: float, seconds: float) -> float:
    """GPUs that are thought to be freed within so long, as far as one looks."""
    gpus = 0.0
    for tasks in islice(state.on_node.values(), LOOK):
        for task in tasks.values():
            if isinstance(task.phase, Running) and task.left_seconds(at, "likely") <= seconds:
                gpus += task.phase.placement.charge_milli / 1000
    return gpus
