"""Bookings: GPUs that are held for the tasks that name a booking, from its begin to its end.

A booking names nodes and a number of GPUs on each. Which GPUs these are is not fixed: at every instant of the booking,
tasks outside it leave enough of them free.

    GPUs of the node
      4 ┤████ a ████        ▒▒▒▒▒▒▒▒▒▒▒▒      a, b run; two GPUs are booked from s to e
      3 ┤████ a ████        ▒▒ booked ▒▒      c ends before s and starts at once
      2 ┤ c c                                 d has no end that is known: it gets one of the two GPUs that are never
      1 ┤████████ b ███████████████████      booked, or waits for another node
        └───────────────────┬──────────┬──► time
                            s          e

A task outside the booking is placed on a booked device group only if, at each begin of a booking before its end, the
tasks that are expected to run then leave enough GPUs. Ends come from timeouts and from the high side of estimates, as
in `backfill`, unless an estimate was learned from other work: a hundred commands of a second say nothing about the first
training. A task without either is expected to run for `ASSUMED_SECONDS`, so that a booking in three weeks does not
keep GPUs idle until then. A task that may be preempted, for a booking that preempts, is placed as if the booking did
not exist before its begin.

Expectations can be wrong. At the begin, tasks that are still there are recorded in `BookingBegan.late`; they are
stopped if both they and the booking allow it, and are waited for otherwise. No other task takes their place.
"""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from gpuyard.core.domain import refusals as no
from gpuyard.core.domain.booking import BookedGpus
from gpuyard.core.domain.refusals import Refusal
from gpuyard.core.domain.task import Resources
from gpuyard.core.domain.values import NodeId, Preemption, TaskId
from gpuyard.core.engine.phases import HOLDING
from gpuyard.core.engine.scheduling.backfill import (
    ROUNDING,
    ends_on,
    expected_end,
    held_on,
    makes_way,
    need_of,
    seconds_before_bookings,
)
from gpuyard.core.engine.state import BookingRecord, State, holds_gpus
from gpuyard.core.engine.task import OpenTask
from gpuyard.core.placement.device_group_mask import DeviceGroupMask, members
from gpuyard.core.placement.index import DeviceGroup
from gpuyard.core.placement.shape import Shape


def closed_by_bookings(state: State, task: OpenTask, shape: Shape, at: float) -> DeviceGroupMask:
    """Return the device groups that a task must not use because of bookings other than its own."""
    closed: DeviceGroupMask = 0
    for number in members(state.booked & shape.eligible):
        device_group = state.index.device_group(number)
        if _obstacle(state, task, shape, device_group, at) is not None:
            closed |= device_group.bit
    return closed


def booking_in_the_way(state: State, task: OpenTask, shape: Shape, at: float) -> BookingRecord | None:
    """Return the booking that keeps a task from device groups it could use, the one that ends first; None: there is none."""
    found = (
        _obstacle(state, task, shape, state.index.device_group(number), at)
        for number in members(state.booked & shape.eligible & state.index.open)
    )
    return min(
        (record for record in found if record is not None),
        key=lambda record: (record.booking.ends_at, record.booking.id),
        default=None,
    )


def waits_for_booking(state: State, shape: Shape) -> BookingRecord | None:
    """Return the booking of a task if it has not begun; None: it has begun or ended, or the task names none."""
    record = state.bookings.get(shape.resources.booking)
    return None if record is None or record.begun else record


def _obstacle(state: State, task: OpenTask, shape: Shape, device_group: DeviceGroup, at: float) -> BookingRecord | None:
    """Return the booking that one part of a task would violate in a device group; None: there is none."""
    number, mine = device_group.number, shape.resources.booking
    here = [record for record in state.bookings.values() if number in record.device_groups]
    own = next((record for record in here if record.booking.id == mine), None)
    need = need_of(shape, device_group).gpus
    if own is not None and need and _used_by(state, own, device_group) + need > own.device_groups[number]:
        return own
    ends = at + seconds_before_bookings(device_group, task, shape, at) - ROUNDING
    relevant = [
        record
        for record in here
        if record is not own
        and (record.begun or (record.booking.begins_at < ends and not makes_way(task, record.booking)))
    ]
    closing = next((record for record in relevant if record.booking.maintenance), None)
    if closing is not None:
        return closing
    if not need or not relevant:
        return None
    ends_here = [
        (when, taken.gpus, holder) for when, taken, holder in ends_on(state, device_group, at, "known") if taken.gpus
    ]
    for record in relevant:
        instant = at if record.begun else record.booking.begins_at
        if own is not None and own.is_active_at(instant):
            continue  # within its own booking, the task takes nothing from this one
        usable = device_group.usable.bit_count()
        if _outside(here, ends_here, instant, at) + need + _booked(here, number, instant) > usable:
            return record
    return None


def _booked(here: Iterable[BookingRecord], number: int, instant: float) -> int:
    return sum(record.device_groups[number] for record in here if record.is_active_at(instant))


def _outside(
    here: list[BookingRecord], ends: list[tuple[float, int, OpenTask | None]], instant: float, at: float
) -> int:
    """Return the GPUs of a device group that tasks outside the bookings of an instant are expected to hold then."""
    inside = {record.booking.id for record in here if record.is_active_at(instant)}
    return sum(
        gpus
        for when, gpus, holder in ends
        if (instant <= at or when > instant + ROUNDING)
        and (holder is None or holder.spec.resources.booking not in inside)
    )


def _used_by(state: State, record: BookingRecord, device_group: DeviceGroup) -> int:
    """Return the GPUs of a device group that the tasks of a booking hold; each of its shares counts as a GPU."""
    used = 0
    for task in state.on_node[device_group.host.spec.id].values():
        if task.spec.resources.booking == record.booking.id and isinstance(task.phase, HOLDING):
            is_share = task.spec.resources.share is not None
            used += 1 if is_share and holds_gpus(task.phase) else held_on(device_group, task).gpus
    return used


# --- at the begin --------------------------------------------------------------------------------------------------------


def late_tasks(
    state: State, record: BookingRecord, instant: float | None = None
) -> Iterator[tuple[DeviceGroup, int, list[OpenTask]]]:
    """Yield, for each device group that lacks GPUs for a booking, how many it lacks, and the tasks that hold them.

    Under maintenance these are all tasks of a node, and the number is theirs. `instant`: count only tasks that are
    expected to hold them until after it; None: all that hold them now.
    """
    booking, at = record.booking, state.now
    until = at if instant is None else instant
    for number, booked in record.device_groups.items():
        device_group = state.index.device_group(number)
        tasks = [
            task
            for task in state.on_node[device_group.host.spec.id].values()
            if isinstance(task.phase, HOLDING)
            and task.spec.resources.booking != booking.id
            and (until <= at or expected_end(task, at, "known") > until + ROUNDING)
        ]
        if booking.maintenance:
            if tasks and device_group is device_group.host.device_groups[0]:
                yield device_group, len(tasks), tasks
            continue
        held = sum(
            taken.gpus
            for when, taken, holder in ends_on(state, device_group, at)
            if holder in tasks or (holder is None and when > until)
        )
        holders = [task for task in tasks if holds_gpus(task.phase) and _is_in(device_group, task)]
        lacking = held + booked - device_group.usable.bit_count()
        if lacking > 0:
            yield device_group, lacking, holders


def _is_in(device_group: DeviceGroup, task: OpenTask) -> bool:
    return any(
        part.node == device_group.host.spec.id and any(device_group.all >> gpu & 1 for gpu in part.gpus)
        for part in task.active.placement.slices
    )


def victims_of(state: State, record: BookingRecord) -> list[OpenTask]:
    """Return the tasks to stop at the begin of a booking that preempts, those that ran for the shortest time first."""
    chosen: dict[TaskId, OpenTask] = {}
    for device_group, lacking, tasks in late_tasks(state, record):
        left = lacking - sum(held_on(device_group, task).gpus for task in chosen.values() if task in tasks)
        for task in sorted(tasks, key=lambda task: (-task.placed_at, task.id)):
            if left <= 0:
                break
            if task.preemption is not Preemption.NEVER and task.id not in chosen:
                chosen[task.id] = task
                left -= 1 if task.spec.resources.share else held_on(device_group, task).gpus
    return list(chosen.values())


# --- choosing GPUs to book ------------------------------------------------------------------------------------------------


class _Offer(NamedTuple):
    """The GPUs of a device group that a booking could have."""

    device_group: DeviceGroup
    clean: int
    """GPUs that are expected to be free at its begin."""
    most: int
    """GPUs that are not booked by others, free or not."""


def choose_gpus(
    state: State,
    gpus: int,
    models: tuple[str, ...],
    nodes: tuple[NodeId, ...],
    begins_at: float,
    ends_at: float,
    skip: int = 0,
) -> tuple[BookedGpus, ...] | Refusal:
    """Return GPUs that can be booked: on one node if possible, and where no task is expected to be in the way.

    `skip` is the booking that is being moved.
    """
    shape = Shape(Resources(gpus=1, models=models))
    shape.refresh(state.index)
    if not shape.eligible:
        return shape.never(state.index) or no.TooLittleToBook(gpus, 0)
    offers = []
    for number in members(shape.eligible):
        device_group = state.index.device_group(number)
        host = device_group.host
        if not host.lost and device_group.usable and (not nodes or host.spec.id in nodes):
            offers.append(_offer(state, device_group, begins_at, ends_at, skip))
    free = sum(offer.most for offer in offers)
    if free < gpus:
        return no.TooLittleToBook(gpus, free)
    for of in (_clean, _most):
        fitting = [offer for offer in offers if of(offer) >= gpus]
        if fitting:
            best = min(
                fitting, key=lambda offer: (not offer.device_group.host.open, of(offer), offer.device_group.number)
            )
            return (_part(best.device_group, gpus),)
        if sum(of(offer) for offer in offers) >= gpus:
            break
    return _spread(offers, gpus)


def _clean(offer: _Offer) -> int:
    return offer.clean


def _most(offer: _Offer) -> int:
    return offer.most


def _spread(offers: list[_Offer], gpus: int) -> tuple[BookedGpus, ...]:
    """Return GPUs on as few nodes as possible, those that are expected to be free first."""
    parts: dict[int, tuple[DeviceGroup, int]] = {}
    left = gpus
    ranked = sorted(
        offers, key=lambda offer: (not offer.device_group.host.open, -offer.clean, offer.device_group.number)
    )
    for of in (_clean, _most):
        for offer in ranked:
            number = offer.device_group.number
            had = parts[number][1] if number in parts else 0
            more = min(left, of(offer) - had)
            if more > 0:
                parts[number] = (offer.device_group, had + more)
                left -= more
    return tuple(_part(device_group, count) for device_group, count in parts.values())


def _part(device_group: DeviceGroup, gpus: int) -> BookedGpus:
    first = (device_group.all & -device_group.all).bit_length() - 1
    return BookedGpus(device_group.host.spec.id, gpus, first)


def _offer(state: State, device_group: DeviceGroup, begins_at: float, ends_at: float, skip: int) -> _Offer:
    """Return how many GPUs of a device group can be booked."""
    at, number = state.now, device_group.number
    others = [
        record
        for record in state.bookings.values()
        if number in record.device_groups and record.booking.id != skip and record.overlaps(begins_at, ends_at)
    ]
    usable = device_group.usable.bit_count()
    if any(record.booking.maintenance for record in others):
        return _Offer(device_group, 0, 0)
    begins = [begins_at, *(record.booking.begins_at for record in others if record.booking.begins_at > begins_at)]
    booked = max(
        sum(
            record.device_groups[number]
            for record in others
            if record.booking.begins_at <= instant < record.booking.ends_at
        )
        for instant in begins
    )
    ends_here = [(when, taken.gpus, holder) for when, taken, holder in ends_on(state, device_group, at, "known")]
    held = _outside(others, ends_here, begins_at, at)
    most = max(0, usable - booked)
    return _Offer(device_group, max(0, min(most, usable - held - booked)), most)


def maintenance_parts(state: State, nodes: tuple[NodeId, ...]) -> tuple[BookedGpus, ...]:
    """Return the parts of a maintenance window: all GPUs of each node."""
    return tuple(BookedGpus(node, len(state.index.hosts[node].spec.gpus)) for node in dict.fromkeys(nodes))
