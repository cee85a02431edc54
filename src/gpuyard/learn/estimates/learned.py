"""What simple statistics miss, learnt by trees: the hour, the weekday, bursts, and who differs from whom in what way.

It does not begin anew. It takes what `HistoryPredictor` says and learns by which factor that is wrong, from what was known when each
task came: the last run times of its kinds, the size, hour and weekday, how many tasks of its kind are open and how long ago
the last one came. LightGBM is fitted to the logarithm of that factor after every `EVERY` ends, on the last `WINDOW` of them;
before the first fit `HistoryPredictor` speaks alone, and its band is kept.

Needs LightGBM, which is loaded only here (`pip install 'gpuyard[learn]'`). docs/manual/prediction.md says what it brings and
what it costs: for a scheduler that is asked thousands of times a second it is too slow.
Reference: Ke et al., "LightGBM: A Highly Efficient Gradient Boosting Decision Tree", 2017.
"""

from collections import deque
from math import exp, log, nan

import lightgbm
import numpy as np
from msgspec.structs import replace

from gpuyard.core.domain.task import Estimate
from gpuyard.learn.estimates.history import LEAST_SECONDS, LEVELS, HistoryPredictor, TaskFeatures

EVERY = 1_000
WINDOW = 8_000
TREES = 60
SHAPE = {
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
"""Small trees and few of them: what users did last week is only a hint of what they do next."""
HOUR, DAY = 3_600.0, 86_400.0
LONG_AGO = 30 * DAY


class LearnedPredictor:
    """See RuntimePredictor."""

    def __init__(self) -> None:
        self._history = HistoryPredictor()
        self._model: lightgbm.Booster | None = None
        self._open: dict[Estimate, list[tuple[list[float], float]]] = {}
        """What was known of tasks that have not ended, and what `HistoryPredictor` said, by what they were told."""
        self._rows: deque[tuple[list[float], float]] = deque(maxlen=WINDOW)
        """What was known of tasks that have, and by how much `HistoryPredictor` was wrong."""
        self._ends = 0
        self._count: dict[tuple[object, ...], int] = {}
        self._came: dict[tuple[object, ...], float] = {}
        """Of each kind: how many are open, and when the last one came."""

    def estimate(self, asked: TaskFeatures, now: float) -> Estimate | None:
        """What `HistoryPredictor` says, put right."""
        said = self._history.estimate(asked, now)
        told = None
        if said is not None:
            known = self._known(asked, now, said)
            told = said if self._model is None else self._put_right(self._model, said, known)
            self._open.setdefault(told, []).append((known, log(said.seconds)))
        for kind in _own(asked):
            self._count[kind] = self._count.get(kind, 0) + 1
            self._came[kind] = now
        return told

    def ended(self, asked: TaskFeatures, seconds: float, now: float, told: Estimate | None = None) -> None:
        """Remember it, and learn anew when there is enough that is new."""
        self._history.ended(asked, seconds, now, told)
        for kind in _own(asked):
            self._count[kind] = self._count.get(kind, 0) - 1
        if told is None or told not in self._open:
            return
        known, said = self._open[told].pop()
        if not self._open[told]:
            del self._open[told]
        self._rows.append((known, log(max(seconds, LEAST_SECONDS)) - said))
        self._ends += 1
        if self._ends % EVERY == 0:
            table = lightgbm.Dataset(
                np.array([row for row, _ in self._rows]), np.array([wrong for _, wrong in self._rows])
            )
            self._model = lightgbm.train(SHAPE, table, TREES)

    def _put_right(self, model: lightgbm.Booster, said: Estimate, known: list[float]) -> Estimate:
        seconds = said.seconds * exp(float(model.predict(np.array([known]), num_threads=1)[0]))
        low, high = min(said.low_seconds, seconds), max(said.high_seconds, seconds)
        return replace(said, seconds=seconds, low_seconds=low, high_seconds=high)

    def _known(self, asked: TaskFeatures, now: float, said: Estimate) -> list[float]:
        """All that is known of a task that comes now, as numbers."""
        known = [asked.gpus, now / HOUR % 24, now // DAY % 7, log(said.seconds), float(said.runs)]
        similarity_keys = asked.similarity_keys()
        for place in range(len(LEVELS)):
            kind = self._history.kind(similarity_keys[place]) if place < len(similarity_keys) else None
            if kind is None:
                known += [nan] * 6
            else:
                ordered, tenth = kind.ordered, len(kind.ordered) // 10
                middle = ordered[len(ordered) // 2]
                known += [kind.mean, kind.variance, middle, ordered[tenth], ordered[-1 - tenth], kind.last[-1]]
        for likeness in _own(asked):
            since = min(now - self._came.get(likeness, -LONG_AGO), LONG_AGO)
            known += [float(self._count.get(likeness, 0)), log(1.0 + since)]
        return known


def _own(asked: TaskFeatures) -> tuple[tuple[object, ...], ...]:
    """The kinds whose tasks come in bursts: the user's, and the user's of this size."""
    return asked.similarity_keys()[3:5]
