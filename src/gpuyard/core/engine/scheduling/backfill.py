"""Backfill: small tasks use the gap in front of a large task without delaying it.

A task that finds no room may get a *reservation*: nodes that are promised to it, and the instant at which the tasks
running there are expected to have ended. A task behind it in the queue may use those nodes only if it ends before that
instant, or if the nodes have enough for both. Under `easy` the first task in the queue has a reservation, under
`conservative` the first few; tasks that could not use the same nodes are counted separately. A task that needs a single
GPU gets no reservation: it can take the next GPU that is freed.

    GPUs of the node
      4 ┤████ a ████▒▒▒▒▒▒▒▒▒▒▒▒        a, b run; the large task c has a reservation of the node at t
      3 ┤████ a ████▒▒▒▒▒▒▒▒▒▒▒▒        d is short and starts at once in the gap
      2 ┤████████ b ████████▒▒▒▒▒▒      e is long and would delay c: it may not use this node
      1 ┤ d d       ▒▒▒▒▒▒▒▒ c ▒▒
        └───────────────────┬────► time
                            t

Run times are known only from estimates and timeouts. The high side of the estimate is used for running and for waiting
tasks, so a reservation is as reliable as the estimates. Where run times are unknown, tasks that came later are kept off
the nodes: the large task starts when the present tasks end.
"""

from collections.abc import Iterator, Sequence
from itertools import islice
from math import inf
from operator import itemgetter
from typing import NamedTuple

from gpuyard.core.domain.booking import Booking
from gpuyard.core.domain.placement import Placement, Slice
from gpuyard.core.domain.values import MILLI, NodeId, Preemption
from gpuyard.core.engine.phases import ACTIVE, HOLDING, Phase, Stopping, Suspended, Suspending
from gpuyard.core.engine.state import BookingRecord, Reservation, State, holds_gpus
from gpuyard.core.engine.task import UNKNOWN, OpenTask, Side
from gpuyard.core.engine.waiting.sort_key import sort_key
from gpuyard.core.placement.device_group_mask import DeviceGroupMask, members, without
from gpuyard.core.placement.index import DeviceGroup
from gpuyard.core.placement.shape import Shape
from gpuyard.core.placement.topology import mask_of

STOP_TAKES_SECONDS = 30.0
"""Seconds for which a task that is being stopped is expected to keep its GPUs."""
ASSUMED_SECONDS = 24 * 3600.0
"""Seconds for which a task is expected to run before a booking if nothing is known about its run time."""
ROUNDING = 1e-3
"""Seconds by which an end and the begin of a booking may overlap."""


class ResourceAmount(NamedTuple):
    """GPUs, CPUs and host memory that a task needs in a device group, or that a device group has."""

    gpus: int
    cpus: int
    memory_mib: int

    def covers(self, other: "ResourceAmount") -> bool:
        """Whether every quantity is at least that of `other`."""
        return self.gpus >= other.gpus and self.cpus >= other.cpus and self.memory_mib >= other.memory_mib

    def plus(self, other: "ResourceAmount", sign: int = 1) -> "ResourceAmount":
        """Add `other`, or with `sign` -1 subtract it."""
        return ResourceAmount(
            self.gpus + sign * other.gpus, self.cpus + sign * other.cpus, self.memory_mib + sign * other.memory_mib
        )


NOTHING = ResourceAmount(0, 0, 0)
EVERYTHING = ResourceAmount(1 << 40, 1 << 40, 1 << 40)
"""What a maintenance window takes of a node: no task fits beside it, not even one that needs nothing."""
_when = itemgetter(0)


class Promise(NamedTuple):
    """Where and when a task is expected to start."""

    nodes: tuple[NodeId, ...]
    starts_at: float | None


def need_of(shape: Shape, device_group: DeviceGroup) -> ResourceAmount:
    """Return what one part of a shape needs in a device group; a share counts as a GPU, since it may need a new one."""
    gpus = device_group.usable.bit_count() if shape.whole_nodes else 1 if shape.share else shape.gpus
    return ResourceAmount(gpus, shape.cpus, shape.memory_mib)


def expected_end(task: OpenTask, at: float, side: Side = "high") -> float:
    """Return the instant at which a task is expected to release what it holds.

    A suspended task keeps its host memory for an unknown time.
    """
    phase = task.phase
    if type(phase) is Stopping or type(phase) is Suspending:
        return at + STOP_TAKES_SECONDS
    if type(phase) is Suspended:
        return UNKNOWN
    return at + task.seconds_at(task.speed, at, side)


def held_on(device_group: DeviceGroup, task: OpenTask) -> ResourceAmount:
    """Return what a task holds of a device group and its node; shared GPUs are not counted here but in `ends_on`."""
    phase = task.phase
    assert isinstance(phase, ACTIVE)
    return _held(device_group, phase, _part_on(phase.placement, device_group.host.spec.id))


def _part_on(placement: Placement, node: NodeId) -> Slice:
    first = placement.slices[0]
    return first if first.node == node else next(part for part in placement.slices if part.node == node)


def _held(device_group: DeviceGroup, phase: Phase, part: Slice) -> ResourceAmount:
    if not holds_gpus(phase):
        return ResourceAmount(0, 0, part.memory_mib)
    amount = _amount(device_group, part)
    return amount._replace(memory_mib=0) if type(phase) is Suspending else amount


def _amount(device_group: DeviceGroup, part: Slice) -> ResourceAmount:
    gpus = (device_group.usable & mask_of(part.gpus)).bit_count() if part.milli == MILLI else 0
    return ResourceAmount(gpus, part.cpus, part.memory_mib)


def _holders(
    state: State, device_group: DeviceGroup, at: float, side: Side
) -> Iterator[tuple[float, ResourceAmount, Slice, OpenTask | None]]:
    """Yield what will be released in a device group: by tasks, and by ended attempts that may still run there."""
    node = device_group.host.spec.id
    for task in state.on_node[node].values():
        phase = task.phase
        if isinstance(phase, HOLDING):
            part = _part_on(phase.placement, node)
            yield expected_end(task, at, side), _held(device_group, phase, part), part, task
    for left in state.orphaned_attempts.get(node, {}).values():
        yield at + STOP_TAKES_SECONDS, _amount(device_group, left.part), left.part, None


def ends_on(
    state: State, device_group: DeviceGroup, at: float, side: Side = "high"
) -> list[tuple[float, ResourceAmount, OpenTask | None]]:
    """Return when the resources taken in a device group are expected to be free, soonest first.

    A shared GPU becomes free when the last task on it ends.
    """
    holders = list(_holders(state, device_group, at, side))
    ends = [(when, amount, task) for when, amount, _, task in holders]
    if device_group.shared:
        last_by_gpu: dict[int, tuple[float, OpenTask | None]] = {}
        for when, _, part, task in holders:
            if part.milli < MILLI and part.gpus[0] in device_group.shared and (task is None or holds_gpus(task.phase)):
                gpu = part.gpus[0]
                last_by_gpu[gpu] = max(last_by_gpu.get(gpu, (when, task)), (when, task), key=_when)
        ends.extend(
            (when, ResourceAmount(device_group.usable >> gpu & 1, 0, 0), last)
            for gpu, (when, last) in last_by_gpu.items()
        )
    ends.sort(key=_when)
    return ends


def _has_an_end(state: State, node: NodeId) -> bool:
    """Whether the end of anything on a node is known."""
    return node in state.orphaned_attempts or any(
        task.estimate is not None
        or task.spec.timeout_seconds is not None
        or isinstance(task.phase, Stopping | Suspending)
        for task in state.on_node[node].values()
    )


def capacity(state: State, device_group: DeviceGroup) -> ResourceAmount:
    """Return what a device group has once all running tasks end; suspended tasks keep their host memory."""
    spec = device_group.host.spec
    kept = 0
    for task in state.on_node[spec.id].values():
        phase = task.phase
        if isinstance(phase, Suspended | Suspending):
            kept += sum(part.memory_mib for part in phase.placement.slices if part.node == spec.id)
    return ResourceAmount(device_group.usable.bit_count(), spec.cpus, spec.memory_mib - kept)


def is_unreachable(state: State, reservation: Reservation) -> bool:
    """Whether a reservation waits for host memory of suspended tasks that cannot resume before it is used."""
    if reservation.claim or not reservation.shape.memory_mib:
        return False
    for node in reservation.nodes:
        device_groups = [
            device_group
            for device_group in state.index.hosts[node].device_groups
            if device_group.bit & reservation.shape.eligible
        ]
        if not any(
            capacity(state, device_group).covers(need_of(reservation.shape, device_group))
            for device_group in device_groups
        ):
            return True
    return False


class RoomChange(NamedTuple):
    """A change of the free room of a device group at an instant."""

    at: float
    change: ResourceAmount
    keeps_away_seconds: float | None = None
    """If room is taken: a task that needs it must not start less than this long before. None: room is released."""


def earliest(
    state: State,
    device_group: DeviceGroup,
    task: OpenTask,
    shape: Shape,
    seconds: float,
    at: float,
    *,
    reservations: Sequence[Reservation],
    not_before: float,
    side: Side = "high",
    not_now: bool = False,
) -> float:
    """Return the first instant from which a device group has room for one part of a task of this shape.

    The room lasts for `seconds` and leaves enough for the given reservations. Bookings keep the task away for as long as
    it counts as running where GPUs are booked, whatever `side` is. `not_now`: it is known that bookings keep it from
    starting now. UNKNOWN: no such instant is known.
    """
    need = need_of(shape, device_group)
    free = ResourceAmount(device_group.free, device_group.host.cpus_free, device_group.host.memory_free)
    steps = [
        RoomChange(when, freed)
        for when, freed, _ in (
            ends_on(state, device_group, at, side) if _has_an_end(state, device_group.host.spec.id) else ()
        )
        if when != UNKNOWN
    ]
    if state.bookings:
        steps, free = _with_bookings(state, device_group, task, shape, steps, free, at, side)
    for reservation in reservations:
        if reservation.device_groups & device_group.bit:
            taken = need_of(reservation.shape, device_group)
            if reservation.starts_at is None:  # its start is unknown, and therefore its end
                free = free.plus(taken, -1)
                continue
            starts = max(reservation.starts_at, at)
            steps.append(RoomChange(starts, NOTHING.plus(taken, -1), seconds))
            steps.append(
                RoomChange(starts + seconds_on(device_group, reservation.task, reservation.shape, at, side), taken)
            )
    found = _first_room(need, free, steps, not_before, not_now=not_now)
    own = state.bookings.get(shape.resources.booking)
    if own is not None and need.gpus and found != UNKNOWN:
        within = _room_within(state, own, device_group, need, reservations, found, at, side)
        if within > found:
            found = UNKNOWN if within == UNKNOWN else _first_room(need, free, steps, within)
    return found


def _first_room(
    need: ResourceAmount, free: ResourceAmount, steps: list[RoomChange], not_before: float, *, not_now: bool = False
) -> float:
    """Return the first instant, not before the given one, from which there is room; UNKNOWN: there is none.

    A sweep over the steps: `candidate` is the start of the current interval with enough room.
    """
    steps = sorted(steps, key=_when)
    longest = max((step.keeps_away_seconds or 0.0 for step in steps), default=0.0)
    candidate = not_before if free.covers(need) and not not_now else None
    for when, change, keeps_away in steps:
        if when == UNKNOWN or (candidate is not None and when >= candidate + longest):
            break
        free = free.plus(change)
        if free.covers(need):
            if candidate is None:
                candidate = max(when, not_before)
        elif keeps_away is not None and candidate is not None and when < candidate + keeps_away:
            candidate = None
    return UNKNOWN if candidate is None else candidate


def _with_bookings(
    state: State,
    device_group: DeviceGroup,
    task: OpenTask,
    shape: Shape,
    steps: list[RoomChange],
    free: ResourceAmount,
    at: float,
    side: Side,
) -> tuple[list[RoomChange], ResourceAmount]:
    """Return releases and free room of a device group as a task outside its bookings finds them.

    What tasks of a booking hold becomes free for others when both they and the booking have ended.
    """
    number = device_group.number
    counts_as = seconds_before_bookings(device_group, task, shape, at) - ROUNDING
    for record in state.bookings.values():
        booking = record.booking
        if number not in record.device_groups or booking.id == shape.resources.booking:
            continue
        booked = EVERYTHING if booking.maintenance else ResourceAmount(record.device_groups[number], 0, 0)
        if record.begun:
            for other in state.on_node[device_group.host.spec.id].values():
                if other.spec.resources.booking == booking.id and isinstance(other.phase, HOLDING):
                    held = ResourceAmount(held_on(device_group, other).gpus, 0, 0)
                    ends = expected_end(other, at, side)
                    if ends < booking.ends_at:
                        steps.append(RoomChange(ends, NOTHING.plus(held, -1), counts_as))
                        steps.append(RoomChange(booking.ends_at, held))
                    booked = booked.plus(held, -1)
            free = free.plus(booked, -1)
        else:
            away = 0.0 if makes_way(task, booking) else counts_as
            steps.append(RoomChange(max(booking.begins_at, at), NOTHING.plus(booked, -1), away))
        steps.append(RoomChange(booking.ends_at, booked))
    return steps, free


def _room_within(
    state: State,
    own: BookingRecord,
    device_group: DeviceGroup,
    need: ResourceAmount,
    reservations: Sequence[Reservation],
    not_before: float,
    at: float,
    side: Side,
) -> float:
    """Return when the booking of a task has GPUs for it that its other tasks do not use; at its end it has no limit."""
    left = own.device_groups.get(device_group.number, 0)
    steps = [RoomChange(own.booking.ends_at, EVERYTHING)]
    for other in state.on_node[device_group.host.spec.id].values():
        if other.spec.resources.booking == own.booking.id and isinstance(other.phase, HOLDING):
            held = 1 if other.spec.resources.share and holds_gpus(other.phase) else held_on(device_group, other).gpus
            left -= held
            steps.append(RoomChange(expected_end(other, at, side), ResourceAmount(held, 0, 0)))
    for reservation in reservations:
        if reservation.shape.resources.booking == own.booking.id and reservation.device_groups & device_group.bit:
            taken = ResourceAmount(need_of(reservation.shape, device_group).gpus, 0, 0)
            if reservation.starts_at is None:
                left -= taken.gpus
                continue
            starts = max(reservation.starts_at, at)
            steps.append(RoomChange(starts, NOTHING.plus(taken, -1), 0.0))
            steps.append(
                RoomChange(starts + seconds_on(device_group, reservation.task, reservation.shape, at, side), taken)
            )
    return _first_room(ResourceAmount(need.gpus, 0, 0), ResourceAmount(left, 0, 0), steps, not_before)


def makes_way(task: OpenTask, booking: Booking) -> bool:
    """Whether a task can be stopped at the begin of a booking."""
    return booking.preempt and task.preemption is not Preemption.NEVER


def seconds_before_bookings(device_group: DeviceGroup, task: OpenTask, shape: Shape, at: float) -> float:
    """Return how long a waiting task counts as running where GPUs are booked.

    An estimate from other work says nothing about this task, and a booking must not depend on it.
    """
    return _assumed(seconds_on(device_group, task, shape, at, "known"))


def left_before_bookings(task: OpenTask, at: float) -> float:
    """Return the same for a task on the fastest GPU model it names."""
    return _assumed(task.left_seconds(at, "known"))


def _assumed(seconds: float) -> float:
    return ASSUMED_SECONDS if seconds == UNKNOWN else seconds


def seconds_on(device_group: DeviceGroup, task: OpenTask, shape: Shape, at: float, side: Side = "high") -> float:
    """Return how long a waiting task is expected to run in a device group; UNKNOWN: it has no estimate and no timeout."""
    if shape.speeds is None:
        return task.left_seconds(at, side)
    return task.seconds_at(shape.speed_on(device_group.model), at, side)


def _seconds_on_each(
    device_groups: list[DeviceGroup], task: OpenTask, shape: Shape, at: float, side: Side = "high"
) -> list[tuple[DeviceGroup, float]]:
    if shape.speeds is None:
        seconds = task.left_seconds(at, side)
        return [(device_group, seconds) for device_group in device_groups]
    return [(device_group, seconds_on(device_group, task, shape, at, side)) for device_group in device_groups]


def promise(
    state: State,
    task: OpenTask,
    shape: Shape,
    at: float,
    reservations: Sequence[Reservation],
    side: Side = "high",
    closed: DeviceGroupMask = 0,
    *,
    not_now: DeviceGroupMask = 0,
    after_maintenance: bool = False,
) -> Promise | None:
    """Return the earliest place and time for a task behind the given reservations.

    Only the candidate nodes that are not closed to the task are considered; with `after_maintenance` also those that open
    when their maintenance window ends. None: there are not enough of them. `not_now` are device groups in which bookings
    keep it from starting now.
    """
    device_groups = list(_candidates(state, shape, closed))
    if after_maintenance:
        device_groups += _reopening(state, shape, closed)
    if len(device_groups) < shape.nodes:
        return None
    each = _seconds_on_each(device_groups, task, shape, at, side)
    decided = state.tasks.get(task.id, task)  # `task` may have a newer estimate, by which no booking goes
    own = state.bookings.get(shape.resources.booking)
    begin = at if own is None else max(at, own.booking.begins_at)
    when, starts = begin, [begin]
    for _ in range(4):  # a gang's nodes must be free at the same time: repeat from the latest start
        starts = [
            earliest(
                state,
                device_group,
                decided,
                shape,
                seconds,
                at,
                reservations=reservations,
                not_before=when,
                side=side,
                not_now=bool(not_now & device_group.bit),
            )
            for device_group, seconds in each
        ]
        ranked = sorted(
            zip(starts, (-device_group.free for device_group in device_groups), range(len(device_groups)), strict=True)
        )
        latest = ranked[shape.nodes - 1][0]
        if latest in {when, UNKNOWN} or shape.nodes == 1:
            break
        when = latest
    if latest == UNKNOWN:  # no start is known: take the emptiest nodes without another reservation
        untouched = [
            entry
            for entry in ranked
            if not any(reservation.device_groups & device_groups[entry[2]].bit for reservation in reservations)
        ]
        ranked = sorted(untouched, key=lambda entry: entry[1:])
        if len(ranked) < shape.nodes:
            return None
    nodes = tuple(device_groups[place].host.spec.id for _, _, place in ranked[: shape.nodes])
    return Promise(nodes, None if latest == UNKNOWN else latest)


def promised_start(state: State, reservation: Reservation, at: float) -> float | None:
    """Return when the nodes of a reservation will be free according to the present state; None: unknown."""
    before, task = reservations_before(state, reservation.task, at), reservation.task
    starts = at
    for node in reservation.nodes:
        device_groups = [
            device_group
            for device_group in state.index.hosts[node].device_groups
            if device_group.bit & reservation.shape.eligible
        ]
        each = _seconds_on_each(device_groups, reservation.task, reservation.shape, at)
        free = [
            earliest(state, device_group, task, reservation.shape, seconds, at, reservations=before, not_before=at)
            for device_group, seconds in each
        ]
        starts = max(starts, min(free, default=UNKNOWN))
    return None if starts == UNKNOWN else starts


def _candidates(state: State, shape: Shape, closed: DeviceGroupMask) -> Iterator[DeviceGroup]:
    """Return the device groups to consider, emptiest first, limited by the settings (but enough for a gang)."""
    index, depth = state.index, max(state.settings.search_depth, 2 * shape.nodes)
    seen: set[NodeId] = set()

    def all_of_them() -> Iterator[DeviceGroup]:
        for device_groups in reversed(index.by_free):
            for number in members(without(device_groups & shape.eligible, closed)):
                device_group = index.device_group(number)
                if device_group.host.spec.id in seen or device_group.usable.bit_count() < shape.gpus:
                    continue
                if not shape.memory_mib or capacity(state, device_group).covers(need_of(shape, device_group)):
                    seen.add(device_group.host.spec.id)
                    yield device_group

    return islice(all_of_them(), depth)


def _reopening(state: State, shape: Shape, closed: DeviceGroupMask) -> list[DeviceGroup]:
    """Return the device groups that are closed by maintenance now and open at its end."""
    found = {
        number: state.index.device_group(number)
        for record in state.bookings.values()
        if record.begun and record.booking.maintenance
        for number in record.device_groups
        if without(shape.eligible, closed | state.index.open) >> number & 1
        and state.index.device_group(number).host.spec.id in record.cordoned
    }
    return [
        device_group
        for device_group in found.values()
        if not device_group.host.lost and not device_group.host.away and device_group.usable.bit_count() >= shape.gpus
    ]


def reservations_before(state: State, task: OpenTask, at: float) -> list[Reservation]:
    """Return the reservations a task must respect: those of tasks that go before it, and all claims."""
    reservations = [reservation for reservation in state.reservations.values() if reservation.task is not task]
    mine = sort_key(state, task, at)
    return [reservation for reservation in reservations if reservation.claim or reservation.sort_key < mine]


def blocking_reservations(
    state: State, task: OpenTask, shape: Shape, at: float, reservations: Sequence[Reservation]
) -> DeviceGroupMask:
    """Return the device groups a task must not use, because it would delay one of the reservations there."""
    away = 0
    ends = at + task.left_seconds(at)
    for reservation in reservations:
        if may_use_reserved(state, task, reservation, at):
            continue
        until = -inf if reservation.claim or reservation.starts_at is None else reservation.starts_at
        if ends <= until and shape.speeds is None:
            continue
        for number in members(reservation.device_groups & shape.eligible):
            device_group = state.index.device_group(number)
            if away & device_group.bit or (
                shape.speeds is not None and at + seconds_on(device_group, task, shape, at) <= until
            ):
                continue
            if not _enough_for_both(state, device_group, shape, reservation, at):
                away |= device_group.bit
    return away


def may_use_reserved(state: State, task: OpenTask, reservation: Reservation, at: float) -> bool:
    """Whether a task may use reserved nodes because the task with the reservation can preempt it when it needs them.

    A task that would have to start over does not qualify, because its work would be wasted, nor does one that would
    keep host memory there.
    """
    policy, settings = state.policy, state.settings
    leaves_all = task.preemption is Preemption.CHECKPOINT or (
        task.preemption is Preemption.SUSPEND and not task.spec.resources.memory_mib
    )
    if reservation.claim or not leaves_all or task.preemptions >= settings.preemption_limit:
        return False
    if policy.rank is None or not settings.preemption or task.class_index != reservation.task.class_index:
        return False
    if policy.spares is not None and policy.spares(reservation.task, task):
        return False
    gained = policy.gained(task, settings) if policy.gained is not None else 0.0
    return policy.rank(task, at, settings) - gained > policy.rank(reservation.task, at, settings) + policy.margin


def _enough_for_both(
    state: State, device_group: DeviceGroup, shape: Shape, reservation: Reservation, at: float
) -> bool:
    """Whether a device group has room for the reserved task, at the reserved instant, if another starts now."""
    left = capacity(state, device_group)
    for ends, taken, task in ends_on(state, device_group, at):
        if reservation.claim:
            stays = task is None or task.id not in reservation.victims
        elif reservation.starts_at is None:
            stays = task is not None and task.placed_at > reservation.made_at
        else:
            stays = ends > reservation.starts_at
        if stays:
            left = left.plus(taken, -1)
    for other in state.reservations.values():
        if other is not reservation and other.device_groups & device_group.bit and _takes_free_room(other, reservation):
            left = left.plus(_free_room_of(state, device_group, other), -1)
    return left.plus(need_of(shape, device_group), -1).covers(need_of(reservation.shape, device_group))


def _takes_free_room(other: Reservation, reservation: Reservation) -> bool:
    """Whether a claim takes room that is free now before a reservation of the same nodes is used."""
    return other.claim and (reservation.claim or isinstance(other.task.phase, Stopping))


def _free_room_of(state: State, device_group: DeviceGroup, claim: Reservation) -> ResourceAmount:
    """Return what a claim takes of the room that is free now: what its victims do not release in a device group."""
    if not claim.shape.eligible & device_group.bit:
        return NOTHING
    need = need_of(claim.shape, device_group)
    for victim in claim.victims:
        if victim in state.on_node[device_group.host.spec.id]:
            need = need.plus(held_on(device_group, state.tasks[victim]), -1)
    return ResourceAmount(*(max(0, amount) for amount in need))
