"""Barriers: tasks that wait for a range of other tasks to end.

All tasks that wait for the same range share one barrier, so an array of n tasks that waits for an array of m tasks
costs n + m and not n * m.

    task 1 ─┐                                     ┌─► task 2001
    task 2 ─┼─► barrier (1, 2000): 2000 left ─────┼─► task 2002
      …     │      dependents: 2001, 2002, …      │     …
    2000   ─┘                                     └─► task 4000

A barrier opens when every task of its range has ended. Where success is required, a task that ends in another way
breaks the barrier: it never opens, and the engine ends its dependents in the same step. Barriers follow from the
specifications of the open tasks, so a snapshot does not contain them.
"""

from typing import TYPE_CHECKING

from gpuyard.core.domain.task import Prerequisite
from gpuyard.core.domain.values import TaskId, TaskStatus

if TYPE_CHECKING:
    from gpuyard.core.engine.state import State
    from gpuyard.core.engine.task import OpenTask


class Barrier:
    """Tasks that wait for a range of other tasks."""

    __slots__ = ("broken", "dependents", "key", "left", "lowest")

    def __init__(self, key: Prerequisite) -> None:
        self.key = key
        self.left = 0
        """Number of tasks of the range that have not ended."""
        self.lowest = key[0]
        """Search position: no task of the range below this number is open."""
        self.dependents: dict[TaskId, None] = {}
        self.broken = False
        """Success was required, and a task of the range did not succeed."""

    @property
    def needs_success(self) -> bool:
        """Whether its dependents are ended if a task of the range does not succeed."""
        return self.key[2]

    def lowest_open(self, tasks: "dict[TaskId, OpenTask]") -> TaskId:
        """Return the lowest task of the range that has not ended. The search continues where the last one stopped."""
        while self.lowest < self.key[1] and self.lowest not in tasks:
            self.lowest = TaskId(self.lowest + 1)
        return self.lowest


def wait_for_prerequisites(state: "State", task: "OpenTask") -> None:
    """Make a task wait at the barriers of its specification that are not open yet."""
    waits_for = set()
    for key in task.spec.prerequisites():
        barrier = state.barriers.get(key) or _new_barrier(state, key)
        if barrier.left:
            barrier.dependents[task.id] = None
            waits_for.add(barrier)
    task.waits_for = waits_for or None


def _new_barrier(state: "State", key: Prerequisite) -> Barrier:
    """Create a barrier. Later tasks of the same batch are linked when submitted; any other unknown task has ended."""
    barrier = Barrier(key)
    ended, tasks = state.ended, state.tasks
    for number in range(key[0], key[1] + 1):
        if number in ended:
            continue
        other = tasks.get(TaskId(number))
        if other is not None:
            if other.barriers is None:
                other.barriers = [barrier]
            else:
                other.barriers.append(barrier)
        elif number > state.last_task:
            state.awaited.setdefault(TaskId(number), []).append(barrier)
        else:
            continue
        barrier.left += 1
    if barrier.left:
        state.barriers[key] = barrier
    return barrier


def leave_barriers(task: "OpenTask") -> None:
    """Remove a task that has ended from the barriers it waited at."""
    for barrier in task.waits_for or ():
        del barrier.dependents[task.id]
    task.waits_for = None


def pass_barriers(state: "State", task: "OpenTask", status: TaskStatus) -> None:
    """Update the barriers of a task that has ended: open those it was the last for, break those that needed success."""
    for barrier in task.barriers or ():
        if barrier.needs_success and status is not TaskStatus.SUCCESS:
            barrier.broken = True
            _forget(state, barrier)
            continue
        barrier.left -= 1
        if not barrier.left:
            _forget(state, barrier)
            _open(state, barrier)


def _open(state: "State", barrier: Barrier) -> None:
    for number in barrier.dependents:
        other = state.tasks[number]
        assert other.waits_for is not None
        other.waits_for.discard(barrier)
        if not other.waits_for:
            other.waits_for = None
            state.enqueue(other, state.now)
    barrier.dependents.clear()


def _forget(state: "State", barrier: Barrier) -> None:
    if state.barriers.get(barrier.key) is barrier:
        del state.barriers[barrier.key]
