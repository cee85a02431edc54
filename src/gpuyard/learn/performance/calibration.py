"""Calibration to one GPU from a short measurement.

Two kinds of measurement improve on a GPU's data sheet. Measured peaks (`gpuyard profile calibrate`) correct the sheet.
And a few measured rows show in which direction the predictions are wrong: near a row that was slower than predicted,
others will be slower, too. `Correction` models the error of the data sheet, in units of its expected size, as a Gaussian
process with four parts (`ErrorShares`):

    offset   what all rows of a GPU have in common
    family   what rows of one family of models have in common
    local    what rows with similar features have in common; it fades with their distance
    noise    what a row shares with no other

How large each part is follows from the errors on known GPUs that are predicted from the others. The first three count half for
every word in which two rows differ (mode, precision, compiled, source): rows of another kind say little.

The variance that remains determines the range. Rows widen the range of everything on their GPU if they are further off
than expected, each family being predicted from the other families. They narrow it only for work like theirs: with the same words,
and of a measured family or where `LEAST_FAMILIES` families were measured.
"""

import csv
import json
from collections.abc import Sequence
from itertools import combinations
from pathlib import Path

import msgspec
import numpy as np

from gpuyard.core.domain.errors import WrongInput
from gpuyard.input.error_location import shortened
from gpuyard.input.files import LARGEST_TEXT_BYTES, read_file, shown_path
from gpuyard.learn.performance.arrays import FloatArray, TextArray

OTHER_KIND = 0.5
"""Factor on what two rows have in common, for every word in which they differ."""
EXPECTED_FAMILIES = 5.0
"""Number of measured families that the expected size of errors counts as much as."""
LEAST_FAMILIES = 5
"""Number of measured families from which rows narrow the range of other families."""
DEVIATIONS, PROMISED = 1.28, 0.8
"""A range contains 80 % of the errors; it extends so many standard deviations to each side if they are normal."""
PRIOR_GPUS = 2.0
"""Number of GPUs that the prior shares count as much as."""
PAIRS = 20_000
"""Pairs of rows of a GPU from which the shares are estimated."""
FAR_OFF = 3.0
"""Errors count as at most so many standard deviations."""
PEAKS = ("fp32_tflops", "tf32_tflops", "bf16_tflops", "fp16_tflops", "fp8_tflops", "copy_gb_s", "launch_us")
"""Properties of a GPU that can be measured."""


class ErrorShares(msgspec.Struct, frozen=True):
    """Shares of the variance of a data sheet's errors; together 1."""

    offset: float = 0.25
    family: float = 0.15
    local: float = 0.35
    noise: float = 0.25

    def alike(self, one: "MeasuredWork", other: "MeasuredWork") -> FloatArray:
        """Return the kernel: the share of the variance that two rows have in common."""
        same = one.family[:, None] == other.family[None, :]
        common = self.offset + self.family * same + self.local * _near(one.features, other.features)
        different = (one.words[:, None, :] != other.words[None, :, :]).sum(2)
        return np.asarray(common * OTHER_KIND**different, dtype=np.float64)


class MeasuredWork(msgspec.Struct, frozen=True):
    """Rows as far as they determine how alike their errors are."""

    features: FloatArray
    """Scaled, so that all have equal weight."""
    words: FloatArray
    """Categorical features as numbers; -1 if unknown."""
    family: TextArray

    @staticmethod
    def of(features: FloatArray, words: FloatArray, family: TextArray, scale: FloatArray) -> "MeasuredWork":
        """Scale the features and replace missing values."""
        return MeasuredWork(np.nan_to_num(features / scale), np.nan_to_num(words, nan=-1.0), family)

    def take(self, which: "np.ndarray[tuple[int], np.dtype[np.bool_ | np.intp]]") -> "MeasuredWork":
        """Return some of the rows."""
        return MeasuredWork(self.features[which], self.words[which], self.family[which])


def error_shares(works: Sequence[MeasuredWork], wrong: Sequence[FloatArray], seed: int) -> ErrorShares:
    """Estimate the shares from the errors on several GPUs, each predicted from the others, over their expected size.

    The products of the errors of two rows are regressed on what the rows have in common. With few GPUs the estimate is
    uncertain, the more so the part that is common to a GPU, so it is averaged with the prior.
    """
    prior = ErrorShares()
    chance, total, sums = np.random.default_rng(seed), 0.0, []
    for work, errors in zip(works, wrong, strict=True):
        unit = float(np.sqrt(np.mean(np.clip(errors, -FAR_OFF, FAR_OFF) ** 2)))
        if len(errors) < LEAST_FAMILIES or not unit > 0:
            continue
        first, second = _pairs(work.family, chance)
        keep = (first != second) & (work.words[first] == work.words[second]).all(1)
        first, second = first[keep], second[keep]
        if len(first) < LEAST_FAMILIES:
            continue
        one, other = work.take(first), work.take(second)
        apart = ((one.features - other.features) ** 2).sum(1)
        near = np.exp(-np.sqrt(apart / max(one.features.shape[1], 1) / 2.0))
        common = np.column_stack([np.ones(len(first)), one.family == other.family, near])
        bounded = np.clip(errors, -FAR_OFF, FAR_OFF)
        sums.append((common.T @ common / len(first), common.T @ (bounded[first] * bounded[second]) / len(first)))
        total += unit**2
    if not sums:
        return prior
    found = _positive_solution(np.sum([one for one, _ in sums], axis=0), np.sum([one for _, one in sums], axis=0))
    found = found * len(sums) / total
    found = found * min(1.0, 0.9 / max(float(found.sum()), 1e-9))
    weight = len(sums) / (len(sums) + PRIOR_GPUS)
    offset, family, local = weight * found + (1.0 - weight) * np.array([prior.offset, prior.family, prior.local])
    return ErrorShares(float(offset), float(family), float(local), float(1.0 - offset - family - local))


def _pairs(
    family: TextArray, chance: np.random.Generator
) -> "tuple[np.ndarray[tuple[int], np.dtype[np.intp]], np.ndarray[tuple[int], np.dtype[np.intp]]]":
    """Draw pairs of rows, half of them within a family."""
    first = chance.integers(0, len(family), 2 * PAIRS)
    order = np.argsort(family, kind="stable")
    _, start, number, count = np.unique(family[order], return_index=True, return_inverse=True, return_counts=True)
    place = np.empty(len(family), dtype=np.intp)
    place[order] = number
    mine = place[first[:PAIRS]]
    within = order[start[mine] + np.floor(chance.random(PAIRS) * count[mine]).astype(np.intp)]
    return first, np.concatenate([within, chance.integers(0, len(family), PAIRS)])


def _positive_solution(square: FloatArray, toward: FloatArray) -> FloatArray:
    """Return the least-squares solution without negative parts; there are few enough columns to try all subsets."""
    best, least = np.zeros(len(toward)), 0.0
    for size in range(1, len(toward) + 1):
        for some in combinations(range(len(toward)), size):
            at = list(some)
            part = np.linalg.lstsq(square[np.ix_(at, at)], toward[at], rcond=None)[0]
            loss = float(part @ square[np.ix_(at, at)] @ part - 2.0 * part @ toward[at])
            if (part >= 0.0).all() and loss < least:
                best, least = np.zeros(len(toward)), loss
                best[at] = part
    return best


class Correction(msgspec.Struct, frozen=True):
    """What the rows measured on one GPU imply for other rows there."""

    shares: ErrorShares
    scale: list[float]
    """Scale of each feature over all measured GPUs."""
    rows: list[list[float]]
    """Features of the measured rows, scaled."""
    words: list[list[float]]
    """Categorical features of the measured rows, as numbers; -1 if unknown."""
    families: list[str]
    wrong: list[float]
    """Logarithm of measured over predicted, over the expected size of that error."""
    size: float
    """Errors of the families, each predicted from the others, over the expected size: a factor on ranges."""
    near_size: float
    """The same for rows that are predicted from all others, at least 1: a factor on ranges of measured families."""

    @staticmethod
    def of(
        features: FloatArray,
        words: FloatArray,
        family: TextArray,
        wrong: FloatArray,
        scale: FloatArray,
        shares: ErrorShares,
    ) -> "Correction":
        """Fit to measured rows; `wrong`: their errors over the standard deviation that the data sheet's errors have."""
        work = MeasuredWork.of(features, words, family, scale)
        covariance = shares.alike(work, work) + shares.noise * np.eye(len(wrong))
        left, weights = np.zeros(len(wrong)), np.zeros(len(wrong))
        names = np.unique(family)
        for name in names.tolist():
            out = family == name
            gain = covariance[np.ix_(out, ~out)] @ np.linalg.inv(covariance[np.ix_(~out, ~out)])
            remaining = 1.0 - np.einsum("ij,ij->i", gain, covariance[np.ix_(out, ~out)])
            left[out] = np.abs(wrong[out] - gain @ wrong[~out]) / np.sqrt(np.maximum(remaining, shares.noise))
            weights[out] = 1.0 / out.sum()
        order = np.argsort(left)
        below = np.cumsum(weights[order]) / weights.sum()
        typical = float(left[order][np.searchsorted(below, PROMISED).clip(0, len(left) - 1)]) / DEVIATIONS
        size = np.sqrt((EXPECTED_FAMILIES + len(names) * typical**2) / (EXPECTED_FAMILIES + len(names)))
        inverse = np.linalg.inv(covariance)
        shown = np.abs(inverse @ wrong) / np.sqrt(np.diag(inverse))
        near = float(np.quantile(shown, PROMISED)) / DEVIATIONS
        near_size = np.sqrt((EXPECTED_FAMILIES + len(wrong) * near**2) / (EXPECTED_FAMILIES + len(wrong)))
        return Correction(
            shares, scale.tolist(), work.features.tolist(), work.words.tolist(), family.tolist(), wrong.tolist(), float(size),
            max(float(near_size), 1.0),
        )  # fmt: skip

    def at(
        self, features: FloatArray, words: FloatArray, family: TextArray
    ) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Return the expected error over its size, the factor on the data sheet's range, and whether the family was
        measured in the same kind of work.
        """
        asked = MeasuredWork.of(features, words, family, np.array(self.scale))
        known = MeasuredWork(
            np.array(self.rows), np.array(self.words).reshape(len(self.rows), -1), np.array(self.families)
        )
        inverse = np.linalg.inv(self.shares.alike(known, known) + self.shares.noise * np.eye(len(self.rows)))
        alike = self.shares.alike(asked, known)
        remaining = np.maximum(1.0 - np.einsum("ij,jk,ik->i", alike, inverse, alike), 0.0)
        same = (asked.words[:, None, :] == known.words[None, :, :]).all(2)
        measured = (same & (asked.family[:, None] == known.family[None, :])).any(1)
        names = np.unique(known.family)
        families = np.column_stack([same[:, known.family == name].any(1) for name in names.tolist()]).sum(1)
        left = np.sqrt(remaining)
        other_family = np.where(families >= LEAST_FAMILIES, self.size * left, np.maximum(self.size * left, 1.0))
        factor = np.where(measured, max(self.size, self.near_size) * left, other_family)
        return alike @ (inverse @ np.array(self.wrong)), factor, measured


def _near(one: FloatArray, other: FloatArray) -> FloatArray:
    apart = (one**2).sum(1)[:, None] + (other**2).sum(1)[None, :] - 2.0 * one @ other.T
    return np.asarray(np.exp(-np.sqrt(np.maximum(apart, 0.0) / max(one.shape[1], 1) / 2.0)), dtype=np.float64)


def read_peaks(path: Path) -> dict[str, dict[str, float]]:
    """Read the output of `gpuyard profile calibrate`: an object, a list, or a table with a line for each GPU."""
    try:
        text = read_file(path, largest=LARGEST_TEXT_BYTES).decode("utf-8-sig")
        said = json.loads(text) if text.lstrip()[:1] in {"{", "["} else list(csv.DictReader(text.splitlines()))
    except OSError as error:
        raise WrongInput(f"{shown_path(path)}: {error.strerror}") from None
    except RecursionError:
        raise WrongInput(f"{shown_path(path)}: it is nested too deeply") from None
    except (ValueError, csv.Error) as error:
        raise WrongInput(f"{shown_path(path)} is neither JSON nor a table: {error}") from None
    found = {}
    for number, one in enumerate([said] if isinstance(said, dict) else said, start=1):
        if not isinstance(one, dict) or not one.get("gpu"):
            raise WrongInput(f"{shown_path(path)}, entry {number}: gpu is missing")
        found[str(one["gpu"])] = {
            name: _positive(path, number, name, one[name]) for name in PEAKS if one.get(name) not in (None, "")
        }
    if not found:
        raise WrongInput(f"{shown_path(path)} contains no GPU")
    return found


def _positive(path: Path, number: int, name: str, value: object) -> float:
    try:
        amount = float(str(value))
    except ValueError:
        amount = float("nan")
    if not 0 < amount < float("inf"):
        raise WrongInput(
            f"{shown_path(path)}, entry {number}: {name} must be a number above 0, not {shortened(str(value))!r}"
        )
    return amount
