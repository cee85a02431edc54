"""Calibration to one GPU from a short measurement.

Two kinds of measurement improve on a GPU's data sheet. Measured peaks (`gpuyard profile calibrate`) correct the sheet.
And a few measured rows show in which direction the predictions are wrong: near a row that was slower than predicted,
others will be slower, too. `Correction` models the error of the data sheet as a Gaussian process with three parts:

    OFFSET   what all rows of a GPU have in common
    LOCAL    what rows with similar features have in common; it fades with their distance
    NOISE    what a row shares with no other

OFFSET and LOCAL count half for every word in which two rows differ (mode, precision, compiled, source): rows of another
kind say little. The variance that remains determines the range: a row far from everything measured keeps nearly the
range of the data sheet, however many other rows there are.
"""

import csv
import json
from pathlib import Path

import msgspec
import numpy as np

from gpuyard.core.domain.errors import WrongInput
from gpuyard.input.error_location import shortened
from gpuyard.input.files import LARGEST_TEXT_BYTES, read_file, shown_path
from gpuyard.learn.performance.arrays import FloatArray

OFFSET, LOCAL, NOISE = 0.3, 0.5, 0.2
"""Shares of the variance of the data sheet's errors; together 1."""
OTHER_KIND = 0.5
"""Factor on what two rows have in common, for every word in which they differ."""
EXPECTED_ROWS = 5.0
"""Number of rows that the expected size of errors counts as much as, when rows show that errors are larger here."""
PROMISED, DEVIATIONS = 0.8, 1.28
"""A range contains 80 % of the errors; it extends so many standard deviations to each side if they are normal."""
PEAKS = ("fp32_tflops", "tf32_tflops", "bf16_tflops", "fp16_tflops", "fp8_tflops", "copy_gb_s", "launch_us")
"""Properties of a GPU that can be measured."""


class Correction(msgspec.Struct, frozen=True):
    """What the rows measured on one GPU imply for other rows there."""

    scale: list[float]
    """Scale of each feature over all measured GPUs, so that all have equal weight."""
    rows: list[list[float]]
    """Features of the measured rows, scaled."""
    words: list[list[float]]
    """Categorical features of the measured rows, as numbers; -1 if unknown."""
    wrong: list[float]
    """Logarithm of measured over predicted."""
    widen: float
    """Factor on ranges, at least 1: errors of these rows over the expected size, each row predicted from the others."""

    @staticmethod
    def of(
        features: FloatArray, words: FloatArray, wrong: FloatArray, expected: FloatArray, scale: FloatArray
    ) -> "Correction":
        """Fit to measured rows; `expected`: the standard deviation of the data sheet's error at each row."""
        rows, named = np.nan_to_num(features / scale), np.nan_to_num(words, nan=-1.0)
        inverse = np.linalg.inv(_alike(rows, named, rows, named) + NOISE * np.eye(len(rows)))
        left_out = (inverse @ wrong) / np.diag(inverse)
        shown = np.abs(left_out) * np.sqrt(np.diag(inverse)) / np.maximum(expected, 1e-9)
        typical = float(np.quantile(shown, PROMISED)) / DEVIATIONS
        widen = float(np.sqrt((EXPECTED_ROWS + len(rows) * typical**2) / (EXPECTED_ROWS + len(rows))))
        return Correction(scale.tolist(), rows.tolist(), named.tolist(), wrong.tolist(), max(widen, 1.0))

    def at(self, features: FloatArray, words: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return what to add to the logarithm of predictions, and the factor on the data sheet's range."""
        rows, named = np.nan_to_num(features / np.array(self.scale)), np.nan_to_num(words, nan=-1.0)
        known, known_words = np.array(self.rows), np.array(self.words).reshape(len(self.rows), -1)
        inverse = np.linalg.inv(_alike(known, known_words, known, known_words) + NOISE * np.eye(len(known)))
        alike = _alike(rows, named, known, known_words)
        remaining = OFFSET + LOCAL + NOISE - np.einsum("ij,jk,ik->i", alike, inverse, alike)
        return alike @ (inverse @ np.array(self.wrong)), self.widen * np.sqrt(np.maximum(remaining, 0.0))


def _alike(one: FloatArray, words: FloatArray, other: FloatArray, other_words: FloatArray) -> FloatArray:
    """Return the kernel: the share of the variance that two rows have in common."""
    apart = (one**2).sum(1)[:, None] + (other**2).sum(1)[None, :] - 2.0 * one @ other.T
    near = np.exp(-np.sqrt(np.maximum(apart, 0.0) / max(one.shape[1], 1) / 2.0))
    different = (words[:, None, :] != other_words[None, :, :]).sum(2)
    return np.asarray((OFFSET + LOCAL * near) * OTHER_KIND**different, dtype=np.float64)


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
