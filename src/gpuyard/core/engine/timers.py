"""Timers: instants at which something has to be looked at although nothing happens then.

A timer that is no longer needed is not removed; it finds nothing to do when it is due.
"""

from collections.abc import Container, Iterator
from enum import IntEnum
from heapq import heappop, heappush
from typing import NamedTuple

from gpuyard.core.domain.values import TaskId


class About(IntEnum):
    """What a timer is about. Of several at one instant the smallest goes first."""

    LINE = 0
    """A line of the queue is tried again: a victim is old enough, or a task has waited long enough for better GPUs."""
    BUDGETS = 1
    """A budget period of a tenant begins."""
    TASK = 2
    """A deadline, a timeout, the end of a back-off, a reserved start, a change of rank, a look for faster GPUs."""


class Timer(NamedTuple):
    """What has to be looked at, and when."""

    at: float
    about: About
    number: int = 0
    """Of the task or line."""


class Timers:
    """All timers, the next one first."""

    def __init__(self) -> None:
        self._heap: list[Timer] = []
        self._budgets: set[float] = set()
        """Instants for which a timer about budgets is set."""

    def __len__(self) -> int:
        return len(self._heap)

    def __iter__(self) -> Iterator[Timer]:
        return iter(self._heap)

    def add_task(self, at: float, task: TaskId) -> None:
        """Look at a task."""
        heappush(self._heap, Timer(at, About.TASK, task))

    def add_line(self, at: float, line: int) -> None:
        """Try a line of the queue again."""
        heappush(self._heap, Timer(at, About.LINE, line))

    def add_budgets(self, at: float) -> None:
        """Ask tenants with a budget again."""
        if at not in self._budgets:
            self._budgets.add(at)
            heappush(self._heap, Timer(at, About.BUDGETS))

    def next(self) -> float | None:
        """When the next one is due."""
        return self._heap[0].at if self._heap else None

    def due(self, now: float) -> Iterator[Timer]:
        """Take out the timers that are due, one after the other; new ones may be added meanwhile."""
        while self._heap and self._heap[0].at <= now:
            timer = heappop(self._heap)
            self._budgets.discard(timer.at)
            yield timer

    def tidy(self, tasks: Container[int]) -> None:
        """Drop timers of tasks that are not among these, and doubles."""
        self._heap[:] = sorted(
            {timer for timer in self._heap if timer.about is not About.TASK or timer.number in tasks}
        )
