"""Backfill: small tasks use the gap in front of a large one, and do not delay it.

A task that finds no room may get a *reservation*: nodes that are promised to it, and the instant at which the tasks
running there are expected to be gone. Whoever stands behind it may use those nodes only if it is gone by then, or if
the nodes have enough for both. Under `easy` the first in line holds one, under `conservative` the first few; tasks
that could not use the same nodes do not stand in one line. A task that wants a single GPU needs none: the next GPU
that is freed is its own.

    GPUs of the node
      4 ┤████ a ████▒▒▒▒▒▒▒▒▒▒▒▒        a, b run; the large task c is promised the node at t
      3 ┤████ a ████▒▒▒▒▒▒▒▒▒▒▒▒        d is short and starts at once in the gap
      2 ┤████████ b ████████▒▒▒▒▒▒      e is long and would delay c: it stays away from this node
      1 ┤ d d       ▒▒▒▒▒▒▒▒ c ▒▒
        └───────────────────┬────► time
                            t

How long tasks run is known only from estimates and timeouts; the high side of the estimate is used for both, so a
promise holds as often as the estimates do. Where nobody knows, the nodes are kept free of everything that came
later: the large task starts when the present ones end.
"""

from collections.abc import Iterator, Sequence
from itertools import islice
from math import inf
from operator import itemgetter
from typing import NamedTuple

from gpuyard.core.domain.placement import Placement, Slice
from gpuyard.core.domain.values import MILLI, NodeId, Preemption
from gpuyard.core.engine.phases import ACTIVE, HOLDING, Phase, Stopping, Suspended, Suspending
from gpuyard.core.engine.sort_key import sort_key
from gpuyard.core.engine.state import Reservation, State, holds_gpus
from gpuyard.core.engine.task import UNKNOWN, Side, Task
from gpuyard.core.placement.device_group_mask import DeviceGroupMask, members, without
from gpuyard.core.placement.index import DeviceGroup
from gpuyard.core.placement.shape import Shape
from gpuyard.core.placement.topology import mask_of

STOP_TAKES_SECONDS = 30.0
"""How long a task that is being stopped is expected to hold its GPUs still."""


class Amount(NamedTuple):
    """What a task needs of a device group, or what a device group has."""

    gpus: int
    cpus: int
    memory_mib: int

    def covers(self, other: "Amount") -> bool:
        """Whether there is enough of everything."""
        return self.gpus >= other.gpus and self.cpus >= other.cpus and self.memory_mib >= other.memory_mib

    def plus(self, other: "Amount", sign: int = 1) -> "Amount":
        """Add, or take away."""
        return Amount(
            self.gpus + sign * other.gpus, self.cpus + sign * other.cpus, self.memory_mib + sign * other.memory_mib
        )


NOTHING = Amount(0, 0, 0)
_when = itemgetter(0)


class Promise(NamedTuple):
    """Where and when a task is expected to start."""

    nodes: tuple[NodeId, ...]
    starts_at: float | None


def need_of(shape: Shape, device_group: DeviceGroup) -> Amount:
    """What one part of a shape takes of a device group; a share counts as a card, since it may need a fresh one."""
    gpus = device_group.usable.bit_count() if shape.whole_nodes else 1 if shape.share else shape.gpus
    return Amount(gpus, shape.cpus, shape.memory_mib)


def expected_end(task: Task, at: float, side: Side = "high") -> float:
    """When a task is expected to give back what it holds; a suspended one keeps its host memory, nobody knows for how long."""
    phase = task.phase
    if type(phase) is Stopping or type(phase) is Suspending:
        return at + STOP_TAKES_SECONDS
    if type(phase) is Suspended:
        return UNKNOWN
    return at + task.seconds_at(task.speed, at, side)


def held_on(device_group: DeviceGroup, task: Task) -> Amount:
    """What a task holds of a device group and its node; a card it shares is seen to by `ends_on`."""
    phase = task.phase
    assert isinstance(phase, ACTIVE)
    return _held(device_group, phase, _part_on(phase.placement, device_group.host.spec.id))


def _part_on(placement: Placement, node: NodeId) -> Slice:
    first = placement.slices[0]
    return first if first.node == node else next(part for part in placement.slices if part.node == node)


def _held(device_group: DeviceGroup, phase: Phase, part: Slice) -> Amount:
    if not holds_gpus(phase):
        return Amount(0, 0, part.memory_mib)
    amount = _amount(device_group, part)
    return amount._replace(memory_mib=0) if type(phase) is Suspending else amount


def _amount(device_group: DeviceGroup, part: Slice) -> Amount:
    gpus = (device_group.usable & mask_of(part.gpus)).bit_count() if part.milli == MILLI else 0
    return Amount(gpus, part.cpus, part.memory_mib)


def _holders(
    state: State, device_group: DeviceGroup, at: float, side: Side
) -> Iterator[tuple[float, Amount, Slice, Task | None]]:
    """Who will give back something of a device group: tasks, and what was left behind by some that are over."""
    node = device_group.host.spec.id
    for task in state.on_node[node].values():
        phase = task.phase
        if isinstance(phase, HOLDING):
            part = _part_on(phase.placement, node)
            yield expected_end(task, at, side), _held(device_group, phase, part), part, task
    for left in state.remains.get(node, {}).values():
        yield at + STOP_TAKES_SECONDS, _amount(device_group, left.part), left.part, None


def ends_on(
    state: State, device_group: DeviceGroup, at: float, side: Side = "high"
) -> list[tuple[float, Amount, Task | None]]:
    """When what is taken in a device group is expected to be free, soonest first. A shared card comes back with the last on it."""
    holders = list(_holders(state, device_group, at, side))
    ends = [(when, amount, task) for when, amount, _, task in holders]
    if device_group.shared:
        cards: dict[int, tuple[float, Task | None]] = {}
        for when, _, part, task in holders:
            if part.milli < MILLI and part.gpus[0] in device_group.shared and (task is None or holds_gpus(task.phase)):
                card = part.gpus[0]
                cards[card] = max(cards.get(card, (when, task)), (when, task), key=_when)
        ends.extend((when, Amount(device_group.usable >> card & 1, 0, 0), last) for card, (when, last) in cards.items())
    ends.sort(key=_when)
    return ends


def _has_an_end(state: State, node: NodeId) -> bool:
    """Whether anybody knows of anything on a node when it will be over."""
    return node in state.remains or any(
        task.estimate is not None
        or task.spec.timeout_seconds is not None
        or isinstance(task.phase, Stopping | Suspending)
        for task in state.on_node[node].values()
    )


def capacity(state: State, device_group: DeviceGroup) -> Amount:
    """What a device group has once everything that runs there is over; suspended tasks keep their host memory until they go on."""
    spec = device_group.host.spec
    kept = 0
    for task in state.on_node[spec.id].values():
        phase = task.phase
        if isinstance(phase, Suspended | Suspending):
            kept += sum(part.memory_mib for part in phase.placement.slices if part.node == spec.id)
    return Amount(device_group.usable.bit_count(), spec.cpus, spec.memory_mib - kept)


def is_hopeless(state: State, reservation: Reservation) -> bool:
    """Whether a promise waits for host memory of suspended tasks, which themselves may not go on before it is kept."""
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


def earliest(
    state: State,
    device_group: DeviceGroup,
    shape: Shape,
    seconds: float,
    at: float,
    *,
    reservations: Sequence[Reservation],
    not_before: float,
    side: Side = "high",
) -> float:
    """The first instant from which a device group has room for one part of a shape, for so long, besides the given holds."""
    need = need_of(shape, device_group)
    free = Amount(device_group.free, device_group.host.cpus_free, device_group.host.memory_free)
    steps = [
        (when, freed)
        for when, freed, _ in (
            ends_on(state, device_group, at, side) if _has_an_end(state, device_group.host.spec.id) else ()
        )
        if when != UNKNOWN
    ]
    for reservation in reservations:
        if reservation.device_groups & device_group.bit:
            taken = need_of(reservation.shape, device_group)
            if reservation.starts_at is None:  # nobody knows when it starts, and so nobody knows when it ends
                free = free.plus(taken, -1)
                continue
            starts = max(reservation.starts_at, at)
            steps.append((starts, NOTHING.plus(taken, -1)))
            steps.append((starts + _seconds_on(device_group, reservation.task, reservation.shape, at, side), taken))
    steps.sort(key=lambda step: step[0])
    candidate = not_before if free.covers(need) else None
    for when, change in steps:
        if when == UNKNOWN or (candidate is not None and when >= candidate + seconds):
            break
        free = free.plus(change)
        if not free.covers(need):
            candidate = None
        elif candidate is None:
            candidate = max(when, not_before)
    return UNKNOWN if candidate is None else candidate


def _seconds_on(device_group: DeviceGroup, task: Task, shape: Shape, at: float, side: Side = "high") -> float:
    """How long a waiting task is thought to run in a device group."""
    if shape.speeds is None:
        return task.left_seconds(at, side)
    return task.seconds_at(shape.speed_on(device_group.model), at, side)


def _seconds_on_each(
    device_groups: list[DeviceGroup], task: Task, shape: Shape, at: float, side: Side = "high"
) -> list[tuple[DeviceGroup, float]]:
    if shape.speeds is None:
        seconds = task.left_seconds(at, side)
        return [(device_group, seconds) for device_group in device_groups]
    return [(device_group, _seconds_on(device_group, task, shape, at, side)) for device_group in device_groups]


def promise(
    state: State,
    task: Task,
    shape: Shape,
    at: float,
    reservations: Sequence[Reservation],
    side: Side = "high",
    closed: DeviceGroupMask = 0,
) -> Promise | None:
    """The earliest place and time for a task behind the given holds, among the nodes looked at that are not closed to it."""
    device_groups = list(_candidates(state, shape, closed))
    if len(device_groups) < shape.nodes:
        return None
    each = _seconds_on_each(device_groups, task, shape, at, side)
    when, starts = at, [at]
    for _ in range(4):  # a gang's nodes must be free at the same time: look again from the latest of them on
        starts = [
            earliest(state, device_group, shape, seconds, at, reservations=reservations, not_before=when, side=side)
            for device_group, seconds in each
        ]
        ranked = sorted(
            zip(starts, (-device_group.free for device_group in device_groups), range(len(device_groups)), strict=True)
        )
        latest = ranked[shape.nodes - 1][0]
        if latest in {when, UNKNOWN} or shape.nodes == 1:
            break
        when = latest
    if latest == UNKNOWN:
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
    """When the nodes of a reservation will be free, as things are now."""
    before = reservations_before(state, reservation.task, at)
    starts = at
    for node in reservation.nodes:
        device_groups = [
            device_group
            for device_group in state.index.hosts[node].device_groups
            if device_group.bit & reservation.shape.eligible
        ]
        each = _seconds_on_each(device_groups, reservation.task, reservation.shape, at)
        free = [
            earliest(state, device_group, reservation.shape, seconds, at, reservations=before, not_before=at)
            for device_group, seconds in each
        ]
        starts = max(starts, min(free, default=UNKNOWN))
    return None if starts == UNKNOWN else starts


def _candidates(state: State, shape: Shape, closed: DeviceGroupMask) -> Iterator[DeviceGroup]:
    """The nodes worth looking at, emptiest first, no more than the settings allow (but enough for a gang)."""
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


def reservations_before(state: State, task: Task, at: float) -> list[Reservation]:
    """The reservations a task has to respect: of those who go before it, and all for whom others are being stopped."""
    reservations = [reservation for reservation in state.reservations.values() if reservation.task is not task]
    mine = sort_key(state, task, at)
    return [reservation for reservation in reservations if reservation.claim or reservation.sort_key < mine]


def in_the_way(
    state: State, task: Task, shape: Shape, at: float, reservations: Sequence[Reservation]
) -> DeviceGroupMask:
    """The device groups a task must stay away from, because it would delay one of the holds there."""
    away = 0
    ends = at + task.left_seconds(at)
    for reservation in reservations:
        if gives_way(state, task, reservation, at):
            continue
        until = -inf if reservation.claim or reservation.starts_at is None else reservation.starts_at
        if ends <= until and shape.speeds is None:
            continue
        for number in members(reservation.device_groups & shape.eligible):
            device_group = state.index.device_group(number)
            if away & device_group.bit or (
                shape.speeds is not None and at + _seconds_on(device_group, task, shape, at) <= until
            ):
                continue
            if not _enough_for_both(state, device_group, shape, reservation, at):
                away |= device_group.bit
    return away


def gives_way(state: State, task: Task, reservation: Reservation, at: float) -> bool:
    """Whether a task may use promised nodes because whoever they are promised to can stop it there when it needs them.

    Not one that would have to start over, which is no good use of them, nor one that would keep host memory there.
    """
    policy, settings = state.policy, state.settings
    leaves_all = task.preemption is Preemption.CHECKPOINT or (
        task.preemption is Preemption.SUSPEND and not task.spec.resources.memory_mib
    )
    if reservation.claim or not leaves_all or task.preemptions >= settings.preemption_limit:
        return False
    if policy.rank is None or not settings.preemption or task.class_index != reservation.task.class_index:
        return False
    return policy.rank(task, at, settings) > policy.rank(reservation.task, at, settings) + policy.margin


def _enough_for_both(
    state: State, device_group: DeviceGroup, shape: Shape, reservation: Reservation, at: float
) -> bool:
    """Whether a device group still holds the promised task, at the promised instant, if another takes its part now."""
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
    return left.plus(need_of(shape, device_group), -1).covers(need_of(reservation.shape, device_group))
