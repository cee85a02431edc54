"""Why does it wait, what is ahead of it, and when will it start: asked by a person, answered from what the engine uses.

The reason is a refusal, typed and in words. The expected start comes from the same reservations the scheduler makes:
tasks that go before are given theirs one after the other, on a copy, until it is this one's turn; once with the low
side of all estimates, once with the likely one, once with the high one. Where somebody ahead has no estimate there is
no honest answer, and none is given; where somebody has outrun one, the answer is called a guess. The search looks at
`AHEAD` tasks at the most.
"""

from heapq import heapify, heappop, heappush

from gpuyard.domain import refusals as no
from gpuyard.domain.events import ReservationMade
from gpuyard.domain.refusals import Refusal
from gpuyard.domain.settings import Backfill
from gpuyard.domain.values import MILLI, NodeId, TaskId, TaskStatus, Value
from gpuyard.engine.advice import PATIENCE
from gpuyard.engine.backfill import expected_end, holds_before, promise
from gpuyard.engine.deeds import closed_models
from gpuyard.engine.phases import Suspended, Waiting
from gpuyard.engine.quota import UNLIMITED
from gpuyard.engine.standing import standing
from gpuyard.engine.state import Hold, State, holds_gpus
from gpuyard.engine.task import UNKNOWN, Side, Task
from gpuyard.placement.bayset import BaySet
from gpuyard.placement.choose import choose, why_not
from gpuyard.placement.shape import Shape

AHEAD = 200
SIDES: tuple[Side, ...] = ("low", "likely", "high")


class Explanation(Value, frozen=True):
    """What there is to say about a task that has not started."""

    task: TaskId
    status: TaskStatus
    reason: Refusal | None
    """Why it waits; none: it does not."""
    ahead: int = 0
    """How many waiting tasks go before it and could use the same nodes or quota."""
    starts_at: float | None = None
    """When it is likely to start; none: nobody can say."""
    starts_low: float | None = None
    starts_high: float | None = None
    nodes: tuple[NodeId, ...] = ()
    """Where, if that is promised already."""
    guessed: bool = False
    """Whether that start rests on a guess: a task in the way has outrun its estimate."""
    model_ran_on: tuple[NodeId, ...] = ()
    """Where its model ran last, of the nodes that could hold it: taken if nothing else speaks for another."""

    def sentence(self) -> str:
        """The reason in words."""
        return self.reason.sentence() if self.reason else "It does not wait."


def explain(state: State, task_id: TaskId, now: float) -> Explanation:
    """All there is to say about a task."""
    at = max(state.now, now)
    task = state.tasks.get(task_id)
    if task is None:
        status = state.ended.get(task_id)
        unknown = no.UnknownTask(task_id)
        return Explanation(task_id, status or TaskStatus.PENDING, None if status else unknown)
    if not isinstance(task.phase, Waiting | Suspended):
        return Explanation(task_id, task.status, None)
    shape = task.group.line.shape if task.group else Shape(task.spec.resources)
    shape.refresh(state.index)
    reason = _reason(state, task, shape, at)
    ahead = _ahead(state, task, shape, at) if task.group else []
    hold = state.holds.get(task_id)
    starts = [_starts(state, task, shape, ahead, at, side) for side in SIDES]
    guessed = starts[-1] is not None and starts[-1] != _starts(state, task, shape, ahead, at, "said")
    low, likely, high = _band(starts)
    nodes = hold.nodes if hold else ()
    ran_on = tuple(sorted(state.index.hosts_of(state.index.warmth.bays(task.model) & shape.eligible)))
    return Explanation(task_id, task.status, reason, len(ahead), likely, low, high, nodes, guessed, ran_on)


def why_waits(state: State, task_id: TaskId, now: float) -> Refusal | None:
    """The reason alone: cheap enough for every line of a list."""
    task = state.tasks.get(task_id)
    if task is None or not isinstance(task.phase, Waiting | Suspended):
        return None
    shape = task.group.line.shape if task.group else Shape(task.spec.resources)
    shape.refresh(state.index)
    return _reason(state, task, shape, max(state.now, now))


def _band(starts: list[float | None]) -> list[float | None]:
    """Longer runs can open a gap, so the latest is not always the one with the longest runs: put them in order."""
    known = sorted(start for start in starts if start is not None)
    return list(known) if len(known) == len(starts) else starts


# --- why ----------------------------------------------------------------------------------------------------------


def _reason(state: State, task: Task, shape: Shape, at: float) -> Refusal | None:
    if task.waits_for:
        lowest = min(barrier.lowest_open(state.tasks) for barrier in task.waits_for)
        return no.WaitingForTasks(lowest, sum(barrier.left for barrier in task.waits_for))
    if task.held:
        return no.OnHold()
    if isinstance(task.phase, Waiting) and task.phase.not_before > at:
        return no.BackingOff(task.phase.not_before)
    hold = state.holds.get(task.id)
    if hold is not None and hold.claim:
        return no.WaitingForVictims(len(hold.victims), hold.nodes[0])
    never = shape.never(state.index)
    return never or _quota_reason(state, task, shape, at) or _room_reason(state, task, shape, at)


def _quota_reason(state: State, task: Task, shape: Shape, at: float) -> Refusal | None:
    needed = shape.need_milli / MILLI
    if not needed:
        return None
    book, tenant = state.classes[task.class_index], task.book
    if book.used + shape.need_milli > book.limit:
        return no.ClassQuotaFull(book.task_class, book.limit // MILLI, book.used / MILLI, needed)
    if tenant.used + shape.need_milli > tenant.limit:
        return no.TenantQuotaFull(tenant.id, tenant.limit // MILLI, tenant.used / MILLI, needed)
    if tenant.tenant.budget is not None and tenant.budget_left(at) <= 0:
        return no.BudgetSpent(tenant.id, tenant.tenant.budget.gpu_hours, tenant.renews_at(at))
    closed = closed_models(state, tenant, shape)
    spent = sorted(model for model in tenant.model_limits if state.index.by_model.get(model, 0) & closed)
    order = state.order_for(shape.gpus)
    if closed and not choose(shape, state.index, order, closed) and choose(shape, state.index, order):
        return no.TenantModelQuotaFull(tenant.id, tuple(spent))
    return _too_dear_reason(state, task, shape, closed)


def _too_dear_reason(state: State, task: Task, shape: Shape, closed: BaySet) -> Refusal | None:
    """Whether it would find room, but only where it counts for more than a quota has left."""
    if shape.needs is None:
        return None
    book, tenant, order = state.classes[task.class_index], task.book, state.order_for(shape.gpus)
    in_class, in_tenant = book.limit - book.used, tenant.limit - tenant.used
    affordable = closed | shape.too_dear(min(in_class, in_tenant))
    if choose(shape, state.index, order, affordable) or not (found := choose(shape, state.index, order, closed)):
        return None
    needed = found.charge_milli
    if needed > in_class:
        return no.ClassQuotaFull(book.task_class, book.limit // MILLI, book.used / MILLI, needed / MILLI)
    return no.TenantQuotaFull(tenant.id, tenant.limit // MILLI, tenant.used / MILLI, needed / MILLI)


def _room_reason(state: State, task: Task, shape: Shape, at: float) -> Refusal | None:
    if choose(shape, state.index, state.order_for(shape.gpus)) is None:
        return why_not(shape, state.index)
    if task.group is not None and task.group.line.advised and not task.group.line.awake:
        return no.HeldBack(PATIENCE / 60.0)
    before = holds_before(state, task, at)
    if before:
        return no.ReservedFor(min(before, key=lambda hold: hold.task.key).task.id)
    first = min(_ahead(state, task, shape, at), key=lambda other: _rank(state, other, at), default=None)
    return no.ReservedFor(first.id) if first is not None else None


# --- what is ahead ------------------------------------------------------------------------------------------------


def _rank(state: State, task: Task, at: float) -> tuple[int, float, float, TaskId]:
    return standing(state, task, at)


def _ahead(state: State, task: Task, shape: Shape, at: float) -> list[Task]:
    """Waiting tasks that go before and compete for nodes, class or tenant quota; first of them first."""
    mine = _rank(state, task, at)
    found = []
    for other in state.tasks.values():
        if other.group is None or other is task:
            continue
        theirs = other.group.line.shape
        same_quota = other.class_index == task.class_index or other.book is task.book
        if (theirs.eligible & shape.eligible or same_quota) and (rank := _rank(state, other, at)) < mine:
            found.append((rank, other))
    found.sort(key=lambda pair: pair[0])
    return [other for _, other in found]


# --- when ---------------------------------------------------------------------------------------------------------


def _starts(state: State, task: Task, shape: Shape, ahead: list[Task], at: float, side: Side) -> float | None:
    """When it starts if everything takes the given side of its estimate."""
    if task.waits_for or task.held or not shape.eligible or len(ahead) > AHEAD:
        return None
    hold = state.holds.get(task.id)
    if hold is not None and hold.claim:
        return at
    when = _quota_frees_at(state, task, ahead, at, side)
    if when == UNKNOWN:
        return None
    holds: list[Hold] = []
    if state.settings.backfill is not Backfill.GREEDY:
        for other in ahead:
            if other.group is not None and other.group.line.shape.eligible & shape.eligible:
                holds += _pretend(state, other, other.group.line.shape, holds, at, side)
    found = promise(state, task, shape, at, holds, side)
    if found is None or found.starts_at is None:
        return None
    return max(found.starts_at, when, task.phase.not_before if isinstance(task.phase, Waiting) else at)


def _pretend(state: State, task: Task, shape: Shape, holds: list[Hold], at: float, side: Side) -> list[Hold]:
    """The reservation a task would get behind those given before."""
    found = promise(state, task, shape, at, holds, side)
    if found is None:
        return []
    hold = Hold(task, shape, ReservationMade(task.id, found.nodes, found.starts_at), at)
    hold.bays = state.index.bays_of(found.nodes)
    return [hold]


def _quota_frees_at(state: State, task: Task, ahead: list[Task], at: float, side: Side) -> float:
    """When class and tenant have room for it, after those ahead of it there."""
    when = at
    book, tenant = state.classes[task.class_index], task.book
    if tenant.tenant.budget is not None and tenant.budget_left(at) <= 0:
        when = tenant.renews_at(at)
    in_class = [other for other in state.tasks.values() if other.class_index == task.class_index]
    in_tenant = [other for other in state.tasks.values() if other.book is tenant]
    for used, limit, counted in ((book.used, book.limit, in_class), (tenant.used, tenant.limit, in_tenant)):
        if limit < UNLIMITED:
            numbers = {other.id for other in counted}
            first = [other for other in ahead if other.id in numbers]
            when = max(when, _turn_at(counted, [*first, task], used, limit, at, side))
    return when


def _turn_at(counted: list[Task], queued: list[Task], used: int, limit: int, at: float, side: Side) -> float:
    """When the last of the queued gets through a quota, if each goes through as soon as there is room for it."""
    ends = []
    for other in counted:
        if holds_gpus(other.phase):
            charge = other.phase.placement.charge_milli  # type: ignore[attr-defined]
            ends.append((expected_end(other, at, side), charge))
    heapify(ends)
    now = at
    for other in queued:
        need = other.group.line.shape.need_milli if other.group else 0
        while used + need > limit:
            if not ends:
                return UNKNOWN
            ended_at, charge = heappop(ends)
            now = max(now, ended_at)
            used -= charge
        used += need
        heappush(ends, (now + other.left_seconds(at, side), need))
    return now
