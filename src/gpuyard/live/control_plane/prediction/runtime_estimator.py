"""Run times and outlooks for tasks that come, from what has ended in this yard.

What is foreseen goes into the journal with the task, so it is a fact like everything else that decisions rest on, and is
never foreseen again. After a restart the archive says what has ended; without it, learning begins anew, and no harm is done.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import msgspec
from msgspec.structs import replace

from gpuyard.core.domain.actual import Actual
from gpuyard.core.domain.causes import Why
from gpuyard.core.domain.task import Estimate, TaskSpec
from gpuyard.core.domain.workload import Forecast, WorkloadSpec, forecast_for
from gpuyard.learn.estimates.history import HistoryPredictor, TaskFeatures, features_from, features_of
from gpuyard.learn.estimates.remaining_time import RemainingTimeModel
from gpuyard.live.control_plane.prediction.accuracy import AccuracyTracker
from gpuyard.live.control_plane.prediction.performance_predictor import estimate_of
from gpuyard.live.control_plane.views import TaskView

ENDS = frozenset({Why.SUCCEEDED, Why.EXIT_CODE, Why.MEMBER_FAILED, Why.CANCELLED})
"""Ends that say how long a task runs: its own, and its user's who had seen enough. Not those that the yard brought about."""
MOST_REMEMBERED = 10_000
"""Ended tasks that are read after a restart."""


class ArchivedTask(msgspec.Struct):
    """What the archive keeps of an ended task, as far as it matters here."""

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


class RuntimeEstimator:
    """Asks those who know what has ended, and tells them."""

    def __init__(self) -> None:
        self._history = HistoryPredictor()
        self._outlooks = RemainingTimeModel()
        self.scores = AccuracyTracker()

    def estimated(self, spec: TaskSpec, now: float) -> TaskSpec:
        """The task with how long it is thought to run. What its user says counts, with a band by how right that was before."""
        asked, said = features_of(spec), spec.estimate
        if said is not None:
            estimate: Estimate | None = self._history.believed(asked, said)
        elif (predicted := estimate_of(spec)) is not None:
            estimate = self._history.corrected(asked, predicted, spec.forecasts[0].by)
        else:
            estimate = self._history.estimate(asked, now)
        outlook = () if spec.command is None else self._outlooks.outlook(asked)
        return replace(spec, estimate=estimate, outlook=outlook)

    def current_estimate(self, spec: TaskSpec, now: float) -> Estimate | None:
        """How long a waiting task would be predicted to run if it came now; none where that rests on more than history."""
        return None if spec.forecasts else self._history.estimate(features_of(spec), now)

    def ended(self, view: TaskView, now: float) -> None:
        """A task is over."""
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
                well=cause.why is Why.SUCCEEDED,
            )
            self._learn(over)

    def remember(self, ended: Iterable[tuple[float, bytes]]) -> None:
        """Tasks of the archive, in the order in which they ended. What does not say all that is needed is passed over."""
        for at, answer in ended:
            try:
                kept = _decode(answer)
            except msgspec.DecodeError:  # and what is no task at all, its subclass
                continue
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
                    well=kept.reason_code == Why.SUCCEEDED,
                )
                self._learn(over)

    def _learn(self, over: "EndedTask") -> None:
        """A task that was foretold says nothing of what users say, and only a whole run how right that was."""
        asked, seconds = over.asked, over.seconds
        self._history.ended(asked, seconds, over.at, None if over.forecasts else over.told)
        if not over.lease:
            self._outlooks.observe(asked, seconds)
        predicted = forecast_for(over.forecasts, over.ran_on or "")
        if over.well and predicted is not None:
            self._history.learn_correction(asked, predicted.by, predicted.seconds, seconds)
        self.scores.ended(
            seconds, over.told, over.forecasts, over.work, over.ran_on, over.actual, well=over.well
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class EndedTask:
    """A task that has ended by itself, or by its user."""

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
