"""Try to place one task: where it can start now, or what blocks it and which wake-ups can change that.

The checks go from the most lasting obstacle to the most temporary one: nodes that could ever hold the task, the quota
of its class, the quotas of its tenant, limits on GPU models, quota that reservations ahead of it will use, and room.
The result is a value: trying changes nothing but the order of the queue's index. The scheduling pass acts on the
result.
"""

from collections.abc import Sequence
from typing import Any

from gpuyard.core.domain import refusals as no
from gpuyard.core.domain.placement import Placement
from gpuyard.core.domain.values import TaskId
from gpuyard.core.engine.quota import check_quota, closed_by_model, left_for
from gpuyard.core.engine.scheduling.actions import CLASS_INDEXES, Context, first_in
from gpuyard.core.engine.scheduling.backfill import blocking_reservations, reservations_before
from gpuyard.core.engine.scheduling.bookings import closed_by_bookings, waits_for_booking
from gpuyard.core.engine.state import Reservation
from gpuyard.core.engine.task import OpenTask
from gpuyard.core.engine.waiting.queue import ClassEntry, Group, Line
from gpuyard.core.engine.waiting.sort_key import is_borrowing, key_of_tenant, sort_key
from gpuyard.core.engine.waiting.wakeups import (
    ANY_ROOM,
    CLASS_LIMIT,
    CLASS_QUOTA,
    RESERVATION_ENDED,
    SOME,
    TOTAL,
    At,
    Blocked,
    RoomOn,
    TenantQuota,
)
from gpuyard.core.placement.choose import choose
from gpuyard.core.placement.device_group_mask import DeviceGroupMask, without
from gpuyard.core.placement.shape import Shape

Ready = tuple[Any, TaskId, Line, Group]
"""A candidate of a pass: rank without the task number, task number, line and group."""

NODES_CLOSED = Blocked(no.NodesClosed, (ANY_ROOM,))
NO_ROOM = Blocked(no.NoRoom, (ANY_ROOM,), True, True)
NOT_BEGUN = Blocked(no.BookingNotBegun, (ANY_ROOM,))
BOOKED = Blocked(no.Booked, (ANY_ROOM, RESERVATION_ENDED), True, True)
CLASS_TOO_SMALL = tuple(Blocked(no.ClassQuotaTooSmall, (wakeup,)) for wakeup in CLASS_LIMIT)
CLASS_FULL = tuple(Blocked(no.ClassQuotaFull, (wakeup,), True) for wakeup in CLASS_QUOTA)


def try_place(context: Context, task: OpenTask, line: Line, group: Group) -> Placement | Blocked:
    """Return where a task can start now; or the refusal that stops it and the wake-ups that can change the refusal."""
    state, shape = context.state, line.shape
    index = state.index
    if state.bookings and waits_for_booking(state, shape) is not None:
        return NOT_BEGUN
    if not shape.can_start(index):
        return NODES_CLOSED
    before = reservations_before(state, task, context.at) if state.reservations else ()
    if shape.need_milli and (blocked := _blocked_by_quota(context, task, group, shape, before)):
        return blocked
    by_model = above_quota = 0
    if group.tenant.model_limits or shape.needs is not None:
        by_model, above_quota = closed_to(context, task, group, shape, before)
    booked = closed_by_bookings(state, task, shape, context.at) if state.booked & shape.eligible else 0
    closed = by_model | above_quota | booked
    found: Placement | TaskId | None = None
    if task.avoid is not None:
        found = _find(context, task, shape, closed | index.device_groups_of((task.avoid,)), before)
    if task.avoid is None or not isinstance(found, Placement):
        found = _find(context, task, shape, closed, before)
    if isinstance(found, Placement):
        return found
    if found is None and not closed:
        return NO_ROOM
    if above_quota & shape.eligible:  # tried again whenever quota or room is freed
        return Blocked(no.TenantQuotaFull, (TenantQuota(group.tenant.id, SOME),), True, True)
    if by_model & shape.eligible:
        return Blocked(no.TenantModelQuotaFull, (TenantQuota(group.tenant.id, _model_limit(shape)),), True)
    if found is not None:
        return Blocked(no.ReservedFor, (ANY_ROOM, RESERVATION_ENDED), True, True, found)
    if booked and choose(shape, index, state.order_for(shape.gpus)) is not None:
        return BOOKED
    return NO_ROOM


def held_back(groups: DeviceGroupMask, until: float) -> Blocked:
    """Return the block of a task that has room but, on advice, waits until `until` for these device groups."""
    return Blocked(no.HeldBack, (RoomOn(groups), At(until)))


def waits_for_better(line: Line) -> DeviceGroupMask:
    """Return the device groups that a line waits for on advice; 0: it is not held back."""
    if line.blocked is None or line.blocked.refusal is not no.HeldBack:
        return 0
    wakeup = line.blocked.wakeups[0]
    assert isinstance(wakeup, RoomOn)
    return wakeup.groups


def closed_to(
    context: Context, task: OpenTask, group: Group, shape: Shape, before: Sequence[Reservation]
) -> tuple[DeviceGroupMask, DeviceGroupMask]:
    """Return the device groups closed to a task: by limits on GPU models, and because it is charged too much there."""
    state = context.state
    by_model = above_quota = 0
    if shape.need_milli and group.tenant.model_limits:
        by_model = closed_by_model(group.tenant, shape, state.index)
    if shape.needs is not None:
        above_quota = shape.above_quota(left_for(task, state.classes, before).least)
    return by_model, above_quota


# --- quotas -----------------------------------------------------------------------------------------------------------


def _blocked_by_quota(
    context: Context, task: OpenTask, group: Group, shape: Shape, before: Sequence[Reservation]
) -> Blocked | None:
    """Return the block if a quota stops a task, or if another task goes before it at the same quota."""
    state, class_index, tenant = context.state, group.class_index, group.tenant
    queue, need = state.queue, shape.need_milli
    refusal = check_quota(task, need, state.classes, context.at)
    if refusal is not None:
        if refusal is no.ClassQuotaFull:
            return CLASS_FULL[class_index]
        if refusal is no.ClassQuotaTooSmall:
            return CLASS_TOO_SMALL[class_index]
        if refusal is no.TenantQuotaTooSmall:
            return Blocked(refusal, (TenantQuota(tenant.id, SOME),))
    if queue.for_class[class_index] and (first := _first_at_class(context, task, class_index)):
        return Blocked(no.QuotaReservedFor, (CLASS_QUOTA[class_index],), True, ahead=first)
    if refusal is no.BudgetSpent:
        return Blocked(refusal, (TenantQuota(tenant.id, TOTAL), At(tenant.renews_at(context.at))))
    if queue.for_tenant and (first := _first_at_tenant(context, task, TOTAL)):
        return Blocked(no.QuotaReservedFor, (TenantQuota(tenant.id, TOTAL),), True, ahead=first)
    if refusal is not None:
        return Blocked(refusal, (TenantQuota(tenant.id, TOTAL),), True)
    if tenant.model_limits and (blocked := _blocked_by_model(context, task, group, shape)):
        return blocked
    return _blocked_by_reserved_quota(context, task, group, need, before) if before else None


def _blocked_by_model(context: Context, task: OpenTask, group: Group, shape: Shape) -> Blocked | None:
    """Return the block if the tenant's limit on GPU models closes all device groups, or another task goes first."""
    closed, limit = closed_by_model(group.tenant, shape, context.state.index), _model_limit(shape)
    wakeup = TenantQuota(group.tenant.id, limit)
    if limit == SOME:
        all_closed = closed & shape.eligible and not without(shape.eligible, closed)
        return Blocked(no.TenantModelQuotaFull, (wakeup,)) if all_closed else None
    if closed & shape.eligible:
        return Blocked(no.TenantModelQuotaFull, (wakeup,))
    first = _first_at_tenant(context, task, limit)
    return Blocked(no.QuotaReservedFor, (wakeup,), ahead=first) if first else None


def _blocked_by_reserved_quota(
    context: Context, task: OpenTask, group: Group, need: int, before: Sequence[Reservation]
) -> Blocked | None:
    """Return the block if reservations of tasks that go before will use what a quota has left."""
    left = left_for(task, context.state.classes, before)
    if need > left.in_class:
        first = next(reservation.task.id for reservation in before if reservation.task.class_index == task.class_index)
        return Blocked(no.QuotaReservedFor, (CLASS_QUOTA[group.class_index],), ahead=first)
    if need > left.in_tenant:
        first = next(
            reservation.task.id for reservation in before if reservation.task.tenant_usage is task.tenant_usage
        )
        return Blocked(no.QuotaReservedFor, (TenantQuota(group.tenant.id, TOTAL),), ahead=first)
    return None


def _model_limit(shape: Shape) -> str:
    """Return the model limit that applies to a shape: its only model, or SOME for several models or some nodes."""
    return shape.resources.models[0] if len(shape.resources.models) == 1 and shape.needs is None else SOME


def first_for_class(context: Context, class_index: int) -> ClassEntry | None:
    """Return the first line that waits for a class quota and could ever start; others do not block those behind."""
    state = context.state
    queue, limit = state.queue, state.classes[class_index].limit
    while (first := queue.first_for_class(class_index)) is not None:
        _, task_id, line = first
        shape = line.shape
        if shape.version != state.index.version:
            shape.refresh(state.index)
        tenant_limit = state.tasks[task_id].tenant_usage.limit
        if shape.need_milli <= limit and shape.need_milli <= tenant_limit and shape.can_start(state.index):
            return first
        _block_elsewhere(context, line, class_index)
    return None


def _block_elsewhere(context: Context, line: Line, class_index: int) -> None:
    """Move the first line that waits for the quota of a class to the more lasting obstacle that stops it."""
    state, queue = context.state, context.state.queue
    head, blocked = line.head(class_index), line.class_blocked[class_index]
    assert head is not None
    assert blocked is not None
    group = head[2]
    queue.unblock_class(class_index)
    if line.shape.need_milli > state.classes[class_index].limit:
        queue.block(line, group, CLASS_TOO_SMALL[class_index])
    elif not line.shape.can_start(state.index):
        queue.block(line, group, NODES_CLOSED)
    else:
        queue.block(line, group, Blocked(no.TenantQuotaTooSmall, (TenantQuota(group.tenant.id, SOME),)))
        if (next_head := line.head(class_index)) is not None:
            queue.block(line, next_head[2], blocked)


def _first_at_class(context: Context, task: OpenTask, class_index: int) -> TaskId | None:
    """Return the first task that waits for the quota of the class, if it goes before `task`."""
    waiting = context.state.queue.for_class[class_index]
    if context.state.keys_suffice:
        mine = (task.key, task.id)
        if waiting[0][:2] >= mine:
            return None  # no later entry goes before either, stale or not
        first = first_for_class(context, class_index)
        return first[1] if first is not None and first[:2] < mine else None
    rank = sort_key(context.state, task, context.at)
    lines = {line.number: line for _, _, line in waiting if line.class_blocked[class_index]}
    for line in lines.values():
        best = best_of(context, line, class_index)
        if best is not None and (*best[0], best[1]) < rank:
            return best[1]
    return None


def _first_at_tenant(context: Context, task: OpenTask, limit: str) -> TaskId | None:
    """Return a task of the same tenant that this limit stops and that goes before; SOME has no such order."""
    state, tenant = context.state, task.spec.tenant
    queue = state.queue
    if limit == SOME or tenant not in queue.for_tenant:
        return None
    if state.keys_suffice:
        first = queue.first_for_tenant(tenant, limit)
        return first[1] if first is not None and first[:2] < (task.key, task.id) else None
    mine = sort_key(state, task, context.at)
    for _, _, group in queue.for_tenant[tenant].get(limit, ()):
        if group.blocked is not None and group.limit == limit:
            top = group.top()
            if top is not None and sort_key(state, top[2], context.at) < mine:
                return top[1]
    return None


def best_of(context: Context, line: Line, class_index: int) -> Ready | None:
    """Return the best task of a line and class where ranks change with every placement: all groups are compared."""
    state = context.state
    line.head(class_index)  # removes stale entries
    line.shape.refresh(state.index)
    borrowing, need = is_borrowing(state, class_index), line.shape.need_milli
    entries: list[Ready] = []
    for key, task, group in line.tops(class_index):
        by_tenant = key_of_tenant(state, group.tenant, need, context.at)
        entries.append(((borrowing, by_tenant, key), task, line, group))
    return min(entries, key=lambda entry: entry[:2], default=None)


# --- room -------------------------------------------------------------------------------------------------------------


def _find(
    context: Context, task: OpenTask, shape: Shape, closed: DeviceGroupMask, before: Sequence[Reservation]
) -> Placement | TaskId | None:
    """Find room that is not reserved for a task that goes before; else return the task the room is kept for, if any."""
    state = context.state
    order = state.order_for(shape.gpus)
    if not state.backfills and (first := first_without_backfill(context, task, shape)):
        return first
    if not before:
        return choose(shape, state.index, order, closed, model=task.model)
    reserved: DeviceGroupMask = 0
    for reservation in before:
        reserved |= reservation.device_groups
    placement = choose(shape, state.index, order, closed | reserved, model=task.model)
    if placement is None and reserved & shape.eligible and choose(shape, state.index, order, closed) is not None:
        away = blocking_reservations(state, task, shape, context.at, before)
        placement = choose(shape, state.index, order, closed | away, model=task.model)
        if placement is None:
            ahead = min(
                (reservation for reservation in before if reservation.device_groups & shape.eligible),
                key=lambda reservation: reservation.task.key,
            )
            return ahead.task.id
    return placement


def first_without_backfill(context: Context, task: OpenTask, shape: Shape) -> TaskId | None:
    """Without backfill: return a task that goes before and wants any of the same nodes."""
    state = context.state
    mine = sort_key(state, task, context.at)
    for line in state.queue.lines.values():
        if line.blocked is not None and line.blocked is not NOT_BEGUN and not waits_for_better(line):
            line.shape.refresh(state.index)
            if line.shape.eligible & shape.eligible:
                for class_index in CLASS_INDEXES:
                    first = first_in(context, line, class_index, mine)
                    if first is not None:
                        return first.id
    return None
