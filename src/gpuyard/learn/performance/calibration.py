"""Calibration to one GPU from a short measurement.

Two kinds of measurement improve on a GPU's data sheet. Measured peaks (`gpuyard profile calibrate`) correct the sheet.
And a few measured rows show in which direction the predictions are wrong: near a row that was slower than predicted,
others will be slower, too. `Correction` models this as a Gaussian process: the distance between two rows uses all
features, and far from every measured row the correction falls back mostly to the mean. A constant offset is hardly
better than no correction, because a GPU is good at some kinds of work and bad at others.
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

NOISE = 0.1
"""Share of a row's error that is noise, independent of its neighbors."""
PEAKS = ("fp32_tflops", "tf32_tflops", "bf16_tflops", "fp16_tflops", "fp8_tflops", "copy_gb_s", "launch_us")
"""Properties of a GPU that can be measured."""


class Correction(msgspec.Struct, frozen=True):
    """What the rows measured on one GPU imply for other rows there."""

    middle: list[float]
    spread: list[float]
    """Scale of each feature, so that all have equal weight."""
    rows: list[list[float]]
    weights: list[float]
    low: float
    high: float
    """Band of the error for a row that was left out, as logarithms: eight of ten errors lie in it."""

    @staticmethod
    def of(features: FloatArray, wrong: FloatArray, part: float) -> "Correction":
        """Fit to the features of the measured rows and the logarithm of measured over predicted."""
        middle, spread = np.nanmean(features, axis=0), np.nanstd(features, axis=0)
        spread = np.where(spread > 1e-9, spread, 1.0)
        rows = np.nan_to_num((features - middle) / spread)
        inverse = np.linalg.inv(_alike(rows, rows) + NOISE * np.eye(len(rows)))
        weights = inverse @ wrong
        left_out = weights / np.diag(inverse)
        low, high = (float(np.quantile(left_out, q)) for q in ((1 - part) / 2, (1 + part) / 2))
        return Correction(middle.tolist(), spread.tolist(), rows.tolist(), weights.tolist(), low, high)

    def at(self, features: FloatArray) -> FloatArray:
        """Return the value to add to the logarithm of a prediction."""
        rows = np.nan_to_num((features - np.array(self.middle)) / np.array(self.spread))
        return np.asarray(_alike(rows, np.array(self.rows)) @ np.array(self.weights), dtype=np.float64)


def _alike(one: FloatArray, other: FloatArray) -> FloatArray:
    """Return the kernel: two for identical rows, one for rows with nothing in common."""
    apart = (one**2).sum(1)[:, None] + (other**2).sum(1)[None, :] - 2.0 * one @ other.T
    return np.asarray(np.exp(-np.sqrt(np.maximum(apart, 0.0) / one.shape[1] / 2.0)) + 1.0, dtype=np.float64)


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
