"""Defragmentation: running tasks move so that a waiting task finds the GPUs it needs together.

A task that needs several GPUs of a node, or several nodes, can find no place although enough GPUs are free:

    before              n1 ██░░░░░░   n2 ████████   n3 ██████░░     a task needs 8 GPUs of one node
    after one move      n1 ░░░░░░░░   n2 ████████   n3 ████████     it gets n1

A task may be moved if it stands on whole GPUs of one node and allows `checkpoint`, or `requeue`, which repeats all its
work. Each moved task has a place that is free now, that no waiting task can use (a pass has just been made), and that
no reservation needs. So no task is displaced, and neither ranks nor priorities count.

The search goes through the waiting tasks that lack only room, in queue order. For each it examines the nodes with most
free GPUs, takes on every node the cheapest tasks that make room, and the cheapest nodes; then it looks for places for
these tasks, the largest first. A task that finds none is left where it is, and the search is repeated without it.

The moves pay if the GPU-seconds that the waiting task would otherwise wait are worth `MARGIN` times what they cost: for
each moved task the time to stop and to start again, and the work it is expected to repeat. The wait follows from the
estimates. If it is unknown, the tasks move once the waiting task has waited that long (the ski rental rule, as in
`moves`).

Against thrashing: a search is made at most every `LOOK_EVERY_SECONDS`, at most `MOST_MOVES` moves are under way at
once, and a task that has been stopped before is not moved until it has run for `REST_SECONDS`.

A move is recorded as in `moves`: the new place is a claim of the moved task, whose victim is the task itself. The
cleared place is a claim of the waiting task, whose victims are the moved tasks.
"""

from collections import Counter
from collections.abc import Callable
from heapq import nsmallest
from itertools import islice
from typing import NamedTuple

from gpuyard.core.domain import refusals as no
from gpuyard.core.domain.causes import Cause, CauseKind
from gpuyard.core.domain.events import AttemptStopping, Event, ReservationMade
from gpuyard.core.domain.placement import Placement
from gpuyard.core.domain.values import MILLI, NodeId, Preemption, TaskId
from gpuyard.core.engine.phases import Running, Stopping, Suspended, Waiting
from gpuyard.core.engine.quota import check_quota, closed_by_model, left_for
from gpuyard.core.engine.scheduling.actions import CLASS_INDEXES, LAST, Context, first_in
from gpuyard.core.engine.scheduling.backfill import (
    STOP_TAKES_SECONDS,
    ResourceAmount,
    blocking_reservations,
    held_on,
    need_of,
    promise,
    reservations_before,
)
from gpuyard.core.engine.scheduling.bookings import closed_by_bookings
from gpuyard.core.engine.scheduling.preemption import STOP_COSTS_SECONDS, emptiest_first
from gpuyard.core.engine.scheduling.try_place import first_without_backfill
from gpuyard.core.engine.state import State
from gpuyard.core.engine.task import OpenTask
from gpuyard.core.engine.waiting.queue import Line
from gpuyard.core.engine.waiting.sort_key import SortKey, sort_key
from gpuyard.core.placement.choose import choose
from gpuyard.core.placement.device_group_mask import DeviceGroupMask, without
from gpuyard.core.placement.index import DeviceGroup, Index
from gpuyard.core.placement.shape import Shape

LOOK_EVERY_SECONDS = 60.0
MOST_MOVES = 16
"""Maximum number of tasks that are being moved at once."""
REST_SECONDS = 3600.0
"""Seconds for which a task that was stopped before runs until it may be moved."""
MOST_LINES = 1024
MOST_WAITING, MOST_SEARCHES = 4, 16
"""Maximum numbers of lines of the queue that a search looks at, of waiting tasks for which it examines the same nodes, and
of those for which it examines any."""
TRIES = 8
"""Maximum number of times that a search looks for places for the tasks to be moved."""
UNSAVED_SECONDS = 900.0
"""Work, in seconds, that a task with checkpoints repeats after a stop, if it has run that long: it may save rarely, or
be killed before it has saved."""
START_SECONDS = STOP_TAKES_SECONDS + STOP_COSTS_SECONDS[Preemption.CHECKPOINT]
"""Seconds in which a moved task does no work: it saves, ends, starts again and loads what it has saved."""
MOST_WAIT_SECONDS = 6 * 3600.0
"""Expected waits count up to this: they are sums of estimates."""
MARGIN = 2.0
"""A gain counts if it exceeds the cost by this factor, because both are expectations."""

LACKS_ROOM = (no.NoRoom, no.ReservedFor)


class RoomPlan(NamedTuple):
    """A way to make room: the nodes that are cleared, and the tasks to be moved, each with its new place."""

    nodes: tuple[NodeId, ...]
    moves: tuple[tuple[OpenTask, Placement], ...]


class Defragmenter:
    """Moves running tasks to make room for waiting ones."""

    def __init__(self, state: State, emit: Callable[[Event], None]) -> None:
        self._state, self._emit = state, emit
        self._context = Context(state, emit)
        self._next_at: float | None = None
        """No search is made before this instant. None: set when the first task waits, so that a scheduler that
        continues from a snapshot does not begin with moves."""
        self._pending = False
        """Something has changed since the last search."""
        self._wakes_at: float | None = None

    def note_change(self) -> None:
        """Something has changed that a search must consider."""
        self._pending = True

    def run(self, at: float) -> bool:
        """Begin the moves that pay now, if a search is due; return whether there are any."""
        state = self._state
        if not self._pending or not state.queue.waiting or not (state.preemptible and state.settings.preemption):
            return False
        if self._next_at is None:
            self._next_at = at + LOOK_EVERY_SECONDS
        if at < self._next_at:
            self._wake_at(self._next_at)
            return False
        self._pending, self._next_at = False, at + LOOK_EVERY_SECONDS
        self._context.begin(at)
        moving = sum(1 for reservation in state.reservations.values() if makes_room(reservation.task))
        begun = False
        for task, line in self._waiting():
            search = _Search(self._context, task, line.shape, MOST_MOVES - moving)
            plan = search.find()
            if plan is not None:
                self._begin(task, line.cause, plan)
                moving += len(plan.moves)
                begun = True
            elif search.retry_at is not None:
                self._wake_at(max(search.retry_at, self._next_at))
        return begun

    def _wake_at(self, instant: float) -> None:
        """Set a timer for another search, unless there is an earlier one."""
        if self._wakes_at is None or not self._context.state.now < self._wakes_at <= instant:
            self._wakes_at = instant
            self._state.timers.add_search(instant)

    def _waiting(self) -> list[tuple[OpenTask, Line]]:
        """Return the first waiting tasks, in queue order, that lack only room.

        Those that are bound to some nodes, as by a GPU model, do not keep the search from tasks that wait for other nodes.
        """
        state, context = self._state, self._context
        free = free_gpus(state.index)
        may_be_cleared = state.index.device_groups_of(tuple(state.preemptible))
        found: list[tuple[SortKey, OpenTask, Line]] = []
        lines = (line for lines in state.queue.by_gpus.values() for line in lines.values())
        for line in islice(lines, MOST_LINES):
            shape = line.shape
            if line.blocked is None or line.blocked.refusal not in LACKS_ROOM:
                continue
            if shape.share is not None or not 1 < shape.gpus * shape.nodes <= free:
                continue
            shape.refresh(state.index)
            if not shape.eligible & may_be_cleared:
                continue
            for class_index in CLASS_INDEXES:
                task = first_in(context, line, class_index, LAST)
                if task is not None:
                    found.append((sort_key(state, task, context.at), task, line))
        found.sort(key=lambda first: first[0])
        chosen: list[tuple[OpenTask, Line]] = []
        of_nodes = Counter[DeviceGroupMask]()
        for _, task, line in found:
            of_nodes[line.shape.eligible] += 1
            if of_nodes[line.shape.eligible] <= MOST_WAITING:
                chosen.append((task, line))
        return chosen[:MOST_SEARCHES]

    def _begin(self, task: OpenTask, because: Cause | None, plan: RoomPlan) -> None:
        """Reserve the cleared place and the new places as claims, and stop the tasks that are moved."""
        cause = Cause(CauseKind.MADE_ROOM, task=task.id)
        self._claim(task, plan.nodes, because)
        for moved, placement in plan.moves:
            self._emit(AttemptStopping(moved.id, _phase(moved).attempt, cause))
            self._claim(moved, placement.nodes, cause)

    def _claim(self, task: OpenTask, nodes: tuple[NodeId, ...], because: Cause | None) -> None:
        at = self._context.at
        borrowed, tenant_key, _, _ = sort_key(self._state, task, at)
        self._emit(ReservationMade(task.id, nodes, at, True, bool(borrowed), tenant_key, because))


def makes_room(task: OpenTask) -> bool:
    """Whether a task is being moved to make room for another one."""
    return isinstance(task.phase, Stopping) and task.phase.cause.why is CauseKind.MADE_ROOM


def free_gpus(index: Index) -> int:
    """Return the number of GPUs of open nodes that are completely free."""
    return sum(free * device_groups.bit_count() for free, device_groups in enumerate(index.by_free))


class _Way(NamedTuple):
    """A way to make room for one part of the waiting task: the node and the tasks that have to leave it."""

    cost: float
    """GPU-seconds."""
    number: int
    device_group: DeviceGroup
    victims: tuple[OpenTask, ...]


class _Search:
    """The search for moves that make room for one waiting task."""

    def __init__(self, context: Context, task: OpenTask, shape: Shape, most_moves: int) -> None:
        self._context, self._state, self._at = context, context.state, context.at
        self._task, self._shape, self._most_moves = task, shape, most_moves
        self._before = reservations_before(self._state, task, self._at)
        self._stays: set[TaskId] = set()
        """Tasks for which no other place was found."""
        self._gpus = shape.need_milli / MILLI
        self.retry_at: float | None = None
        """When to search again although nothing changes: tasks are old enough, the wait is long enough, or has lasted
        longer than was expected."""

    def find(self) -> RoomPlan | None:
        """Return the moves to make; None: none are possible, or they do not pay."""
        closed = self._closed()
        if closed is None:
            return None
        seconds, is_known = self._expected_wait(closed)
        most = self._gpus * seconds / MARGIN
        if is_known:
            self._look_again(self._at + seconds)  # if it still waits then, a task has run longer than expected
            if most < START_SECONDS:  # one task on one GPU costs more
                return None
        wanted = without(self._shape.eligible & self._state.index.open, closed)
        depth = max(self._state.settings.search_depth, 2 * self._shape.nodes)
        ways = [
            way
            for group in islice(emptiest_first(self._state, self._shape, wanted), depth)
            if (way := self._way(group))
        ]
        for _ in range(TRIES):
            if len(ways) < self._shape.nodes:
                return None
            chosen = nsmallest(self._shape.nodes, ways)
            cost = sum(way.cost for way in chosen)
            victims = [victim for way in chosen for victim in way.victims]
            if not victims or len(victims) > self._most_moves:
                return None
            if cost > most:
                if not is_known:
                    self._look_again(self._at + (cost - most) * MARGIN / self._gpus)
                return None
            moves = self._places(chosen, victims)
            if moves is not None:
                return RoomPlan(tuple(way.device_group.host.spec.id for way in chosen), tuple(moves))
            ways = [
                way
                for before in ways
                if (
                    way := before
                    if self._stays.isdisjoint(v.id for v in before.victims)
                    else self._way(before.device_group)
                )
            ]
        return None

    def _closed(self) -> DeviceGroupMask | None:
        """Return the device groups that the waiting task may not use; None: a quota or its turn stops it."""
        state, task, shape = self._state, self._task, self._shape
        left = left_for(task, state.classes, self._before).least
        if shape.need_milli > left or check_quota(task, shape.need_milli, state.classes, self._at) is not None:
            return None
        if not task.tenant_usage.can_pay(self._at):
            return None
        if not state.backfills and first_without_backfill(self._context, task, shape) is not None:
            return None
        closed = shape.above_quota(left) | closed_by_model(task.tenant_usage, shape, state.index)
        if state.bookings:
            closed |= closed_by_bookings(state, task, shape, self._at)
        if task.avoid is not None:
            closed |= state.index.device_groups_of((task.avoid,))
        for reservation in state.reservations.values():
            if reservation.claim:
                closed |= reservation.device_groups
        for reservation in self._before:
            closed |= reservation.device_groups
        return closed

    def _expected_wait(self, closed: DeviceGroupMask) -> tuple[float, bool]:
        """Return how long the task would wait without moves and whether that is known; else how long it has waited."""
        found = promise(self._state, self._task, self._shape, self._at, self._before, side="likely", closed=closed)
        if found is not None and found.starts_at is not None:
            return min(found.starts_at - self._at, MOST_WAIT_SECONDS), True
        phase = self._task.phase
        assert isinstance(phase, Waiting | Suspended)
        return min(self._at - phase.since, MOST_WAIT_SECONDS), False

    def _look_again(self, instant: float) -> None:
        self.retry_at = instant if self.retry_at is None else min(self.retry_at, instant)

    # --- who leaves -----------------------------------------------------------------------------------------------

    def _way(self, device_group: DeviceGroup) -> _Way | None:
        """Return the cheapest way to make room in a device group; None: there is none."""
        need, host = need_of(self._shape, device_group), device_group.host
        free = ResourceAmount(device_group.free, host.cpus_free, host.memory_free)
        if free.covers(need):
            return _Way(0.0, device_group.number, device_group, ())
        victims = [victim for victim in self._state.on_node[host.spec.id].values() if self._may_move(victim)]
        if sum(victim.spec.resources.gpus for victim in victims) < need.gpus - free.gpus:
            return None
        victims.sort(key=lambda victim: (self._cost(victim) / victim.spec.resources.gpus, victim.id))
        chosen: list[OpenTask] = []
        for victim in victims:
            chosen.append(victim)
            free = free.plus(held_on(device_group, victim))
            if free.covers(need):
                break
        else:
            return None
        for victim in reversed(chosen[:-1]):
            without_it = free.plus(held_on(device_group, victim), -1)
            if without_it.covers(need):
                chosen.remove(victim)
                free = without_it
        return _Way(sum(map(self._cost, chosen)), device_group.number, device_group, tuple(chosen))

    def _may_move(self, victim: OpenTask) -> bool:
        """Whether a task may be moved now; if it is only too young, `retry_at` is set."""
        phase, settings, ask = victim.phase, self._state.settings, victim.spec.resources
        if not isinstance(phase, Running) or victim.preemption not in {Preemption.CHECKPOINT, Preemption.REQUEUE}:
            return False
        if not ask.gpus or ask.nodes > 1 or ask.whole_nodes or victim.id in self._stays:
            return False
        if victim.preemptions >= settings.preemption_limit:
            return False
        rest = settings.preemption_min_run_seconds if victim.attempts == 1 else REST_SECONDS
        if phase.since + max(rest, settings.preemption_min_run_seconds) > self._at:
            self._look_again(phase.since + max(rest, settings.preemption_min_run_seconds))
            return False
        return True

    def _cost(self, victim: OpenTask) -> float:
        """Return the GPU-seconds that a move is expected to cost."""
        if victim.preemption is Preemption.CHECKPOINT:
            repeats = min(UNSAVED_SECONDS, self._at - _phase(victim).since)
        else:
            repeats = victim.served_at(self._at)
        return victim.spec.resources.gpus * (START_SECONDS + repeats)

    # --- where they go --------------------------------------------------------------------------------------------

    def _places(self, chosen: list[_Way], victims: list[OpenTask]) -> list[tuple[OpenTask, Placement]] | None:
        """Return a free place for each task that has to leave, the largest first; None: one has none, and stays."""
        state = self._state
        closed = state.index.device_groups_of(tuple(way.device_group.host.spec.id for way in chosen))
        for reservation in state.reservations.values():
            if reservation.claim:
                closed |= reservation.device_groups
        taken: list[tuple[OpenTask, Placement]] = []
        try:
            for victim in sorted(victims, key=lambda victim: (-victim.spec.resources.gpus, victim.id)):
                placement = self._place_for(victim, closed)
                if placement is None:
                    self._stays.add(victim.id)
                    return None
                state.index.take(placement)  # so that the next one gets another place
                taken.append((victim, placement))
        finally:
            for _, placement in taken:
                state.index.give(placement)
        return taken

    def _place_for(self, victim: OpenTask, closed: DeviceGroupMask) -> Placement | None:
        """Return free GPUs outside the closed device groups on which a task is no slower and delays no reservation."""
        state = self._state
        shape = Shape(victim.spec.resources)
        shape.refresh(state.index)
        closed |= closed_by_model(victim.tenant_usage, shape, state.index) | state.booked
        for speed, device_groups in shape.tiers:
            if speed < victim.speed:
                closed |= device_groups
        others = [
            reservation
            for reservation in state.reservations.values()
            if reservation.task is not self._task and not reservation.claim
        ]
        if others:
            closed |= blocking_reservations(state, victim, shape, self._at, others)
        return choose(shape, state.index, state.order_for(shape.gpus), closed, model=victim.model)


def _phase(task: OpenTask) -> Running:
    assert isinstance(task.phase, Running)
    return task.phase
