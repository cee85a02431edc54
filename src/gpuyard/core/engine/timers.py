"""Timers: instants at which something has to be checked even if no event occurs.

A timer that is no longer needed is not removed; it has no effect when it is due.
"""

from collections.abc import Container, Iterator
from enum import IntEnum
from heapq import heappop, heappush
from typing import NamedTuple

from gpuyard.core.domain.values import TaskId


class TimerKind(IntEnum):
    """Subject of a timer. Timers of the same instant run in this order."""

    LINE = 0
    """Try a line of the queue again: a victim is old enough, or a task has waited long enough for better GPUs or for a
    reservation."""
    BUDGETS = 1
    """A budget period of a tenant begins, or a budget is spent."""
    TASK = 2
    """A deadline, a timeout, the end of a back-off, a reserved start, a change of rank, a check for faster GPUs."""
    SEARCH = 3
    """Look for moves that make room for waiting tasks."""
    BOOKING = 4
    """A booking begins or ends."""


class Timer(NamedTuple):
    """What to check, and when."""

    at: float
    about: TimerKind
    number: int = 0
    """Number of the task, line or booking."""


class Timers:
    """All timers, in a heap ordered by instant."""

    def __init__(self) -> None:
        self._heap: list[Timer] = []
        self._budgets: set[float] = set()
        """Instants that have a timer for budgets."""

    def __len__(self) -> int:
        return len(self._heap)

    def __iter__(self) -> Iterator[Timer]:
        return iter(self._heap)

    def add_task(self, at: float, task: TaskId) -> None:
        """Set a timer to check a task."""
        heappush(self._heap, Timer(at, TimerKind.TASK, task))

    def add_line(self, at: float, line: int) -> None:
        """Set a timer to try a line of the queue again."""
        heappush(self._heap, Timer(at, TimerKind.LINE, line))

    def add_search(self, at: float) -> None:
        """Set a timer to look for moves that make room."""
        heappush(self._heap, Timer(at, TimerKind.SEARCH))

    def add_booking(self, at: float, booking: int) -> None:
        """Set a timer for the begin or the end of a booking."""
        heappush(self._heap, Timer(at, TimerKind.BOOKING, booking))

    def add_budgets(self, at: float) -> None:
        """Set a timer to check tenants with a budget; at most one per instant."""
        if at not in self._budgets:
            self._budgets.add(at)
            heappush(self._heap, Timer(at, TimerKind.BUDGETS))

    def next(self) -> float | None:
        """Return when the next timer is due; None: there is none."""
        return self._heap[0].at if self._heap else None

    def due(self, now: float) -> Iterator[Timer]:
        """Remove and yield the timers that are due, in order; new ones may be added meanwhile."""
        while self._heap and self._heap[0].at <= now:
            timer = heappop(self._heap)
            self._budgets.discard(timer.at)
            yield timer

    def tidy(self, tasks: Container[int]) -> None:
        """Drop duplicate timers, and timers of tasks that are not in `tasks`."""
        self._heap[:] = sorted(
            {timer for timer in self._heap if timer.about is not TimerKind.TASK or timer.number in tasks}
        )
