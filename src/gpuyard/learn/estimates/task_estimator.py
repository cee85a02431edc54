"""What a policy is told about a new task: its estimated run time, and its remaining-time levels.

The live scheduler and the simulator use this one class, so that a simulated policy decides with exactly what it would
know in a live cluster. It learns from events as they happen, and of nothing before it has happened.

A task that keeps its progress has a level for each age, by its Gittins index. One that does not runs to its end once it
has started, so its index is its mean run time, if all tasks of the cluster are like this. Where many others can be
preempted, a long task in the way of short ones does less harm: those take their GPUs from others. The level is then
nearer to the one that the task would have if it kept its progress.
"""

from math import floor

from msgspec.structs import replace

from gpuyard.core.domain.events import AttemptEnded, AttemptStarted, Event
from gpuyard.core.domain.remaining_time import run_level_of
from gpuyard.core.domain.task import Estimate, TaskSpec
from gpuyard.core.domain.values import Preemption, TaskId
from gpuyard.learn.estimates.history import RuntimePredictor, TaskFeatures
from gpuyard.learn.estimates.remaining_time import RemainingTimeModel

KEEPS_PROGRESS = frozenset({Preemption.CHECKPOINT, Preemption.SUSPEND})
"""Tasks that can be stopped and continue later. All others are expected to run to their end once they have started."""


LAST_TASKS = 1000
"""The share of tasks that keep their progress is that of about this many submitted tasks, recent ones counting more."""


class TaskEstimator:
    """Estimates new tasks from those that have ended and those that run."""

    def __init__(self, predictor: RuntimePredictor) -> None:
        self._predictor = predictor
        self._remaining_time = RemainingTimeModel()
        self._submitted = 0
        self._keep_progress = 0.0
        """The share of submitted tasks that keep their progress when they are preempted."""

    def estimated(self, spec: TaskSpec, features: TaskFeatures, now: float, told: Estimate | None) -> TaskSpec:
        """Return a task that is submitted now with its estimate and levels.

        `told` is an estimate that takes precedence over the history: the user's, or one from the declared workload.
        Leases have no levels, because their users end them. Levels that a task already has are kept.
        """
        estimate = told if told is not None else self._predictor.estimate(features, now)
        levels, run_level = spec.remaining_time_levels, spec.run_level
        if spec.command is not None:
            self._count(keeps_progress=spec.preemption in KEEPS_PROGRESS)
            levels = levels or self._remaining_time.predict(features)
            if run_level is None and spec.preemption not in KEEPS_PROGRESS:
                run_level = self._run_level(levels[0] if levels else 0, features, now)
        return replace(spec, estimate=estimate, remaining_time_levels=levels, run_level=run_level)

    def _run_level(self, if_preemptible: int, features: TaskFeatures, now: float) -> int:
        """Return the level of a task that does not keep its progress, between that of its mean run time and another."""
        of_mean = run_level_of(self._remaining_time.mean_seconds(features, now))
        return floor(if_preemptible + (1.0 - self._keep_progress) ** 2 * (of_mean - if_preemptible) + 0.5)

    def _count(self, *, keeps_progress: bool) -> None:
        self._submitted = min(self._submitted + 1, LAST_TASKS)
        self._keep_progress += (keeps_progress - self._keep_progress) / self._submitted

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
