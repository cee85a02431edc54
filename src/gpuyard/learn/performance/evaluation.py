"""Accuracy of predictions on held-out rows, which were not used for training.

The choice of held-out rows determines what the figure means. Random rows: a measured GPU and family, in another size.
Whole families: a new model. Whole GPUs: a new GPU, with its data sheet alone, or with a few rows measured on it
(`samples`). Every split is drawn by a seed, and every row is predicted once.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuyard.core.domain.errors import WrongInput
from gpuyard.learn.performance import kind_model
from gpuyard.learn.performance.dataset import ProfileRows
from gpuyard.learn.performance.gpu_specs import GpuSpecs
from gpuyard.learn.performance.kind_model import KindPrediction
from gpuyard.learn.performance.model import PerformanceModel, accuracy

SPLITS = ("random", "family", "gpu")
FOLDS = 5


@dataclass(frozen=True, slots=True)
class EvaluatedRows:
    """Rows, and the predictions for them."""

    rows: ProfileRows
    said: KindPrediction


def across_files(
    train: Mapping[str, ProfileRows], test: Mapping[str, ProfileRows], specs: GpuSpecs, seed: int = 1
) -> list[EvaluatedRows]:
    """Train on some files, predict others."""
    missing = sorted(set(test) - set(train))
    if missing:
        raise WrongInput(f"No training data for {', '.join(missing)}: the training files contain no rows of that kind")
    model = PerformanceModel.trained({kind: train[kind] for kind in test}, specs, seed)
    return [EvaluatedRows(rows, model.predict(rows)) for rows in test.values()]


def cross_validated(
    kinds: Mapping[str, ProfileRows], specs: GpuSpecs, split: str, seed: int = 1, samples: int = 0
) -> list[EvaluatedRows]:
    """Cross-validate: hold out parts of the rows in turn, train on the rest, predict the held-out rows."""
    return [
        EvaluatedRows(
            rows.take(held), kind_model.fit(rows.take(~held | shown), specs, seed).predict(rows.take(held), specs)
        )
        for rows in kinds.values()
        for held, shown in parts(rows, split, seed, samples)
    ]


def parts(
    rows: ProfileRows, split: str, seed: int, samples: int
) -> Iterator[tuple[NDArray[np.bool_], NDArray[np.bool_]]]:
    """Yield masks: the rows to predict, and the rows of a held-out GPU that are used for training after all."""
    chance = np.random.default_rng(seed)
    if split == "gpu":
        names = np.unique(rows.gpu)
        if len(names) < 2:
            raise WrongInput(f"All rows of {rows.kind} are of {names[0]}: holding out a GPU needs at least two")
        for name in names.tolist():
            there = np.flatnonzero(rows.gpu == name)
            shown = np.zeros(len(rows), dtype=np.bool_)
            shown[chance.permutation(there)[: min(samples, len(there) // 2)]] = True
            yield (rows.gpu == name) & ~shown, shown
        return
    groups = np.arange(len(rows)).astype(np.str_) if split == "random" else rows.family
    names = np.unique(groups)
    if len(names) < 2:
        raise WrongInput(f"All rows of {rows.kind} are of one family: holding out a family needs at least two")
    lot = dict(zip(names.tolist(), (chance.permutation(len(names)) % min(FOLDS, len(names))).tolist(), strict=True))
    fold = np.array([lot[name] for name in groups.tolist()])
    nothing = np.zeros(len(rows), dtype=np.bool_)
    for number in range(fold.max() + 1):
        yield fold == number, nothing


def report(told: list[EvaluatedRows]) -> dict[str, Any]:
    """Return figures over all rows, by GPU and by kind."""

    def over(pick: Any) -> dict[str, dict[str, float]]:
        names = np.concatenate([pick(one) for one in told])
        return {
            name: accuracy(measured[names == name], _some(said, names == name)) for name in np.unique(names).tolist()
        }

    measured = np.concatenate([one.rows.measured for one in told])
    said = KindPrediction(
        *(np.concatenate([getattr(one.said, name) for one in told]) for name in ("middle", "low", "high", "head"))
    )
    return {
        **accuracy(measured, said),
        "by_gpu": over(lambda one: one.rows.gpu),
        "by_kind": over(lambda one: np.full(len(one.rows), one.rows.kind)),
        "by_head": over(lambda one: one.said.head),
    }


def _some(said: KindPrediction, which: NDArray[np.bool_]) -> KindPrediction:
    return KindPrediction(said.middle[which], said.low[which], said.high[which], said.head[which])
