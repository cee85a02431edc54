"""What happened to every job of a simulation, and how full the yard was, from the facts alone."""

from collections.abc import Sequence

from gpuyard.domain import events as fact
from gpuyard.domain.causes import Why
from gpuyard.domain.values import MILLI, TaskId

SAMPLES = 2_000
"""At most so many points of a line over time: twice as many are thinned out to half."""


class Life:
    """One task, from its submission to its end."""

    __slots__ = ("charge_milli", "ended", "held", "preemptions", "since", "started", "submitted", "user")

    def __init__(self, user: str, at: float) -> None:
        self.user = user
        self.submitted = at
        self.started: float | None = None
        """When it first had GPUs."""
        self.ended: float | None = None
        self.held = 0.0
        """Seconds with GPUs, in all attempts."""
        self.since: float | None = None
        """Since when it has GPUs."""
        self.charge_milli = 0
        """How many it has, in thousandths."""
        self.preemptions = 0

    @property
    def jct(self) -> float:
        """Seconds from submission to end."""
        assert self.ended is not None
        return self.ended - self.submitted

    @property
    def queued(self) -> float:
        """Seconds without GPUs."""
        return max(0.0, self.jct - self.held)


class Recorder:
    """A listener of a world, or a reader of a journal."""

    def __init__(self) -> None:
        self.lives: dict[TaskId, Life] = {}
        self.gpu_seconds = 0.0
        """GPUs in use, times how long."""
        self.line: list[tuple[float, float, int]] = []
        """Instants, with the GPUs in use and the tasks that waited from then on."""
        self.last = 0.0
        self._in_use_milli = 0
        self._waiting = 0
        self._every = 0.0
        self._end_of_sample = 0.0

    def hear(self, at: float, facts: Sequence[fact.Event]) -> None:
        """Take down what happened."""
        self.gpu_seconds += self._in_use_milli * (at - self.last) / MILLI
        self.last = at
        for event in facts:
            self._note(at, event)
        if at >= self._end_of_sample:
            self._sample(at)

    def _note(self, at: float, event: fact.Event) -> None:
        match event:
            case fact.TaskSubmitted(task):
                self.lives[task] = Life(event.spec.user, at)
                self._waiting += 1
            case fact.TaskPlaced(task, _, placement) | fact.AttemptResuming(task, _, placement):
                life = self.lives[task]
                life.since = at
                life.charge_milli = placement.charge_milli
                self._in_use_milli += life.charge_milli
                self._waiting -= 1
                if life.started is None:
                    life.started = at
            case fact.AttemptEnded(task) | fact.AttemptSuspended(task):
                life = self.lives[task]
                if life.since is not None:
                    life.held += at - life.since
                    life.since = None
                    self._in_use_milli -= life.charge_milli
                    self._waiting += 1
            case fact.TaskEnded(task):
                self.lives[task].ended = at
                self._waiting -= 1
            case fact.AttemptStopping(task, _, cause) | fact.AttemptSuspending(task, _, cause):
                self.lives[task].preemptions += cause.why in {Why.PREEMPTED, Why.RECLAIMED}
            case _:
                return

    def _sample(self, at: float) -> None:
        self.line.append((at, self._in_use_milli / MILLI, self._waiting))
        if len(self.line) >= 2 * SAMPLES:
            self.line = self.line[::2]
            self._every = (self.line[-1][0] - self.line[0][0]) / SAMPLES
        self._end_of_sample = at + self._every
