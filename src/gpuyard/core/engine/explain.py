"""Explain why a task waits, what is ahead of it, and when it is expected to start.

The reason is the refusal of the last attempt to place the task, as stored in the queue, with current figures. The
expected start comes from the same reservations the scheduler makes: on a copy, the tasks that go before are given
theirs one after the other until it is this task's turn; once with the low side of all estimates, once with the likely
one, once with the high one. If a task ahead has no estimate, the start is unknown and none is given; if a task has
outrun its estimate, or the band is wide, the start is marked as a guess. The search considers at most `AHEAD` tasks. A task
that waits for a place of its array or sweep starts when those before it there have run.
Behind more, the suitable GPUs count as one pool without nodes, which the tasks ahead pass in turn; such a start is
always marked as a guess. Tasks ahead are counted from the queue's groups, up to `MOST_COUNTED`; behind more than those
no start is given.

A run time is predicted when its task is submitted. Here `revise` predicts it again, from tasks that have ended since.
No task is expected to run for less time than a running task with the same prediction has already run.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from copy import copy
from heapq import heapify, heappop, heappush
from itertools import chain, islice

from msgspec.structs import replace

from gpuyard.core.domain import refusals as no
from gpuyard.core.domain.events import Event, ReservationMade
from gpuyard.core.domain.refusals import Refusal
from gpuyard.core.domain.task import Estimate
from gpuyard.core.domain.values import MILLI, NodeId, TaskId, TaskStatus, Value
from gpuyard.core.engine.phases import Running, Suspended, Waiting
from gpuyard.core.engine.quota import UNLIMITED, check_quota, closed_by_model, is_stopped_by_quota, left_for, refusal
from gpuyard.core.engine.scheduling.actions import Context
from gpuyard.core.engine.scheduling.advice import HOLD_BACK_SECONDS
from gpuyard.core.engine.scheduling.backfill import expected_end, promise, reservations_before
from gpuyard.core.engine.scheduling.bookings import booking_in_the_way, closed_by_bookings, waits_for_booking
from gpuyard.core.engine.scheduling.defragment import makes_room
from gpuyard.core.engine.scheduling.try_place import try_place
from gpuyard.core.engine.state import Reservation, State, holds_gpus
from gpuyard.core.engine.task import UNKNOWN, OpenTask, Side
from gpuyard.core.engine.waiting.queue import Group
from gpuyard.core.engine.waiting.sort_key import sort_key
from gpuyard.core.engine.waiting.wakeups import Blocked
from gpuyard.core.placement.choose import choose, why_not
from gpuyard.core.placement.device_group_mask import DeviceGroupMask, members
from gpuyard.core.placement.shape import Shape

AHEAD = 200
"""Maximum number of tasks ahead that are given nodes one after the other, which costs a search each."""
WITNESSES = 2000
"""Maximum number of running tasks whose ages are considered."""
WIDE = 4.0
"""The likely start is a guess if the latest is more than this many times as far away, plus `LEEWAY_SECONDS`."""
LEEWAY_SECONDS = 60.0
Revise = Callable[[OpenTask], Estimate | None]
"""Predicts the run time of a waiting task from what is known now; None: no prediction."""
MOST_COUNTED = 10_000
"""Maximum number of tasks ahead that are counted, which bounds the cost of a count to a few milliseconds."""
MOST_GROUPS = 5_000
"""Maximum number of groups of waiting tasks (one line, tenant and class) searched for tasks ahead."""
SIDES: tuple[Side, ...] = ("low", "likely", "high")


class Explanation(Value, frozen=True):
    """Explanation of a task that has not started."""

    task: TaskId
    status: TaskStatus
    reason: Refusal | None
    """Why it waits; None: it does not wait."""
    ahead: int = 0
    """Number of waiting tasks that go before it and could use the same nodes or quota; 0 if no node could hold it."""
    more_ahead: bool = False
    """There are more tasks ahead: the count stops at MOST_COUNTED."""
    starts_at: float | None = None
    """When it is likely to start; None: unknown."""
    starts_low: float | None = None
    starts_high: float | None = None
    nodes: tuple[NodeId, ...] = ()
    """Where it will start, if nodes are already reserved."""
    guessed: bool = False
    """Whether the start is a guess: a task in the way has outrun its estimate, or the band is wide."""
    model_ran_on: tuple[NodeId, ...] = ()
    """Nodes that could hold it and where its model ran last; preferred if all else is equal."""
    may_be_overtaken: bool = False
    """Smaller tasks may use the GPUs that are too few for it, as `Settings.backfill` has it."""
    from_other_work: bool = False
    """Its estimate was learned from other work (`Estimate.from_other_work`)."""

    def sentence(self) -> str:
        """Return the reason as a sentence."""
        return self.reason.sentence() if self.reason else "It does not wait."


def middle_of_queue(state: State, tasks: Iterable[TaskId], now: float) -> TaskId | None:
    """Return which of these tasks has as many of them before as behind it in the queue; None: none is in the queue."""
    at = max(state.now, now)
    found = [task for number in tasks if (task := state.tasks.get(number)) is not None]
    queued = [task for task in found if isinstance(task.phase, Waiting) and not task.held and not task.waits_for]
    queued.sort(key=lambda task: sort_key(state, task, at))
    return queued[len(queued) // 2].id if queued else None


def explain(state: State, task_id: TaskId, now: float, revise: Revise | None = None) -> Explanation:
    """Explain a task."""
    task = state.tasks.get(task_id)
    if task is None:
        status = state.ended.get(task_id)
        unknown = no.UnknownTask(task_id)
        return Explanation(task_id, status or TaskStatus.PENDING, None if status else unknown)
    told = _explained(state, task, max(state.now, now), revise)
    if task.estimate is not None and task.estimate.from_other_work:
        return replace(told, from_other_work=True)
    return told


def _explained(state: State, task: OpenTask, at: float, revise: Revise | None) -> Explanation:
    task_id = task.id
    if not isinstance(task.phase, Waiting | Suspended):
        return Explanation(task_id, task.status, None)
    shape = task.group.line.shape if task.group else Shape(task.spec.resources)
    shape.refresh(state.index)
    reason = why_waits(state, task_id, at)
    if task.is_parked:
        return _explained_turn(state, task, reason, at, revise)
    count = _count_ahead(state, task, shape, at) if task.group and shape.eligible else 0
    reservation = state.reservations.get(task_id)
    guessed = count > AHEAD
    if guessed:
        starts = _rough_starts(state, task, shape, count, at)
    else:
        ahead, ages = _ahead(state, task, shape, at) if count else [], ages_of_running(state, at)
        task, *ahead = (estimated_now(other, revise, ages) for other in (task, *ahead))
        starts = [_starts(state, task, shape, ahead, at, side) for side in SIDES]
        guessed = starts[-1] is not None and starts[-1] != _starts(state, task, shape, ahead, at, "said")
    low, likely, high = _band(starts)
    if low is not None and likely is not None and high is not None:
        guessed = guessed or (high > low and high - at > WIDE * (likely - at) + LEEWAY_SECONDS)
    nodes = reservation.nodes if reservation else ()
    ran_on = tuple(sorted(state.index.hosts_of(state.index.model_cache.device_groups(task.model) & shape.eligible)))
    return Explanation(
        task_id, task.status, reason, min(count, MOST_COUNTED), count > MOST_COUNTED, likely, low, high, nodes,
        guessed and likely is not None, ran_on, _may_be_overtaken(state, shape, reason),
    )  # fmt: skip


def _may_be_overtaken(state: State, shape: Shape, reason: Refusal | None) -> bool:
    """Whether a task waits for room while smaller tasks may start: nothing is smaller than one GPU."""
    is_large = shape.gpus * shape.nodes > 1 or isinstance(reason, no.NoCpuRoom)
    return state.backfills and is_large and isinstance(reason, no.NoRoom | no.NoCpuRoom | no.GangIncomplete)


def expected_start(
    state: State, task: OpenTask, shape: Shape, at: float, revise: Revise | None = None
) -> tuple[int, tuple[float | None, float | None, float | None]]:
    """Return how many tasks go before a waiting task, and its earliest, likely and latest start; None: unknown."""
    count = _count_ahead(state, task, shape, at)
    if count > AHEAD:
        low, likely, high = _band(_rough_starts(state, task, shape, count, at))
        return min(count, MOST_COUNTED), (low, likely, high)
    ahead, ages = _ahead(state, task, shape, at), ages_of_running(state, at)
    task, *ahead = (estimated_now(other, revise, ages) for other in (task, *ahead))
    low, likely, high = _band([_starts(state, task, shape, ahead, at, side) for side in SIDES])
    return count, (low, likely, high)


def why_waits(state: State, task_id: TaskId, now: float) -> Refusal | None:
    """Return only the reason why a task waits; None: it does not wait, or no obstacle is left."""
    return why_all_wait(state, (task_id,), now).get(task_id)


def why_all_wait(state: State, tasks: Iterable[TaskId], now: float) -> dict[TaskId, Refusal]:
    """Return the reasons of many tasks. Tasks of one line, tenant and class share a reason, looked up once."""
    at = max(state.now, now)
    found, by_group = dict[TaskId, Refusal](), dict[Group, Refusal | None]()
    for task_id in tasks:
        task = state.tasks.get(task_id)
        if task is None or not isinstance(task.phase, Waiting | Suspended):
            continue
        reason = _own_reason(state, task, at)
        if reason is None and task.group is not None:
            if task.group not in by_group:
                by_group[task.group] = _blocked_reason(state, task, task.group, at)
            reason = by_group[task.group]
            if _names(reason, task):
                reason = _tried_reason(state, task, task.group, at)
        if reason is not None:
            found[task_id] = reason
    return found


def _band(starts: list[float | None]) -> list[float | None]:
    """Sort the starts if all are known: longer runs can open a gap, so they do not always give the latest start."""
    known = sorted(start for start in starts if start is not None)
    return list(known) if len(known) == len(starts) else starts


# --- why ----------------------------------------------------------------------------------------------------------


def _own_reason(state: State, task: OpenTask, at: float) -> Refusal | None:
    """Return what keeps this particular task out of the queue; None: nothing."""
    if task.waits_for:
        lowest = min(barrier.lowest_open(state.tasks) for barrier in task.waits_for)
        return no.WaitingForTasks(lowest, sum(barrier.left for barrier in task.waits_for))
    if task.held:
        return no.OnHold(task.id)
    if task.id in state.found_orphans and isinstance(task.phase, Waiting):
        return _orphan_reason(state, task)
    if isinstance(task.phase, Waiting) and task.phase.not_before > at:
        return no.BackingOff(task.phase.not_before)
    reservation = state.reservations.get(task.id)
    if reservation is not None and reservation.claim:
        moved = sorted(victim for victim in reservation.victims if makes_room(state.tasks[victim]))
        if moved:
            return no.WaitingForMoves(tuple(moved), reservation.nodes[0])
        return no.WaitingForVictims(len(reservation.victims), reservation.nodes[0])
    if task.is_parked:
        assert task.run_limit is not None
        limit = task.run_limit.limit
        return no.RunLimitReached(task.id, limit.first, limit.last, limit.most, task.run_limit.taken)
    return None


def _orphan_reason(state: State, task: OpenTask) -> Refusal:
    """Return the refusal that names the node on which an unknown attempt of the task runs."""
    where = (
        no.UnknownAttemptRuns(task.id, node)
        for node, there in state.orphaned_attempts.items()
        if any(what.task == task.id and left.found for what, left in there.items()) and not state.index.hosts[node].lost
    )
    return next(where)


def _blocked_reason(state: State, task: OpenTask, group: Group, at: float) -> Refusal | None:
    """Return the stored refusal of a queued task with current figures; if it was not tried yet, try it."""
    line = group.line
    line.shape.refresh(state.index)
    blocked = line.class_blocked[group.class_index] or group.blocked or line.blocked
    if blocked is None or not _still_holds(state, task, group, blocked, at):
        return _tried_reason(state, task, group, at)
    return spoken_refusal(state, task, group, blocked, at)


def _tried_reason(state: State, task: OpenTask, group: Group, at: float) -> Refusal | None:
    """Return the refusal that a task would get if it were tried now."""
    tried = try_place(Context(state, _emit_nothing), task, group.line, group)
    if isinstance(tried, Blocked):
        return spoken_refusal(state, task, group, tried, at)
    return _turn_reason(state, task, group, at)


def _still_holds(state: State, task: OpenTask, group: Group, blocked: Blocked, at: float) -> bool:
    """Whether a stored refusal still names the obstacle: entries behind the first one at a quota are not tried again."""
    shape = group.line.shape
    if blocked.refusal is no.Booked:  # of the first task of the line; this one may be shorter, or the booking over
        return False
    if blocked.refusal is no.QuotaReservedFor:
        return False  # the task ahead may have started, or may never start since a limit changed
    if blocked.refusal is no.ReservedFor:
        ahead = state.tasks.get(blocked.ahead) if blocked.ahead is not None else None
        if ahead is None or not isinstance(ahead.phase, Waiting | Suspended):
            return False
    if blocked.refusal in {no.ReservedFor, no.NoRoom, no.NodesClosed}:  # a quota that was lowered lasts longer
        return not is_stopped_by_quota(task, shape, state.classes, state.index, at)
    if blocked.refusal in {no.ClassQuotaFull, no.ClassQuotaTooSmall, no.BudgetSpent, no.TenantQuotaTooSmall} or (
        blocked.refusal is no.TenantQuotaFull and not blocked.reservation_helps
    ):
        return check_quota(task, shape.need_milli, state.classes, at) is blocked.refusal
    return True


def spoken_refusal(state: State, task: OpenTask, group: Group, blocked: Blocked, at: float) -> Refusal | None:
    """Return the refusal of a blocked task with current figures."""
    kind, shape = blocked.refusal, group.line.shape
    if kind is no.ReservedFor or kind is no.QuotaReservedFor:
        return kind(blocked.ahead) if blocked.ahead is not None else None
    if kind is no.BookingNotBegun or kind is no.Booked:
        return _booking_reason(state, task, group, at)
    if kind is no.HeldBack:
        return no.HeldBack(HOLD_BACK_SECONDS / 60.0)
    if kind is no.TenantModelQuotaFull:
        return _model_reason(state, task, group, at)
    if kind in {no.NoRoom, no.NodesClosed}:
        return _room_reason(state, task, group, at)
    if kind is no.TenantQuotaFull and blocked.reservation_helps:
        return _too_dear_reason(state, task, group, at)
    return refusal(kind, task, shape.need_milli, state.classes, at)


def _booking_reason(state: State, task: OpenTask, group: Group, at: float) -> Refusal | None:
    """Return the booking that a task waits for, or that keeps it from free GPUs."""
    shape = group.line.shape
    if (own := waits_for_booking(state, shape)) is not None:
        return no.BookingNotBegun(own.booking.id, own.booking.begins_at)
    found = booking_in_the_way(state, task, shape, at)
    if found is None:
        return _room_reason(state, task, group, at)
    booking, begun = found.booking, found.begun
    if booking.id == shape.resources.booking:
        return no.BookingFull(booking.id, booking.gpus)
    if booking.maintenance:
        node = next(part.node for part in booking.parts if shape.eligible & state.index.device_groups_of((part.node,)))
        return no.UnderMaintenance(node, booking.id, booking.begins_at, booking.ends_at, begun, task.has_known_end)
    return no.Booked(booking.id, booking.begins_at, booking.ends_at, begun, task.has_known_end)


def _under_maintenance(state: State, shape: Shape) -> Refusal | None:
    """Return the maintenance window that closes a node the task could use; None: there is none."""
    for record in state.bookings.values():
        if record.begun and record.booking.maintenance:
            for number in record.device_groups:
                if shape.eligible >> number & 1 and not state.index.open >> number & 1:
                    node = state.index.device_group(number).host.spec.id
                    booking = record.booking
                    return no.UnderMaintenance(node, booking.id, booking.begins_at, booking.ends_at, has_begun=True)
    return None


def _model_reason(state: State, task: OpenTask, group: Group, at: float) -> Refusal | None:
    """Return the GPU models on which the tenant is at its limit, if they would have room."""
    shape, tenant, index = group.line.shape, group.tenant, state.index
    closed = closed_by_model(tenant, shape, index)
    if choose(shape, index, state.order_for(shape.gpus)) is None:
        return _room_reason(state, task, group, at)
    models = tuple(sorted(model for model in tenant.model_limits if index.by_model.get(model, 0) & closed))
    return no.TenantModelQuotaFull(tenant.id, models)


def _too_dear_reason(state: State, task: OpenTask, group: Group, at: float) -> Refusal | None:
    """Return the reason of a task that finds room only where its charge exceeds what a quota has left."""
    shape = group.line.shape
    closed = closed_by_model(task.tenant_usage, shape, state.index)
    found = choose(shape, state.index, state.order_for(shape.gpus), closed)
    if found is None:
        return _model_reason(state, task, group, at) if closed else _room_reason(state, task, group, at)
    left, needed = left_for(task, state.classes), found.charge_milli
    if needed > left.in_class:
        return refusal(no.ClassQuotaFull, task, needed, state.classes, at)
    if needed <= left.in_tenant and (turn := _turn_reason(state, task, group, at)):
        return turn
    return refusal(no.TenantQuotaFull, task, needed, state.classes, at)


def _emit_nothing(_: Event) -> None:
    raise AssertionError("an attempt to place a task makes no event")


def _room_reason(state: State, task: OpenTask, group: Group, at: float) -> Refusal | None:
    """Return which nodes are closed, missing or too full."""
    shape = group.line.shape
    if shape.can_start(state.index) and choose(shape, state.index, state.order_for(shape.gpus)) is not None:
        return _turn_reason(state, task, group, at) or why_not(shape, state.index)
    reason = why_not(shape, state.index)
    if isinstance(reason, no.NodesClosed) and state.bookings:
        return _under_maintenance(state, shape) or reason
    if isinstance(reason, no.NoRoom) and (own := state.bookings.get(shape.resources.booking)) is not None:
        return no.BookingFull(own.booking.id, own.booking.gpus)
    return reason


def _names(reason: Refusal | None, task: OpenTask) -> bool:
    """Whether a refusal says that a task waits for itself: it was stored when another task was first in its group."""
    return isinstance(reason, no.ReservedFor | no.QuotaReservedFor) and reason.task == task.id


def _turn_reason(state: State, task: OpenTask, group: Group, at: float) -> Refusal | None:
    """Return the refusal of a task that would find room but has others before it."""
    before = reservations_before(state, task, at) if state.reservations else ()
    if before:
        return no.ReservedFor(min(before, key=lambda reservation: reservation.task.key).task.id)
    first = _first_of_all(state, task, group.line.shape, at)
    return no.ReservedFor(first.id) if first and sort_key(state, first, at) < sort_key(state, task, at) else None


# --- what is ahead ------------------------------------------------------------------------------------------------


def _rivals(state: State, task: OpenTask, shape: Shape) -> Iterator[Group]:
    """Yield groups that compete with the task for nodes, class or tenant quota; at most MOST_GROUPS are considered."""
    groups = chain.from_iterable(line.groups.values() for line in state.queue.lines.values())
    for group in islice(groups, MOST_GROUPS):
        same_quota = group.class_index == task.class_index or group.tenant is task.tenant_usage
        if group.size and (same_quota or group.line.shape.eligible & shape.eligible):
            yield group


def _first_of_all(state: State, task: OpenTask, shape: Shape, at: float) -> OpenTask | None:
    """Return the first of all competing tasks, possibly the task itself; only the first of each group is compared."""
    tops = (group.top() for group in _rivals(state, task, shape))
    return min((top[2] for top in tops if top is not None), key=lambda other: sort_key(state, other, at), default=None)


def _count_ahead(state: State, task: OpenTask, shape: Shape, at: float) -> int:
    """Count the tasks that go before; above MOST_COUNTED there may be more."""
    count = 0
    for group, before in _groups_ahead(state, task, shape, at):
        if before is None:
            count += group.size
        else:
            count += len({other.id for other in islice(_entries(group, before), MOST_COUNTED + 1 - count)})
        if count > MOST_COUNTED:
            break
    return count


def _ahead(state: State, task: OpenTask, shape: Shape, at: float) -> list[OpenTask]:
    """Return the tasks that go before, in queue order. Suitable for small numbers only."""
    found = {
        other.id: other for group, before in _groups_ahead(state, task, shape, at) for other in _entries(group, before)
    }
    return sorted(found.values(), key=lambda other: sort_key(state, other, at))


def _groups_ahead(
    state: State, task: OpenTask, shape: Shape, at: float
) -> Iterator[tuple[Group, tuple[float, TaskId] | None]]:
    """Yield groups with tasks that go before, and a key: only tasks with a smaller key do; None: all do."""
    *mine, key, number = sort_key(state, task, at)
    for group in _rivals(state, task, shape):
        top = group.top()
        if top is None:
            continue
        *theirs, _, _ = sort_key(state, top[2], at)
        if theirs <= mine:
            yield group, (key, number) if theirs == mine else None


def _entries(group: Group, before: tuple[float, TaskId] | None) -> Iterator[OpenTask]:
    """Yield the tasks of a group below a key, in no order. Below a larger heap entry all are larger and are skipped."""
    heap, places = group.heap, [0]
    while places:
        place = places.pop()
        if place < len(heap):
            key, number, task = heap[place]
            if before is None or (key, number) < before:
                places += (2 * place + 1, 2 * place + 2)
                if task.group is group and task.key == key:
                    yield task


# --- when ---------------------------------------------------------------------------------------------------------


def _starts(state: State, task: OpenTask, shape: Shape, ahead: list[OpenTask], at: float, side: Side) -> float | None:
    """Return when a task starts if all tasks take the given side of their estimates; None: unknown."""
    if task.waits_for or task.held or not shape.eligible or len(ahead) > AHEAD:
        return None
    reservation = state.reservations.get(task.id)
    if reservation is not None and reservation.claim:
        return at
    when = quota_frees_at(state, task, ahead, at, side)
    if when == UNKNOWN:
        return None
    reservations: list[Reservation] = []
    for other in ahead:
        if other.group is not None and other.group.line.shape.eligible & shape.eligible:
            reservations += pretended_reservation(state, other, other.group.line.shape, reservations, at, side)
    starts_at = found_room_at(state, task, shape, at, reservations, side)
    if starts_at is None:
        return None
    return max(starts_at, when, task.phase.not_before if isinstance(task.phase, Waiting) else at)


def found_room_at(
    state: State, task: OpenTask, shape: Shape, at: float, reservations: Sequence[Reservation], side: Side
) -> float | None:
    """Return when a waiting task finds room behind the given reservations, bookings and maintenance; None: unknown."""
    decided = state.tasks.get(task.id, task)  # with the estimate of its submission, as the scheduler decides
    not_now = closed_by_bookings(state, decided, shape, at) if state.booked & shape.eligible else 0
    found = promise(state, task, shape, at, reservations, side, not_now=not_now, after_maintenance=True)
    return None if found is None else found.starts_at


EstimateKind = tuple[str, str, Estimate]
"""Identifies tasks of one tenant and user with the same prediction."""


def ages_of_running(state: State, at: float) -> dict[EstimateKind, float]:
    """Return how long tasks with a predicted run time have run, the longest of each kind."""
    ages: dict[EstimateKind, float] = {}
    for task in islice(chain.from_iterable(tasks.values() for tasks in state.on_node.values()), WITNESSES):
        if isinstance(task.phase, Running) and task.estimate is not None and task.estimate.runs:
            kind = (task.spec.tenant, task.spec.user, task.estimate)
            ages[kind] = max(ages.get(kind, 0.0), task.served_at(at))
    return ages


def estimated_now(task: OpenTask, revise: Revise | None, ages: dict[EstimateKind, float]) -> OpenTask:
    """Return a waiting task with the run time that would be predicted now; an estimate given by the user is kept."""
    estimate = task.estimate
    if estimate is None or not estimate.runs or not isinstance(task.phase, Waiting):
        return task
    known = (revise(task) if revise is not None else None) or estimate
    age = ages.get((task.spec.tenant, task.spec.user, estimate), 0.0)
    if age > known.low_seconds:
        likely, high = max(known.seconds, age), max(known.high_seconds, 1.2 * age)
        known = replace(known, low_seconds=age, seconds=likely, high_seconds=max(likely, high))
    if known == estimate:
        return task
    played = copy(task)
    played.estimate = known
    return played


def pretended_reservation(
    state: State, task: OpenTask, shape: Shape, reservations: list[Reservation], at: float, side: Side
) -> list[Reservation]:
    """Return the reservation that a task would get behind the given ones; empty: none."""
    found = promise(state, task, shape, at, reservations, side, after_maintenance=True)
    if found is None:
        return []
    reservation = Reservation(task, shape, ReservationMade(task.id, found.nodes, found.starts_at), at)
    reservation.device_groups = state.index.device_groups_of(found.nodes)
    return [reservation]


def quota_frees_at(state: State, task: OpenTask, ahead: list[OpenTask], at: float, side: Side) -> float:
    """Return when class and tenant have quota for the task, after the tasks ahead of it there."""
    when = at
    usage, tenant = state.classes[task.class_index], task.tenant_usage
    if not tenant.can_pay(at):
        when = tenant.renews_at(at)
    if min(usage.limit, tenant.limit) >= UNLIMITED:
        return when
    active = {number: other for tasks in state.on_node.values() for number, other in tasks.items()}
    for used, limit, counts in (
        (usage.used, usage.limit, lambda other: other.class_index == task.class_index),
        (tenant.used, tenant.limit, lambda other: other.tenant_usage is tenant),
    ):
        if limit < UNLIMITED:
            counted = [other for other in active.values() if counts(other)]
            first = [other for other in ahead if counts(other)]
            ends = [
                (expected_end(other, at, side), other.active.placement.charge_milli)
                for other in counted
                if holds_gpus(other.phase)
            ]
            queued = ((_need(other), other.left_seconds(at, side)) for other in (*first, task))
            when = max(when, _turn_at(ends, queued, used, limit, at))
    return when


def _need(task: OpenTask) -> int:
    return task.group.line.shape.need_milli if task.group else 0


def _turn_at(
    ends: list[tuple[float, int]], queued: Iterable[tuple[int, float]], used: int, limit: int, at: float
) -> float:
    """Return when the last queued task gets its part of a limit, if each is admitted in order as soon as there is enough.

    `ends` are the ends and charges of running tasks, `queued` the needs and run times of those that wait.
    """
    heapify(ends)
    now = at
    for need, seconds in queued:
        while used + need > limit:
            if not ends:
                return UNKNOWN
            ended_at, charge = heappop(ends)
            now = max(now, ended_at)
            used -= charge
        used += need
        heappush(ends, (now + seconds, need))
    return now


# --- when its array or sweep has a place -----------------------------------------------------------------------------


def _explained_turn(
    state: State, task: OpenTask, reason: Refusal | None, at: float, revise: Revise | None
) -> Explanation:
    """Explain a task that waits for a place among the running tasks of its array or sweep.

    Its start is when it has its turn there. That GPUs may be missing then is neglected, so it is marked as a guess.
    """
    limited, shelf = task.run_limit, task.shelf
    assert limited is not None
    assert shelf is not None
    mine, ages = (task.key, task.id), ages_of_running(state, at)
    first: OpenTask | None = None
    ahead, running = list[OpenTask](), list[OpenTask]()
    for other in islice(limited.tasks(state), MOST_COUNTED):
        if other.has_place:
            running.append(other)
        elif other.shelf is not None and (other.key, other.id) < mine:
            ahead.append(estimated_now(other, revise, ages))
            if other.group is not None and (first is None or (other.key, other.id) < (first.key, first.id)):
                first = other
    soonest: list[float | None] = [at] * len(SIDES)
    if first is not None:
        told = explain(state, first.id, at, revise)
        soonest = [told.starts_low, told.starts_at, told.starts_high]
    starts: list[float | None] = []
    for side, begin in zip(SIDES, soonest, strict=True):
        ends = [(_frees_place(other, at, side), 1) for other in running]
        queued = [(1, other.left_seconds(at, side)) for other in ahead]
        places = limited.limit.most
        when = UNKNOWN if begin is None else _turn_at(ends, [*queued, (1, 0.0)], len(running), places, begin)
        starts.append(None if when == UNKNOWN else when)
    low, likely, high = _band(starts)
    return Explanation(task.id, task.status, reason, len(ahead), False, likely, low, high, guessed=likely is not None)


def _frees_place(task: OpenTask, at: float, side: Side) -> float:
    """Return when a task with a place is expected to end. One that others are stopped for, or that resumes, begins now."""
    if task.held:
        return UNKNOWN
    return expected_end(task, at, side) if holds_gpus(task.phase) else at + task.left_seconds(at, side)


# --- when, roughly ------------------------------------------------------------------------------------------------


def _rough_starts(state: State, task: OpenTask, shape: Shape, count: int, at: float) -> list[float | None]:
    """Return the starts of a task with many others ahead of it, by the throughput of the GPUs that it can use.

    Those GPUs count as one pool: that room may be left over on nodes, and that a gang waits for several, is neglected.
    A task ahead that can use other GPUs too takes a part of the pool.
    """
    pool = _pool_milli(state, shape.eligible)
    if task.waits_for or task.held or not shape.need_milli or not shape.can_start(state.index) or count > MOST_COUNTED:
        return [None] * len(SIDES)
    ahead = [other for group, before in _groups_ahead(state, task, shape, at) for other in _entries(group, before)]
    parts: dict[Group, int] = {}
    for other in ahead:
        group = other.group
        if group is not None and group not in parts:
            theirs = group.line.shape.eligible
            common = _pool_milli(state, theirs & shape.eligible)
            parts[group] = group.line.shape.need_milli * common // max(1, _pool_milli(state, theirs))
    starts = []
    for side in SIDES:
        when = quota_frees_at(state, task, ahead, at, side)
        if state.booked & shape.eligible:  # not before it could start if nothing was ahead of it
            when = max(when, found_room_at(state, task, shape, at, (), side) or when)
        ends = [(expected_end(other, at, side), charge) for other, charge in _held_of(state, shape)]
        queued = [
            (part, other.left_seconds(at, side)) for other in ahead if other.group and (part := parts[other.group])
        ]
        used = sum(charge for _, charge in ends)
        when = max(when, _turn_at(ends, [*queued, (shape.need_milli, 0.0)], used, max(pool, used), at))
        starts.append(None if when == UNKNOWN else when)
    return starts


def _pool_milli(state: State, device_groups: DeviceGroupMask) -> int:
    """Return the usable GPUs of device groups on open nodes, in thousandths."""
    index = state.index
    groups = (index.device_group(number) for number in members(device_groups & index.open))
    return sum(device_group.usable.bit_count() for device_group in groups) * MILLI


def _held_of(state: State, shape: Shape) -> Iterator[tuple[OpenTask, int]]:
    """Yield the tasks that hold GPUs on nodes that a shape can use, with their charge there."""
    for node in state.index.hosts_of(shape.eligible & state.index.open):
        for other in state.on_node.get(node, {}).values():
            if holds_gpus(other.phase):
                placement = other.active.placement
                yield other, placement.charge_milli // len(placement.slices)
