"""Corrects estimates of simple statistics with gradient-boosted trees: hour, weekday, bursts, user differences.

It starts from the estimate of `HistoryPredictor` and learns the factor by which that is wrong, from what was known when
each task was submitted: the last run times of its kinds, the size, hour and weekday, the number of open tasks of its
kind and the time since the last one. LightGBM is fitted to the logarithm of that factor after every `REFIT_EVERY` ends, on
the last `WINDOW` of them. Before the first fit the estimate of `HistoryPredictor` is used as it is. Its band is kept,
widened if the estimate lies outside.

Needs LightGBM, which is imported only here (`pip install 'gpuyard[learn]'`). docs/manual/prediction.md describes
benefit and cost: it is too slow for a scheduler that needs thousands of estimates per second.
Reference: Ke et al., "LightGBM: A Highly Efficient Gradient Boosting Decision Tree", 2017.
"""

from collections import deque
from math import exp, log, nan

import lightgbm
import numpy as np
from msgspec.structs import replace

from gpuyard.core.domain.task import Estimate
from gpuyard.learn.estimates.history import LEAST_SECONDS, LEVELS, HistoryPredictor, TaskFeatures

REFIT_EVERY = 1_000
WINDOW = 8_000
TREES = 60
TREE_PARAMETERS = {
    "objective": "regression_l1",
    "num_leaves": 8,
    "learning_rate": 0.05,
    "min_data_in_leaf": 50,
    "feature_fraction": 0.8,
    "bagging_fraction": 0.8,
    "bagging_freq": 1,
    "seed": 1,
    "deterministic": True,
    "num_threads": 1,
    "verbosity": -1,
}
"""Small trees and few of them, against overfitting: last week's work says little about the next."""
HOUR, DAY = 3_600.0, 86_400.0
LONG_AGO = 30 * DAY
LEVELS_WITHOUT_KIND_NAME = len(LEVELS) - 1


class LearnedPredictor:
    """A `RuntimePredictor` that corrects `HistoryPredictor`."""

    def __init__(self) -> None:
        self._history = HistoryPredictor()
        self._model: lightgbm.Booster | None = None
        self._open: dict[Estimate, list[tuple[list[float], float]]] = {}
        """Features of open tasks and the estimate of `HistoryPredictor`, by the estimate they were given."""
        self._rows: deque[tuple[list[float], float]] = deque(maxlen=WINDOW)
        """Features of ended tasks and the error of `HistoryPredictor`."""
        self._ends = 0
        self._count: dict[tuple[object, ...], int] = {}
        self._came: dict[tuple[object, ...], float] = {}
        """For each kind, the number of open tasks and the time of the last submission."""

    def estimate(self, features: TaskFeatures, now: float) -> Estimate | None:
        """Return the estimate of `HistoryPredictor`, corrected."""
        said = self._history.estimate(features, now)
        estimate = None
        if said is not None:
            known = self._known(features, now, said)
            estimate = said if self._model is None else self._corrected(self._model, said, known)
            self._open.setdefault(estimate, []).append((known, log(said.seconds)))
        for kind in _own(features):
            self._count[kind] = self._count.get(kind, 0) + 1
            self._came[kind] = now
        return estimate

    def ended(self, features: TaskFeatures, seconds: float, now: float, estimate: Estimate | None = None) -> None:
        """Record an ended task, and fit again after every `REFIT_EVERY` ends."""
        self._history.ended(features, seconds, now, estimate)
        if estimate is None or estimate.runs:  # a task with an estimate of its own was never counted
            for kind in _own(features):
                self._count[kind] = max(0, self._count.get(kind, 0) - 1)
        if estimate is None or estimate not in self._open:
            return
        # Open tasks with equal estimates are not distinguished: any of their rows will do.
        known, said = self._open[estimate].pop()
        if not self._open[estimate]:
            del self._open[estimate]
        self._rows.append((known, log(max(seconds, LEAST_SECONDS)) - said))
        self._ends += 1
        if self._ends % REFIT_EVERY == 0:
            table = lightgbm.Dataset(
                np.array([row for row, _ in self._rows]), np.array([wrong for _, wrong in self._rows])
            )
            self._model = lightgbm.train(TREE_PARAMETERS, table, TREES)

    def open_tasks(self, features: TaskFeatures) -> list[int]:
        """Return the number of open tasks of this user, and of this user with this size."""
        return [self._count.get(kind, 0) for kind in _own(features)]

    def _corrected(self, model: lightgbm.Booster, said: Estimate, known: list[float]) -> Estimate:
        seconds = said.seconds * exp(float(model.predict(np.array([known]), num_threads=1)[0]))
        low, high = min(said.low_seconds, seconds), max(said.high_seconds, seconds)
        return replace(said, seconds=seconds, low_seconds=low, high_seconds=high)

    def _known(self, features: TaskFeatures, now: float, said: Estimate) -> list[float]:
        """Return the features of a task that is submitted now."""
        known = [features.gpus, now / HOUR % 24, now // DAY % 7, log(said.seconds), float(said.runs)]
        similarity_keys = features.similarity_keys()
        if len(similarity_keys) == len(LEVELS):  # the trees have features of a name, and none of a kind name
            similarity_keys = (*similarity_keys[:-2], similarity_keys[-1])
        for place in range(LEVELS_WITHOUT_KIND_NAME):
            kind = self._history.kind(similarity_keys[place]) if place < len(similarity_keys) else None
            if kind is None:
                known += [nan] * 6
            else:
                ordered, tenth = kind.ordered, len(kind.ordered) // 10
                middle = ordered[len(ordered) // 2]
                known += [kind.mean, kind.variance, middle, ordered[tenth], ordered[-1 - tenth], kind.last[-1]]
        for key, count in zip(_own(features), self.open_tasks(features), strict=True):
            since = min(now - self._came.get(key, -LONG_AGO), LONG_AGO)
            known += [float(count), log(1.0 + since)]
        return known


def _own(features: TaskFeatures) -> tuple[tuple[object, ...], ...]:
    """Return the kinds whose tasks come in bursts: the user's, and the user's of this size."""
    return features.similarity_keys()[3:5]
