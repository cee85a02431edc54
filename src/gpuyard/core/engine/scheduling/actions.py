"""Actions of a scheduling pass for one task: place it, reserve nodes for it, or preempt other tasks for it.

The rules are in `backfill` (reservations) and `preemption`; this module turns them into events. A reservation is
dropped when a quota stops its task, and made again when a task that goes before takes the nodes.
"""

from collections.abc import Callable, Container

from gpuyard.core.domain.causes import Cause, CauseKind
from gpuyard.core.domain.events import (
    AttemptResuming,
    AttemptStopping,
    AttemptSuspending,
    Event,
    ReservationDropped,
    ReservationMade,
    TaskPlaced,
)
from gpuyard.core.domain.placement import Placement, Slice
from gpuyard.core.domain.refusals import BookingNotBegun
from gpuyard.core.domain.values import Preemption, TaskId
from gpuyard.core.engine.phases import Running, Suspended
from gpuyard.core.engine.quota import (
    BATCH,
    ONLINE,
    check_quota,
    closed_by_model,
    is_at_limit,
    is_stopped_by_quota,
    left_for,
)
from gpuyard.core.engine.scheduling.backfill import promise
from gpuyard.core.engine.scheduling.bookings import closed_by_bookings
from gpuyard.core.engine.scheduling.preemption import PreemptionPlan, find_preemption
from gpuyard.core.engine.state import Reservation, State, needs_reservation
from gpuyard.core.engine.task import OpenTask
from gpuyard.core.engine.waiting.queue import Line
from gpuyard.core.engine.waiting.sort_key import SortKey, sort_key
from gpuyard.core.placement.choose import choose
from gpuyard.core.placement.device_group_mask import without
from gpuyard.core.placement.index import DeviceGroup
from gpuyard.core.placement.shape import Shape

Emit = Callable[[Event], None]

CLASS_INDEXES = (ONLINE, BATCH)
USAGE_CHANGED = Cause(CauseKind.USAGE_CHANGED)
LAST: SortKey = (2, float("inf"), float("inf"), TaskId(1 << 62))
"""A sort key behind that of every task."""
UNPREDICTABLE_TIMES = 112
"""Where run times are hardly predictable, a task waits this many times as long for a reservation: four weeks instead of
six hours. Nodes that are cleared for a gang stay idle until the last of their tasks ends, and no waiting task is known
to end before that."""


class Context:
    """One scheduling pass: the state, the instant, and the function that emits events."""

    __slots__ = ("at", "emit", "only_room", "placed", "state", "woken")

    def __init__(self, state: State, emit: Emit) -> None:
        self.state = state
        self.emit = emit
        self.begin(state.now)

    def begin(self, at: float) -> None:
        """Begin a pass."""
        self.at = at
        self.placed = 0
        """Number of tasks this pass has placed."""
        self.only_room: DeviceGroup | None = None
        """The device group that gained room since the last pass, if there is exactly one."""
        self.woken: Container[int] = ()
        """Lines, by number, that had no room after the last pass: only that device group can have room for them."""


# --- placing ----------------------------------------------------------------------------------------------------------


def place(context: Context, task: OpenTask, placement: Placement, cause: Cause | None) -> None:
    """Place a task, or resume it if it is suspended."""
    context.placed += 1
    phase = task.phase
    if type(phase) is Suspended:
        placement = _with_memory(placement, phase.placement)
        context.emit(AttemptResuming(task.id, phase.attempt, placement, task.round, cause))
    else:
        context.emit(TaskPlaced(task.id, task.attempts + 1, placement, cause))
    if context.state.reservations:
        _drop_overtaken(context, task, placement)


def _with_memory(placement: Placement, before: Placement) -> Placement:
    """Return the placement of a resumed attempt with the host memory it has kept while suspended."""
    had = {part.node: part.memory_mib for part in before.slices}
    parts = (
        Slice(part.node, part.gpus, part.milli, part.gpu_memory_mib, part.cpus, had[part.node])
        for part in placement.slices
    )
    return Placement(tuple(parts))


def _drop_overtaken(context: Context, task: OpenTask, placement: Placement) -> None:
    """Drop the reservations of nodes that a task with a smaller sort key took; they are made again if possible."""
    state = context.state
    taken = state.index.device_groups_of(placement.nodes)
    for reservation in list(state.reservations.values()):
        if reservation.device_groups & taken and not reservation.claim:
            mine = sort_key(state, task, context.at)
            if mine < reservation.sort_key:
                context.emit(ReservationDropped(reservation.task.id, Cause(CauseKind.OVERTAKEN, task=task.id)))


def place_where_cleared(context: Context) -> None:
    """Place the tasks whose victims have ended in the reserved place, in queue order."""
    state = context.state
    cleared = [
        reservation for reservation in state.reservations.values() if reservation.claim and not reservation.victims
    ]
    for reservation in sorted(cleared, key=lambda reservation: reservation.sort_key):
        placement = _cleared_placement(context, reservation)
        if placement is not None:
            place(context, reservation.task, placement, Cause(CauseKind.VICTIMS_GONE))
        else:
            context.emit(ReservationDropped(reservation.task.id, Cause(CauseKind.ROOM_LOST)))


def _cleared_placement(context: Context, reservation: Reservation) -> Placement | None:
    """Return a placement on the nodes of a claim; None: quota, budget or room is missing."""
    state, task, shape = context.state, reservation.task, reservation.shape
    shape.refresh(state.index)
    if not task.tenant_usage.can_pay(context.at):
        return None
    if check_quota(task, shape.need_milli, state.classes, context.at) is not None:
        return None
    closed = closed_by_model(task.tenant_usage, shape, state.index) | shape.above_quota(
        left_for(task, state.classes).least
    )
    closed |= without(state.index.everywhere, reservation.device_groups)
    if state.bookings:
        closed |= closed_by_bookings(state, task, shape, context.at)
    return choose(shape, state.index, state.order_for(shape.gpus), closed, model=task.model)


# --- reservations -----------------------------------------------------------------------------------------------------


def reserve(context: Context, task: OpenTask, shape: Shape, cause: Cause | None) -> None:
    """Reserve nodes for a task that found no room, if it is among the first that wait for them."""
    state, depth = context.state, context.state.reservation_depth
    if not depth or task.id in state.reservations or not needs_reservation(shape) or _is_new(context, task):
        return
    mine = sort_key(state, task, context.at)
    before = []
    for reservation in state.reservations.values():
        if reservation.shape.eligible & shape.eligible and (reservation.claim or reservation.sort_key < mine):
            before.append(reservation)
            depth -= not reservation.claim
            if not depth:
                return
    depth = state.reservation_depth
    if is_at_limit(task, shape, shape.need_milli, state.classes, state.index, context.at):
        return
    need, left = shape.need_milli, left_for(task, state.classes, before).least
    if need and need > left:
        return
    not_now = closed_by_bookings(state, task, shape, context.at) if state.booked & shape.eligible else 0
    found = promise(state, task, shape, context.at, before, closed=shape.above_quota(left), not_now=not_now)
    if found is None:
        return
    context.emit(
        ReservationMade(
            task.id, found.nodes, found.starts_at, borrowed=bool(mine[0]), tenant_key=mine[1], because=cause
        )
    )
    for reservation in _behind(state, mine, shape)[max(0, depth - len(before) - 1) :]:
        context.emit(ReservationDropped(reservation.task.id, Cause(CauseKind.OVERTAKEN, task=task.id)))


def _is_new(context: Context, task: OpenTask) -> bool:
    """Whether a task has not waited long enough for a reservation; a timer is set for the instant at which it has."""
    state = context.state
    times = UNPREDICTABLE_TIMES if task.spec.unpredictable else 1
    from_then_on = task.submitted_at + times * state.settings.reserve_after_seconds
    if context.at >= from_then_on:
        return False
    line = task.group.line if task.group is not None else None
    if line is not None and not context.at < line.reserve_at <= from_then_on:  # an earlier timer sets the next one
        line.reserve_at = from_then_on
        state.timers.add_line(from_then_on, line.number)
    return True


def _behind(state: State, mine: SortKey, shape: Shape) -> list[Reservation]:
    """Return the reservations of later tasks that compete for the same nodes, in queue order."""
    behind = [
        (reservation.sort_key, reservation)
        for reservation in state.reservations.values()
        if reservation.sort_key > mine and reservation.shape.eligible & shape.eligible and not reservation.claim
    ]
    return [reservation for _, reservation in sorted(behind, key=lambda pair: pair[0])]


def reserve_for_next(context: Context, cause: Cause) -> None:
    """Make a reservation for the first task of every blocked line that qualifies for one."""
    state = context.state
    state.queue.published.reservations = None
    if not state.reservation_depth:
        return
    firsts = []
    for line in state.queue.lines.values():
        if (
            line.blocked is not None
            and line.blocked.refusal is not BookingNotBegun
            and needs_reservation(line.shape)
            and line.shape.can_start(state.index)
        ):
            for class_index in CLASS_INDEXES:
                task = first_in(context, line, class_index, LAST)
                if task is not None and task.id not in state.reservations:
                    firsts.append((sort_key(state, task, context.at), task, line.shape))
    for _, task, shape in sorted(firsts, key=lambda first: first[0]):
        reserve(context, task, shape, cause)
    # dropping overtaken reservations has published it again, but all candidates were considered above
    state.queue.published.reservations = None


def first_in(context: Context, line: Line, class_index: int, before: SortKey) -> OpenTask | None:
    """Return the best task of a blocked line and class that lacks only room, if its sort key is below `before`."""
    state, need, at = context.state, line.shape.need_milli, context.at
    if need and not state.classes[class_index].fits(need):
        return None
    if state.keys_suffice:
        head = line.head(class_index)
        if head is None or (0, 0.0, head[0], head[1]) >= before:
            return None
        if not is_stopped_by_quota(state.tasks[head[1]], line.shape, state.classes, state.index, at):
            return state.tasks[head[1]]
    tasks = [state.tasks[task] for _, task, _ in line.tops(class_index)]
    tops = [
        (sort_key(state, task, at), task)
        for task in tasks
        if not is_stopped_by_quota(task, line.shape, state.classes, state.index, at)
    ]
    first = min(tops, key=lambda top: top[0], default=None)
    return first[1] if first is not None and first[0] < before else None


def drop_stopped_by_quota(context: Context) -> None:
    """Drop the reservations of tasks that a quota stops now, and wake their lines."""
    state = context.state
    stopped = [
        reservation
        for reservation in state.reservations.values()
        if not reservation.claim
        and is_at_limit(
            reservation.task, reservation.shape, reservation.need_milli, state.classes, state.index, context.at
        )
    ]
    for reservation in stopped:
        drop_reservation(context, reservation.task)
        if reservation.task.group is not None:
            state.queue.wake(reservation.task.group.line, Cause(CauseKind.RESERVATION_ENDED, task=reservation.task.id))


def drop_reservation(context: Context, task: OpenTask) -> None:
    """Drop the reservation of a task that a quota or closed nodes stop, if it has one."""
    if task.id in context.state.reservations:
        context.emit(ReservationDropped(task.id, Cause(CauseKind.AT_LIMIT)))


def renew_reservations(context: Context) -> None:
    """Renew reservations whose tasks rank better than when they were made. Their rank never gets worse."""
    state = context.state
    for reservation in list(state.reservations.values()):
        borrowed, tenant_key, _, _ = sort_key(state, reservation.task, context.at)
        if (borrowed, tenant_key) < reservation.sort_key[:2]:
            context.emit(
                ReservationMade(
                    reservation.task.id,
                    reservation.nodes,
                    reservation.starts_at,
                    reservation.claim,
                    bool(borrowed),
                    tenant_key,
                    USAGE_CHANGED,
                )
            )


# --- preemption -------------------------------------------------------------------------------------------------------


def preempt(context: Context, task: OpenTask, shape: Shape, line: Line) -> bool:
    """Preempt others for a task that found no room, if it has the right to; return whether victims are being stopped.

    The task is placed when the victims have ended.
    """
    state = context.state
    if not state.may_preempt():
        return False
    if shape.need_milli and not task.tenant_usage.can_pay(context.at):  # it could not start where others were stopped
        state.timers.add_line(task.tenant_usage.renews_at(context.at), line.number)
        return False
    plan, retry_at = find_preemption(state, task, shape, context.at)
    if plan is None:
        if retry_at is not None:
            state.timers.add_line(retry_at, line.number)
        return False
    _stop(context, task, plan, line.cause)
    return True


def _stop(context: Context, task: OpenTask, plan: PreemptionPlan, because: Cause | None) -> None:
    """Reserve the nodes of a plan as a claim, and stop its victims."""
    borrowed, tenant_key, _, _ = sort_key(context.state, task, context.at)
    context.emit(ReservationMade(task.id, plan.nodes, context.at, True, bool(borrowed), tenant_key, because))
    for victim in plan.victims:
        assert isinstance(victim.phase, Running)
        cause = Cause(plan.why, task=task.id)
        if victim.preemption is Preemption.SUSPEND:
            context.emit(AttemptSuspending(victim.id, victim.phase.attempt, cause, victim.round + 1))
        else:
            context.emit(AttemptStopping(victim.id, victim.phase.attempt, cause))
