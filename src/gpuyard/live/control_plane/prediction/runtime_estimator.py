"""Estimate new tasks from the tasks of this cluster that have ended and those that run.

An estimate is written to the journal with the task, so it is part of an event, like all other inputs of decisions, and is
not computed again. After a restart, the archive supplies the ended tasks; without it, learning starts from nothing, which
does no harm.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import msgspec

from gpuyard.core.domain.actual import Actual
from gpuyard.core.domain.causes import CauseKind
from gpuyard.core.domain.events import AttemptEnded, AttemptStarted, Event
from gpuyard.core.domain.task import Estimate, TaskSpec
from gpuyard.core.domain.values import ENDED, Preemption, TaskStatus
from gpuyard.core.domain.workload import Forecast, WorkloadSpec, forecast_for
from gpuyard.learn.estimates.history import HistoryPredictor, TaskFeatures, features_from, features_of
from gpuyard.learn.estimates.task_estimator import TaskEstimator
from gpuyard.live.control_plane.prediction.accuracy import AccuracyTracker
from gpuyard.live.control_plane.prediction.performance_predictor import estimate_of
from gpuyard.live.control_plane.views import TaskView

ENDS = frozenset({CauseKind.SUCCEEDED, CauseKind.EXIT_CODE, CauseKind.MEMBER_FAILED, CauseKind.CANCELLED})
"""Ends that show how long a task runs: its own, or a cancellation by its user. The scheduler's do not count."""
MOST_REMEMBERED = 10_000
"""Number of ended tasks that are read after a restart."""


class ArchivedTask(msgspec.Struct):
    """The fields of an archived task that are needed here."""

    tenant_id: str
    user: str
    project: str
    name: str
    command: list[str] | str | None
    gpu_count: int
    nodes: int
    gpu_fraction: float | None
    reason_code: str | None
    estimated_seconds: float | None = None
    estimated_low_seconds: float | None = None
    estimated_high_seconds: float | None = None
    predicted_from: int | None = None
    run_seconds: float | None = None
    ran_on: str | None = None
    gpu_memory_peak_mib: int | None = None
    work: WorkloadSpec | None = None
    forecasts: list[Forecast] = []
    preemption: Preemption = Preemption.NEVER


class RuntimeEstimator:
    """Queries the estimators and trains them with ended tasks."""

    def __init__(self) -> None:
        self._history = HistoryPredictor()
        self._estimator = TaskEstimator(self._history)
        self.scores = AccuracyTracker()

    def estimated(self, spec: TaskSpec, now: float) -> TaskSpec:
        """Add a run-time estimate. The user's own value takes precedence, with an interval from its past accuracy."""
        asked, said = features_of(spec), spec.estimate
        told: Estimate | None = None
        if said is not None:
            told = self._history.with_user_accuracy(asked, said)
        elif (predicted := estimate_of(spec)) is not None:
            told = self._history.corrected(asked, predicted, spec.forecasts[0].by)
        return self._estimator.estimated(spec, asked, now, told)

    def current_estimate(self, spec: TaskSpec, now: float) -> Estimate | None:
        """Return the estimate that a waiting task would get now; None if it depends on more than history."""
        return None if spec.forecasts else self._history.estimate(features_of(spec), now)

    def hear(self, event: Event, view: TaskView, at: float) -> None:
        """Learn from an event of a task which tasks run. Leases do not count."""
        if isinstance(event, AttemptStarted | AttemptEnded) and view.spec.command is not None:
            self._estimator.hear(event, features_of(view.spec), at)

    def remember_running(self, views: Iterable[TaskView]) -> None:
        """Learn which tasks are open and which of them run already, after a restart."""
        for view in views:
            if view.status not in ENDED and view.spec.command is not None:
                self._estimator.was_submitted(view.spec.preemption)
            if view.status is TaskStatus.RUNNING and view.started_at is not None and view.spec.command is not None:
                self._estimator.runs(view.id, features_of(view.spec), view.started_at)

    def ended(self, view: TaskView, now: float) -> None:
        """Learn from an ended task."""
        spec, cause = view.spec, view.cause
        if cause is not None and cause.why in ENDS and view.run_seconds > 0.0:
            over = EndedTask(
                features_of(spec),
                view.run_seconds,
                now,
                spec.estimate,
                spec.work,
                spec.forecasts,
                view.ran_on,
                view.actual,
                lease=spec.command is None,
                well=cause.why is CauseKind.SUCCEEDED,
            )
            self._learn(over)

    def remember(self, ended: Iterable[tuple[float, bytes]]) -> None:
        """Learn from archived tasks, in the order of their ends. Tasks that lack a needed field are skipped."""
        for at, answer in ended:
            try:
                kept = _decode(answer)
            except msgspec.DecodeError:  # includes its subclass for data of another type
                continue
            if kept.command is not None:
                self._estimator.was_submitted(kept.preemption)
            if kept.reason_code in ENDS and kept.run_seconds:
                gpus = kept.gpu_fraction if kept.gpu_fraction is not None else float(kept.gpu_count * kept.nodes)
                over = EndedTask(
                    features_from(kept.tenant_id, kept.user, kept.project, kept.name, kept.command, gpus),
                    kept.run_seconds,
                    at,
                    _told(kept),
                    kept.work,
                    tuple(kept.forecasts),
                    kept.ran_on,
                    Actual(kept.gpu_memory_peak_mib),
                    lease=kept.command is None,
                    well=kept.reason_code == CauseKind.SUCCEEDED,
                )
                self._learn(over)

    def _learn(self, over: "EndedTask") -> None:
        """Learn from a task. With a prediction it tells nothing about users' estimates; only a success corrects one."""
        asked, seconds = over.asked, over.seconds
        self._estimator.ended(asked, seconds, over.at, None if over.forecasts else over.told, lease=over.lease)
        predicted = forecast_for(over.forecasts, over.ran_on or "")
        if over.well and predicted is not None:
            self._history.learn_correction(asked, predicted.by, predicted.seconds, seconds)
        self.scores.ended(
            seconds, over.told, over.forecasts, over.work, over.ran_on, over.actual, well=over.well
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class EndedTask:
    """A task that ended by itself or was cancelled by its user."""

    asked: TaskFeatures
    seconds: float
    at: float
    told: Estimate | None
    work: WorkloadSpec | None
    forecasts: tuple[Forecast, ...]
    ran_on: str | None
    actual: Actual | None
    lease: bool
    well: bool


def _told(kept: ArchivedTask) -> Estimate | None:
    seconds, low, high = kept.estimated_seconds, kept.estimated_low_seconds, kept.estimated_high_seconds
    if seconds is None or low is None or high is None:
        return None
    return Estimate(seconds, low, high, kept.predicted_from or 0)


_decode = msgspec.json.Decoder(ArchivedTask).decode
