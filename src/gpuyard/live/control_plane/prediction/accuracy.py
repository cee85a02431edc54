"""Accuracy of predictions over the tasks that ended last, as the scheduler reports it.

Four figures are kept: run times estimated from history; run times predicted from the declared workload, on the GPU that
the task ran on; the same after correction by history, if the task ran on the fastest GPU, to which its estimate refers;
and predicted memory. Estimates of users are not judged.
"""

from collections import deque
from collections.abc import Iterable
from statistics import fmean, median

from gpuyard.core.domain.actual import Actual
from gpuyard.core.domain.task import Estimate
from gpuyard.core.domain.values import Value
from gpuyard.core.domain.workload import Forecast, WorkloadSpec, forecast_for

LAST = 1000
"""Maximum number of tasks per figure."""
LEAST_TASKS = 10
"""Number of tasks from which on errors are reported: a median of two tasks says nothing."""
LEAST_ACTUAL = 1.0
"""Errors are relative to the actual value, but at least to this one (seconds or MiB): a task that ends at once after a
prediction of minutes would outweigh all others."""


class JudgedPrediction(Value, frozen=True):
    """One prediction and the actual value."""

    likely: float
    low: float
    high: float
    came: float


class AccuracyScore(Value, frozen=True):
    """Accuracy of predictions: errors relative to the actual value. None: fewer than `LEAST_TASKS` were predicted."""

    tasks: int
    median_ape: float | None = None
    mape: float | None = None
    band_coverage: float | None = None


class AccuracyTracker:
    """Keeps the last predictions of each kind with the actual values."""

    def __init__(self) -> None:
        self._judged: dict[str, deque[JudgedPrediction]] = {name: deque(maxlen=LAST) for name in NAMES}

    def ended(
        self,
        seconds: float,
        estimate: Estimate | None,
        forecasts: Iterable[Forecast],
        work: WorkloadSpec | None,
        ran_on: str | None,
        actual: Actual | None,
        *,
        well: bool,
    ) -> None:
        """Record an ended task. Only a successful run (`well`) tests predictions from a workload."""
        known = tuple(forecasts)
        predicted = forecast_for(known, ran_on or "")
        if estimate is not None and estimate.runs and work is None:
            self._add("history", estimate.seconds, estimate.low_seconds, estimate.high_seconds, seconds)
        if not well or predicted is None or work is None:
            return
        if work.steps > 1:
            self._add("performance", predicted.seconds, predicted.low_seconds, predicted.high_seconds, seconds)
            fastest = predicted.seconds == min(one.seconds for one in known)
            if fastest and estimate is not None and estimate.runs:
                self._add("corrected", estimate.seconds, estimate.low_seconds, estimate.high_seconds, seconds)
        peak = actual.gpu_memory_peak_mib if actual else None
        low, likely, high = predicted.memory_low_mib, predicted.memory_mib, predicted.memory_high_mib
        if peak is not None and low is not None and likely is not None and high is not None:
            self._add("memory", likely, low, high, peak)

    def _add(self, name: str, likely: float, low: float, high: float, came: float) -> None:
        self._judged[name].append(JudgedPrediction(likely, low, high, came))

    def of(self, name: str) -> AccuracyScore:
        """Return the score of one of `NAMES`."""
        judged = self._judged[name]
        if len(judged) < LEAST_TASKS:
            return AccuracyScore(len(judged))
        wrong = [abs(one.likely - one.came) / max(one.came, LEAST_ACTUAL) for one in judged]
        inside = sum(one.low <= one.came <= one.high for one in judged)
        return AccuracyScore(len(judged), median(wrong), fmean(wrong), inside / len(judged))


NAMES = {
    "history": "run time, from similar tasks",
    "performance": "run time, from the declared workload",
    "corrected": "the same, corrected by measured runs",
    "memory": "GPU memory, from the declared workload",
}
"""The figures and their names."""
