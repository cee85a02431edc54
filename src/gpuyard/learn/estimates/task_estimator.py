"""What a policy is told about a new task: its estimated run time, and its remaining-time levels.

The live scheduler and the simulator use this one class, so that a simulated policy decides with exactly what it would
know in a live cluster. It learns from events as they happen, and of nothing before it has happened.
"""

from msgspec.structs import replace

from gpuyard.core.domain.events import AttemptEnded, AttemptStarted, Event
from gpuyard.core.domain.remaining_time import run_level_of
from gpuyard.core.domain.task import Estimate, TaskSpec
from gpuyard.core.domain.values import Preemption, TaskId
from gpuyard.learn.estimates.history import RuntimePredictor, TaskFeatures
from gpuyard.learn.estimates.remaining_time import RemainingTimeModel

KEEPS_PROGRESS = frozenset({Preemption.CHECKPOINT, Preemption.SUSPEND})
"""Tasks that can be stopped and continue later. All others are expected to run to their end once they have started."""


class TaskEstimator:
    """Estimates new tasks from those that have ended and those that run."""

    def __init__(self, predictor: RuntimePredictor) -> None:
        self._predictor = predictor
        self._remaining_time = RemainingTimeModel()

    def estimated(self, spec: TaskSpec, features: TaskFeatures, now: float, told: Estimate | None) -> TaskSpec:
        """Return a task that is submitted now with its estimate and levels.

        `told` is an estimate that takes precedence over the history: the user's, or one from the declared workload.
        Leases have no levels, because their users end them. Levels that a task already has are kept.
        """
        estimate = told if told is not None else self._predictor.estimate(features, now)
        levels, run_level = spec.remaining_time_levels, spec.run_level
        if spec.command is not None:
            levels = levels or self._remaining_time.predict(features)
            if run_level is None and spec.preemption not in KEEPS_PROGRESS:
                run_level = run_level_of(self._remaining_time.mean_seconds(features, now))
        return replace(spec, estimate=estimate, remaining_time_levels=levels, run_level=run_level)

    def hear(self, event: Event, features: TaskFeatures, at: float) -> None:
        """Learn that a task with these features runs, or no longer runs; other events are ignored."""
        if isinstance(event, AttemptStarted):
            self.runs(event.task, features, at if event.started_at is None else event.started_at)
        elif isinstance(event, AttemptEnded):
            self._remaining_time.stopped(event.task)

    def runs(self, task: TaskId, features: TaskFeatures, since: float) -> None:
        """Learn that a task runs since this instant."""
        self._remaining_time.started(task, features, since)

    def ended(
        self, features: TaskFeatures, seconds: float, at: float, told: Estimate | None, *, lease: bool = False
    ) -> None:
        """Learn that a task has ended after it ran for `seconds`; `told` is the estimate it was given."""
        self._predictor.ended(features, seconds, at, told)
        if not lease:
            self._remaining_time.observe(features, seconds)
