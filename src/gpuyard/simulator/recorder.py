"""Records the timeline of every job of a simulation and the GPUs in use over time, from the events alone."""

from array import array
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from math import isnan, nan
from typing import NamedTuple

from gpuyard.core.domain import events
from gpuyard.core.domain.causes import CauseKind
from gpuyard.core.domain.values import MILLI, TaskId

STOPPED = (CauseKind.PREEMPTED, CauseKind.RECLAIMED, CauseKind.MOVED, CauseKind.EXCHANGED, CauseKind.MADE_ROOM)
"""Reasons for which a task is stopped and continues later or elsewhere."""
MOVED = (CauseKind.MOVED, CauseKind.EXCHANGED, CauseKind.MADE_ROOM)
"""Reasons for which a task is stopped to continue on other GPUs, where it is faster or makes room for another one."""
SAMPLES = 2_000
"""Maximum number of points of a time series: at twice this number, every second point is dropped."""


class TaskTimeline(NamedTuple):
    """One task, from its submission to its end."""

    user: str
    submitted: float
    started: float | None
    """When it first had GPUs; None if it never had any."""
    ended: float | None
    held: float
    """Seconds with GPUs, in all finished attempts."""
    preemptions: int

    @property
    def jct(self) -> float:
        """Job completion time: seconds from submission to end."""
        assert self.ended is not None
        return self.ended - self.submitted

    @property
    def queued(self) -> float:
        """Seconds without GPUs."""
        return max(0.0, self.jct - self.held)


class TaskTimelines(Mapping[TaskId, TaskTimeline]):
    """All timelines in the order of submission, which is the order of task numbers.

    Stored as columns of numbers, so that a million timelines fit in memory; a `TaskTimeline` is built on access.
    """

    def __init__(self) -> None:
        self._tasks = array("q")
        self._users = array("l")
        self._submitted = array("d")
        self._started = array("d")
        """NaN until the task has started; likewise for the end."""
        self._ended = array("d")
        self._held = array("d")
        self._preemptions = array("l")
        self._names: list[str] = []
        self._numbers: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._tasks)

    def __iter__(self) -> Iterator[TaskId]:
        return map(TaskId, self._tasks)

    def __getitem__(self, task: TaskId) -> TaskTimeline:
        row = bisect_left(self._tasks, task)
        if row == len(self._tasks) or self._tasks[row] != task:
            raise KeyError(task)
        return self._life(row)

    def over(self) -> Iterator[TaskTimeline]:
        """Return the timelines of the tasks that have ended."""
        return (self._life(row) for row, ended in enumerate(self._ended) if not isnan(ended))

    def _life(self, row: int) -> TaskTimeline:
        started, ended = self._started[row], self._ended[row]
        return TaskTimeline(
            self._names[self._users[row]],
            self._submitted[row],
            None if isnan(started) else started,
            None if isnan(ended) else ended,
            self._held[row],
            self._preemptions[row],
        )

    # --- for the recorder --------------------------------------------------------------------------------------------

    def begin(self, task: TaskId, user: str, at: float) -> int:
        """Add a submitted task and return its row."""
        number = self._numbers.get(user)
        if number is None:
            number = self._numbers[user] = len(self._names)
            self._names.append(user)
        self._tasks.append(task)
        self._users.append(number)
        self._submitted.append(at)
        self._started.append(nan)
        self._ended.append(nan)
        self._held.append(0.0)
        self._preemptions.append(0)
        return len(self._tasks) - 1

    def start(self, row: int, at: float) -> None:
        """Record that the task has GPUs, not necessarily for the first time."""
        if isnan(self._started[row]):
            self._started[row] = at

    def hold(self, row: int, seconds: float) -> None:
        """Add to the time the task had GPUs."""
        self._held[row] += seconds

    def count_preemption(self, row: int) -> None:
        """Count one preemption."""
        self._preemptions[row] += 1

    def end(self, row: int, at: float) -> None:
        """Record the end of the task."""
        self._ended[row] = at


class _Open:
    """State of a task that has not ended."""

    __slots__ = ("charge_milli", "row", "since")

    def __init__(self, row: int) -> None:
        self.row = row
        self.since: float | None = None
        """Since when it has GPUs; None while it has none."""
        self.charge_milli = 0
        """GPUs it holds, in thousandths."""


class Recorder:
    """Builds timelines from events; used as a listener of a world or on a journal."""

    def __init__(self) -> None:
        self.lives = TaskTimelines()
        self.gpu_seconds = 0.0
        """GPUs in use, integrated over time."""
        self.moves = 0
        """Number of stops for a move, which count as preemptions of the task."""
        self.line: list[tuple[float, float, int]] = []
        """Instants, with the GPUs in use and the number of waiting tasks from then on."""
        self.last = 0.0
        self._open: dict[TaskId, _Open] = {}
        self._in_use_milli = 0
        self._waiting = 0
        self._every = 0.0
        self._end_of_sample = 0.0

    def hear(self, at: float, new_events: Sequence[events.Event]) -> None:
        """Record a batch of events of one instant."""
        self.gpu_seconds += self._in_use_milli * (at - self.last) / MILLI
        self.last = at
        for event in new_events:
            self._note(at, event)
        if at >= self._end_of_sample:
            self._sample(at)

    def _note(self, at: float, event: events.Event) -> None:
        match event:
            case events.TaskSubmitted(task):
                self._open[task] = _Open(self.lives.begin(task, event.spec.user, at))
                self._waiting += 1
            case events.TaskPlaced(task, _, placement) | events.AttemptResuming(task, _, placement):
                it = self._open[task]
                it.since = at
                it.charge_milli = placement.charge_milli
                self._in_use_milli += it.charge_milli
                self._waiting -= 1
                self.lives.start(it.row, at)
            case events.AttemptEnded(task) | events.AttemptSuspended(task):
                it = self._open[task]
                if it.since is not None:
                    self.lives.hold(it.row, at - it.since)
                    it.since = None
                    self._in_use_milli -= it.charge_milli
                    self._waiting += 1
            case events.TaskEnded(task):
                self.lives.end(self._open.pop(task).row, at)
                self._waiting -= 1
            case events.AttemptStopping(task, _, cause) | events.AttemptSuspending(task, _, cause):
                if cause.why in STOPPED:
                    self.lives.count_preemption(self._open[task].row)
                    self.moves += cause.why in MOVED
            case _:
                return

    def _sample(self, at: float) -> None:
        self.line.append((at, self._in_use_milli / MILLI, self._waiting))
        if len(self.line) >= 2 * SAMPLES:
            self.line = self.line[::2]
            self._every = (self.line[-1][0] - self.line[0][0]) / SAMPLES
        self._end_of_sample = at + self._every
