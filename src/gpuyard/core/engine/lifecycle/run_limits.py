"""Limits on running tasks: of an array or sweep, at most so many tasks run at the same time.

A limit has places. A task takes one when it is placed, or when others begin to be preempted for it, and returns it when
its attempt has ended; a suspended task keeps its place, because it keeps its memory, files and licenses. Only tasks that
could take one of the free places are in the queue; the others wait on the shelf and are no part of any decision.

    limit 4 ──► places: task 1, 2, 3 (running)          ──► free: 1
            └── shelf ──► admitted: task 4 (in the queue)
                     └──► parked:   task 5, 6, …          one is admitted when a place is free

So a scheduling pass, reservations, preemption, pools and expected starts need to know nothing of limits, and cost nothing
for them. The admitted tasks are always those that go first in the order of the policy: a better one that arrives, such as
a retried task, takes the turn of the last one admitted.

Tasks that request different resources have shelves of their own, each with as many admitted tasks as places are free: a
retried task that needs a larger GPU than any free one does not keep the others waiting. Whichever is placed first takes
the place, and the turn of the others ends with it.

Except for the limits themselves, all this follows from the tasks, so a snapshot contains nothing else.
"""

from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING

from gpuyard.core.domain.task import Resources, RunLimit
from gpuyard.core.domain.values import TaskId
from gpuyard.core.engine.phases import ACTIVE

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpuyard.core.engine.state import State
    from gpuyard.core.engine.task import OpenTask

SLACK = 64
"""Number of stale entries a heap may hold before it is cleaned."""


class Shelf:
    """Tasks of one limit with the same request that lack nothing but a place and GPUs."""

    __slots__ = ("admitted", "count", "parked", "size")

    def __init__(self) -> None:
        self.admitted: list[tuple[float, int, OpenTask]] = []
        """Heap of (-key, -number, task): tasks in the queue, the last in order on top. Some entries are stale."""
        self.parked: list[tuple[float, TaskId, OpenTask]] = []
        """Heap of (key, number, task): tasks outside the queue, the first in order on top. Some entries are stale."""
        self.count = 0
        """Number of admitted tasks."""
        self.size = 0
        """Number of all tasks."""

    def first_parked(self) -> "OpenTask | None":
        """Return the task to admit next."""
        parked = self.parked
        while parked:
            key, _, task = parked[0]
            if task.shelf is self and task.group is None and task.key == key:
                return task
            heappop(parked)
        return None

    def last_admitted(self) -> "OpenTask":
        """Return the admitted task that goes last."""
        admitted = self.admitted
        while True:
            key, _, task = admitted[0]
            if task.shelf is self and task.group is not None and task.key == -key:
                return task
            heappop(admitted)

    def park(self, task: "OpenTask") -> None:
        """Keep a task that has no turn."""
        heappush(self.parked, (task.key, task.id, task))
        if len(self.parked) > SLACK + 2 * self.size:
            kept = {
                each.id: (key, number, each)
                for key, number, each in self.parked
                if each.shelf is self and each.group is None and each.key == key
            }
            self.parked = list(kept.values())
            heapify(self.parked)

    def note_admitted(self, task: "OpenTask") -> None:
        """Note that a parked task is in the queue now."""
        self.count += 1
        heappush(self.admitted, (-task.key, -task.id, task))
        if len(self.admitted) > SLACK + 2 * self.count:
            kept = {
                each.id: (key, number, each)
                for key, number, each in self.admitted
                if each.shelf is self and each.group is not None and each.key == -key
            }
            self.admitted = list(kept.values())
            heapify(self.admitted)


class LimitedTasks:
    """Tasks with consecutive numbers of which at most so many run at the same time."""

    __slots__ = ("limit", "open", "shelves", "taken")

    def __init__(self, limit: RunLimit) -> None:
        self.limit = limit
        self.open = 0
        """Number of its tasks that have not ended."""
        self.taken = 0
        """Number of its tasks that have a place; above the limit after it was lowered."""
        self.shelves: dict[Resources, Shelf] = {}

    @property
    def free(self) -> int:
        """Number of free places."""
        return max(0, self.limit.most - self.taken)

    def tasks(self, state: "State") -> "Iterator[OpenTask]":
        """Yield its open tasks. It visits all numbers: not for decisions."""
        for number in range(self.limit.first, self.limit.last + 1):
            if (task := state.tasks.get(TaskId(number))) is not None:
                yield task


# --- limits come and go -----------------------------------------------------------------------------------------------


def set_limit(state: "State", limit: RunLimit) -> None:
    """Set, change or remove a limit."""
    known = state.run_limits.get(limit.first)
    if known is None:
        _add(state, limit)
    elif limit.most:
        known.limit = limit
        state.unsettled[limit.first] = known
    else:
        _remove(state, known)


def _add(state: "State", limit: RunLimit) -> None:
    limited = state.run_limits[limit.first] = LimitedTasks(limit)
    for task in list(limited.tasks(state)):
        join(limited, task)
        note_place(state, task)
        if task.group is not None and not task.has_place:
            state.requeue(task, state.now)
    if limit.last > state.last_task:
        state.coming_limits.append(limited)


def _remove(state: "State", limited: LimitedTasks) -> None:
    forget(state, limited)
    for task in list(limited.tasks(state)):
        was_parked = task.is_parked
        task.shelf = task.run_limit = None
        task.has_place = False
        if was_parked:
            state.enqueue(task, state.now)


def forget(state: "State", limited: LimitedTasks) -> None:
    """Forget a limit that is removed, or whose tasks have ended."""
    del state.run_limits[limited.limit.first]
    state.unsettled.pop(limited.limit.first, None)


def join_coming(state: "State", task: "OpenTask") -> None:
    """Let a new task count against the limit that was set for it before."""
    for limited in state.coming_limits:
        if limited.limit.first <= task.id <= limited.limit.last:
            join(limited, task)
    state.coming_limits = [limited for limited in state.coming_limits if limited.limit.last > task.id]


def join(limited: LimitedTasks, task: "OpenTask") -> None:
    """Note that a task is one of those that a limit is for."""
    task.run_limit = limited
    limited.open += 1


def leave(state: "State", task: "OpenTask") -> None:
    """Note that a task has ended."""
    limited = task.run_limit
    assert limited is not None
    limited.open -= 1
    if not limited.open and limited.limit.last <= state.last_task:
        forget(state, limited)


# --- places -----------------------------------------------------------------------------------------------------------


def note_place(state: "State", task: "OpenTask") -> None:
    """Count a task that has taken a place, or has returned it."""
    limited = task.run_limit
    assert limited is not None
    reservation = state.reservations.get(task.id)
    has_place = isinstance(task.phase, ACTIVE) or (reservation is not None and reservation.claim)
    if has_place != task.has_place:
        task.has_place = has_place
        limited.taken += 1 if has_place else -1
        state.unsettled[limited.limit.first] = limited


def shelve(state: "State", limited: LimitedTasks, task: "OpenTask") -> None:
    """Keep a task that lacks nothing but GPUs and a place, and admit it if it has its turn."""
    resources = task.spec.resources
    shelf = limited.shelves.get(resources)
    if shelf is None:
        shelf = limited.shelves[resources] = Shelf()
    task.shelf = shelf
    shelf.size += 1
    shelf.park(task)
    _settle(state, limited)


def take_off(state: "State", task: "OpenTask") -> None:
    """Remove a task from its shelf, before it leaves the queue if it is there."""
    shelf, limited = task.shelf, task.run_limit
    assert shelf is not None
    assert limited is not None
    task.shelf = None
    shelf.size -= 1
    if task.group is not None:
        shelf.count -= 1
        state.unsettled[limited.limit.first] = limited
    if not shelf.size:
        limited.shelves.pop(task.spec.resources, None)


def settle(state: "State") -> None:
    """Admit and withdraw tasks where places were taken or returned."""
    while state.unsettled:
        _, limited = state.unsettled.popitem()
        _settle(state, limited)


def _settle(state: "State", limited: LimitedTasks) -> None:
    """Admit as many of each shelf as places are free: those that go first."""
    free = limited.free
    for shelf in list(limited.shelves.values()):
        while shelf.count > free:
            _withdraw(state, shelf)
        while (first := shelf.first_parked()) is not None and free:
            if shelf.count == free:
                last = shelf.last_admitted()
                if (last.key, last.id) < (first.key, first.id):
                    break
                _withdraw(state, shelf)
            state.push(first, state.now)
            shelf.note_admitted(first)


def _withdraw(state: "State", shelf: Shelf) -> None:
    """Take the turn of the last task admitted, and its reservation."""
    last = shelf.last_admitted()
    shelf.count -= 1
    last.shelf = None  # it leaves the queue only
    state.leave_queue(last)
    last.shelf = shelf
    state.end_reservation(last.id)
    shelf.park(last)
