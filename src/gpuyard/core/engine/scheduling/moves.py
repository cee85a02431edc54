"""Moves: a running task continues elsewhere, on GPUs on which it is faster.

A task can be moved if it declares its speed per GPU model and can save its work when asked to stop (`checkpoint`). The
objective is the sum of the speeds of all such tasks, where 1 is the fastest model a task names: every task has the same
weight whatever its length, since lengths may be unknown. There are two kinds of moves:

- **free**: faster GPUs are free. A pass has just been made, so no waiting task can use them; tasks with reservations
  are not delayed.
- **exchange**: the faster GPUs are held by tasks that together lose less in its place than it gains in theirs. They
  must not hold their GPUs more strongly than it does (`policy.rank`), nor be young or stopped too often already (as in
  `preemption`).

A move costs every task that is stopped for it some work. It pays if the gain exceeds that cost by the expected end of
the task. If the end is unknown, the task moves once it has lost as much by staying as the move costs (the ski rental
rule). The sum grows with every move, so the moves terminate.

A move is recorded as a claim whose victim is the task itself: its new place is reserved until it has left the old one,
and in an exchange the old place is reserved for the tasks that made room.
"""

from collections.abc import Callable, Iterator
from heapq import nlargest
from itertools import islice
from typing import NamedTuple

from gpuyard.core.domain.causes import Cause, CauseKind
from gpuyard.core.domain.events import AttemptStopping, Event, ReservationMade
from gpuyard.core.domain.placement import Placement
from gpuyard.core.domain.settings import Moves
from gpuyard.core.domain.values import NodeId, Preemption
from gpuyard.core.engine.phases import Running
from gpuyard.core.engine.quota import closed_by_model
from gpuyard.core.engine.scheduling.backfill import ResourceAmount, blocking_reservations, held_on, need_of
from gpuyard.core.engine.scheduling.bookings import closed_by_bookings
from gpuyard.core.engine.scheduling.preemption import STOP_COSTS_SECONDS
from gpuyard.core.engine.state import State
from gpuyard.core.engine.task import OpenTask
from gpuyard.core.engine.waiting.sort_key import sort_key
from gpuyard.core.placement.choose import choose
from gpuyard.core.placement.device_group_mask import DeviceGroupMask, members, without
from gpuyard.core.placement.index import DeviceGroup
from gpuyard.core.placement.shape import Shape

STOP_COSTS = STOP_COSTS_SECONDS[Preemption.CHECKPOINT]
"""Work, in seconds at full speed, that a task loses by a move."""
MUCH = 1 << 60


class Mover:
    """Moves running tasks to faster GPUs."""

    def __init__(self, state: State, emit: Callable[[Event], None]) -> None:
        self.state = state
        self.emit = emit

    def run(self, at: float) -> None:
        """Begin every move that pays now."""
        state = self.state
        state.restless = False
        if state.settings.moves is Moves.NONE or not state.settings.preemption:
            return
        while (move := find_move(state, at)) is not None:
            self._begin(move, at)

    def _begin(self, move: "Move", at: float) -> None:
        task, home = move.task, _phase(move.task).placement.nodes
        self._stop(task, Cause(CauseKind.MOVED, node=move.nodes[0]), move.nodes, at)
        for other in move.others:
            self._stop(other, Cause(CauseKind.EXCHANGED, task=task.id), home, at)

    def _stop(self, task: OpenTask, cause: Cause, to: tuple[NodeId, ...], at: float) -> None:
        self.emit(AttemptStopping(task.id, _phase(task).attempt, cause))
        borrowed, tenant_key, _, _ = sort_key(self.state, task, at)
        self.emit(ReservationMade(task.id, to, at, True, bool(borrowed), tenant_key))


class Move(NamedTuple):
    """A task that continues elsewhere, and the tasks that take its place, if any."""

    gain: float
    """Increase of the sum of speeds."""
    task: OpenTask
    nodes: tuple[NodeId, ...]
    others: tuple[OpenTask, ...] = ()


def find_move(state: State, at: float) -> Move | None:
    """Return the move with the largest gain per GPU, free moves first; only the most promising tasks are considered."""
    slow = nlargest(state.settings.search_depth, _slow(state, at), key=lambda each: each.could_gain)
    ways = [free for each in slow if (free := each.to_free_gpus())]
    if not ways and state.settings.moves is Moves.EXCHANGE:
        ways = [exchange for each in slow if (exchange := each.in_exchange())]
    return max(ways, key=lambda move: (move.gain / _gpus(move.task), -move.task.id), default=None)


def _slow(state: State, at: float) -> "Iterator[_Slow]":
    """Yield the tasks that would be faster elsewhere and can be stopped."""
    for task_id, shape in state.movable.items():
        task = state.tasks[task_id]
        shape.refresh(state.index)
        is_slow = bool(shape.tiers) and task.speed < shape.tiers[0][0]
        if is_slow and _is_old_enough(state, task, at) and _is_reachable(state, task):
            yield _Slow(state, task, shape, at)


class _Slow:
    """A task that is slower than it could be."""

    def __init__(self, state: State, task: OpenTask, shape: Shape, at: float) -> None:
        self._state, self._task, self._shape, self._at = state, task, shape, at
        self._left = task.estimate.seconds - task.served_at(at) if task.estimate else 0.0
        """Expected remaining work, in seconds at full speed; 0 or less: unknown."""
        self.could_gain = self._seconds(shape.tiers[0][0]) * (shape.tiers[0][0] - task.speed)

    def to_free_gpus(self) -> Move | None:
        """Return a move to the fastest free GPUs, if it pays."""
        shape, task = self._shape, self._task
        closed = self._closed()
        for speed, device_groups in self._faster():
            if self._pays(speed - task.speed, speed):
                placement = self._room(without(shape.eligible, device_groups) | closed)
                if placement is not None:
                    return Move(speed - task.speed, task, placement.nodes)
        return None

    def _room(self, closed: DeviceGroupMask) -> Placement | None:
        """Return free GPUs outside the closed device groups on which the task would not delay a reservation."""
        state, shape = self._state, self._shape
        order = state.order_for(shape.gpus)
        placement = choose(shape, state.index, order, closed, wherever=True)
        if placement is None or not state.reserved_bays & state.index.device_groups_of(placement.nodes):
            return placement
        away = blocking_reservations(state, self._task, shape, self._at, list(state.reservations.values()))
        return choose(shape, state.index, order, closed | away, wherever=True)

    def in_exchange(self) -> Move | None:
        """Return the exchange with the largest gain, if one pays. Gangs are not exchanged."""
        state, task = self._state, self._task
        [part, *more] = _phase(task).placement.slices
        host = state.index.hosts[part.node]
        if more or not host.open:
            return None
        home, best = host.device_group_of[part.gpus[0]], None
        if state.reserved_bays & home.bit:
            return None
        for speed, device_group in islice(self._worth_a_look(), state.settings.search_depth):
            found = self._who_makes_room(device_group, home, speed - task.speed)
            if found is not None:
                others, loss = found
                gain = speed - task.speed - loss
                if self._pays(gain, speed, stops=1 + len(others)) and (best is None or gain > best.gain):
                    best = Move(gain, task, (device_group.host.spec.id,), tuple(others))
        return best

    def _worth_a_look(self) -> Iterator[tuple[float, DeviceGroup]]:
        """Yield device groups fast enough that an exchange would pay if the other tasks lost nothing."""
        state = self._state
        away = self._closed() | state.reserved_bays
        for speed, device_groups in self._faster():
            if self._pays(speed - self._task.speed, speed, stops=2):
                for number in members(without(device_groups & state.index.open, away)):
                    yield speed, state.index.device_group(number)

    def _faster(self) -> Iterator[tuple[float, DeviceGroupMask]]:
        for speed, device_groups in self._shape.tiers:
            if speed <= self._task.speed:
                return
            yield speed, device_groups

    def _pays(self, gain: float, speed: float, stops: int = 1) -> bool:
        """Whether a gain in speed exceeds the work lost by the stops."""
        return gain * self._seconds(speed) > STOP_COSTS * stops

    def _seconds(self, speed: float) -> float:
        """Return how long the task continues at its new speed; if unknown, how long it has been in its place."""
        return self._left / speed if self._left > 0 else self._at - _phase(self._task).since

    def _closed(self) -> DeviceGroupMask:
        state, closed = self._state, closed_by_model(self._task.tenant_usage, self._shape, self._state.index)
        return closed | closed_by_bookings(state, self._task, self._shape, self._at) if state.booked else closed

    def _who_makes_room(
        self, device_group: DeviceGroup, home: DeviceGroup, gain: float
    ) -> tuple[list[OpenTask], float] | None:
        """Return the tasks of a device group that can swap with ours at the least loss, and that loss."""
        task = self._task
        need, free = (
            need_of(self._shape, device_group),
            ResourceAmount(device_group.free, device_group.host.cpus_free, device_group.host.memory_free),
        )
        there = ResourceAmount(home.free, home.host.cpus_free, home.host.memory_free).plus(held_on(home, task))
        if device_group.host is home.host:  # same node: the tasks keep their CPUs and memory
            need, there = need._replace(cpus=0, memory_mib=0), there._replace(cpus=MUCH, memory_mib=MUCH)
        chosen: list[OpenTask] = []
        loss = 0.0
        others = sorted(self._others(device_group, home, gain), key=lambda each: (each[0] / _gpus(each[1]), each[1].id))
        for lost, other in others:
            if free.covers(need):
                break
            held = held_on(device_group, other)
            if there.covers(held):
                chosen.append(other)
                free, there, loss = free.plus(held), there.plus(held, -1), loss + lost
        return (chosen, loss) if chosen and free.covers(need) else None

    def _others(self, device_group: DeviceGroup, home: DeviceGroup, gain: float) -> Iterator[tuple[float, OpenTask]]:
        """Yield tasks of a device group that could swap with ours and lose less than it gains, and each loss."""
        state, at, rank = self._state, self._at, self._state.policy.rank
        for other in state.on_node[device_group.host.spec.id].values():
            shape = state.movable.get(other.id)
            if shape is None or (loss := other.speed - shape.speed_on(home.model)) >= gain:
                continue
            if (
                shape.nodes > 1
                or device_group.host.device_group_of[_phase(other).placement.slices[0].gpus[0]] is not device_group
            ):
                continue
            if other.preemptions >= state.settings.preemption_limit or not _is_old_enough(state, other, at):
                continue
            if rank and rank(other, at, state.settings) < rank(self._task, at, state.settings):
                continue
            shape.refresh(state.index)
            if state.booked and home.bit & closed_by_bookings(state, other, shape, at):
                continue
            if home.bit & without(shape.eligible, closed_by_model(other.tenant_usage, shape, state.index)):
                yield loss, other


def _phase(task: OpenTask) -> Running:
    assert isinstance(task.phase, Running)
    return task.phase


def _gpus(task: OpenTask) -> int:
    return task.spec.resources.gpus * task.spec.resources.nodes


def _is_old_enough(state: State, task: OpenTask, at: float) -> bool:
    return at - _phase(task).since >= state.settings.preemption_min_run_seconds


def _is_reachable(state: State, task: OpenTask) -> bool:
    return not any(state.index.hosts[node].lost for node in _phase(task).placement.nodes)
