"""What a policy is told about a new task: its estimated run time, and its remaining-time levels.

The live scheduler and the simulator use this one class, so that a simulated policy decides with exactly what it would
know in a live cluster. It learns from events as they happen, and of nothing before it has happened.

A task that keeps its progress has a level for each age, by its Gittins index. One that does not runs to its end once it
has started, so its index is its mean run time, if all tasks of the cluster are like this. Where many others can be
preempted, a long task in the way of short ones does less harm: those take their GPUs from others. The level is then
nearer to the one that the task would have if it kept its progress.

The estimator checks itself: of the last tasks that have ended, it compares the error of their estimates with that of one
estimate for all tasks. Where the history of users, sizes and names explains hardly anything, as in traces without users,
new tasks are marked as unpredictable. The engine then reserves nodes later: a reservation pays only if the ends of
running tasks, and which waiting tasks end before, are known. Tasks that do not keep their progress then all have the same
level, and are served in the order of submission: differences between the means of kinds would be noise. A user with many
tasks counts for a tenth of this judgment, if there are others.
"""

from collections import Counter, deque
from math import floor, log

from msgspec.structs import replace

from gpuyard.core.domain.events import AttemptEnded, AttemptStarted, Event
from gpuyard.core.domain.remaining_time import UNKNOWN_LEVELS, RemainingTimeLevels, run_level_of
from gpuyard.core.domain.task import Estimate, TaskSpec
from gpuyard.core.domain.values import Preemption, TaskId
from gpuyard.learn.estimates.history import LEAST_SECONDS, RuntimePredictor, TaskFeatures
from gpuyard.learn.estimates.remaining_time import RemainingTimeModel

KEEPS_PROGRESS = frozenset({Preemption.CHECKPOINT, Preemption.SUSPEND})
"""Tasks that can be stopped and continue later. All others are expected to run to their end once they have started."""


LAST_TASKS = 1000
"""The share of tasks that keep their progress is that of about this many submitted tasks, recent ones counting more."""
LAST_ENDS = 1000
"""Estimates are judged by about this many ended tasks, recent ones counting more."""
LEAST_ENDS = 30
"""With fewer ended tasks, nothing is known about run times, nor whether estimates are right."""
MOST_OF_ONE_USER = 0.1
"""The largest part of the judged tasks that may be of one user, if there are others: one user's tasks may be noise."""
LEAST_EXPLAINED = 0.03
"""The share of the variance of run times, as logarithms, that estimates explain where run times count as predictable."""
FARTHEST = log(20.0)
"""Run times and estimates that are longer or shorter than the mean by more than this factor are judged as if by this factor."""
UNPREDICTABLE_LEVEL = 2
"""The level that mean run times count as where they are not known or not predictable: 40 minutes to 2 h 40 min."""


class TaskEstimator:
    """Estimates new tasks from those that have ended and those that run."""

    def __init__(self, predictor: RuntimePredictor) -> None:
        self._predictor = predictor
        self._remaining_time = RemainingTimeModel()
        self._submitted = 0
        self._keep_progress = 0.0
        """The share of submitted tasks that keep their progress when they are preempted."""
        self._ended = 0
        self._skill = _Skill()

    def estimated(self, spec: TaskSpec, features: TaskFeatures, now: float, told: Estimate | None) -> TaskSpec:
        """Return a task that is submitted now with its estimate and levels.

        `told` is an estimate that takes precedence over the history: the user's, or one from the declared workload.
        Leases have no levels, because their users end them. Levels that a task already has are kept.
        """
        estimate = told if told is not None else self._predictor.estimate(features, now)
        levels, run_level = spec.remaining_time_levels, spec.run_level
        unpredictable, kind_varies = spec.unpredictable or not self._skill.is_enough, spec.kind_varies
        if spec.command is not None:
            self._count(keeps_progress=spec.preemption in KEEPS_PROGRESS)
            levels = levels or self._remaining_time.predict(features)
            kind_varies = kind_varies or self._remaining_time.varies(features)
            if run_level is None and spec.preemption not in KEEPS_PROGRESS:
                run_level = self._run_level(levels, features, now, unknown=unpredictable or self._ended < LEAST_ENDS)
        return replace(
            spec,
            estimate=estimate,
            remaining_time_levels=levels,
            run_level=run_level,
            unpredictable=unpredictable,
            kind_varies=kind_varies,
        )

    def _run_level(self, levels: RemainingTimeLevels, features: TaskFeatures, now: float, *, unknown: bool) -> int:
        """Return the level of a task that does not keep its progress, between that of its mean run time and another."""
        if unknown:
            if_preemptible, of_mean = levels[0] if levels == UNKNOWN_LEVELS else 0, UNPREDICTABLE_LEVEL
        else:
            if_preemptible = levels[0] if levels else 0
            of_mean = run_level_of(self._remaining_time.mean_seconds(features, now))
        return floor(if_preemptible + (1.0 - self._keep_progress) ** 2 * (of_mean - if_preemptible) + 0.5)

    def was_submitted(self, preemption: Preemption) -> None:
        """Learn how a task may be preempted that was submitted before a restart."""
        self._count(keeps_progress=preemption in KEEPS_PROGRESS)

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
            self._ended += 1
            self._remaining_time.observe(features, seconds)
            if told is not None and told.runs:
                self._skill.judge(features.user, told.seconds, seconds)


class _Skill:
    """How much of the variance of run times the estimates from the history have explained.

    Run times and estimates far from the mean count as less far (they are winsorized), so that no single task decides: one that
    ends in a millisecond is otherwise as wrong as a hundred that are estimated well. Bounding the errors instead would favor
    estimates that are right for half of the tasks and wrong by any factor for the others.
    """

    def __init__(self) -> None:
        self._ends = 0
        self._mean = self._variance = self._error = 0.0
        """Of the logarithms of run times, winsorized, and the mean squared error of the estimates."""
        self._users = deque[str]()
        """Users of the tasks that were judged last."""
        self._by_user = Counter[str]()

    def judge(self, user: str, estimated_seconds: float, seconds: float) -> None:
        """Compare an estimate with the run time that was observed, unless its user has most of those judged already."""
        if self._has_too_many(user):
            return
        self._users.append(user)
        self._by_user[user] += 1
        if len(self._users) > LAST_ENDS:
            oldest = self._users.popleft()
            self._by_user[oldest] -= 1
            if not self._by_user[oldest]:
                del self._by_user[oldest]
        ran = log(max(seconds, LEAST_SECONDS))
        self._ends = min(self._ends + 1, LAST_ENDS)
        if self._ends == 1:
            self._mean = ran
        share, apart = 1.0 / self._ends, self._distance(ran)
        error = apart - self._distance(log(max(estimated_seconds, LEAST_SECONDS)))
        self._mean += share * apart
        self._variance = (1.0 - share) * (self._variance + share * apart * apart)
        self._error += share * (error * error - self._error)

    def _distance(self, seconds: float) -> float:
        """Return by which factor a run time differs from the mean, at most `FARTHEST`; all as logarithms."""
        return max(-FARTHEST, min(FARTHEST, seconds - self._mean))

    def _has_too_many(self, user: str) -> bool:
        """Whether a user has more of the judged tasks than twice an equal part, and more than `MOST_OF_ONE_USER`."""
        most = max(MOST_OF_ONE_USER, 2.0 / max(1, len(self._by_user))) * max(LEAST_ENDS, len(self._users))
        return self._by_user[user] >= most

    @property
    def is_enough(self) -> bool:
        """Whether estimates are much better than one estimate for all tasks, or too few have been judged."""
        return self._ends < LEAST_ENDS or self._error <= (1.0 - LEAST_EXPLAINED) * self._variance
