"""The fitted coefficients of all operations, in one small JSON file, and the errors that its ranges are made of."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
import numpy as np

from gpuyard.core.domain.errors import WrongInput
from gpuyard.input.files import LARGEST_TEXT_BYTES, read_file, shown_path
from gpuyard.learn.performance.arrays import FloatArray
from gpuyard.learn.performance.gpu_specs import GpuSpec, GpuSpecs
from gpuyard.learn.performance.serving.operations import KINDS, Shape, milliseconds
from gpuyard.learn.performance.serving.rows import OperationRows
from gpuyard.system.files import replace_file

SHIPPED = Path(__file__).parents[1] / "data" / "serving.json"
FORMAT, VERSION = "gpuyard serving model", 2
BAND = 0.83
"""The share of held-out sums that a band is fitted to contain; 80 % are promised."""
LEAST_ROWS = 50
"""Number of rows of a kind from which a GPU has coefficients of its own."""
MOST_ROWS = 6_000
"""Number of rows of a kind and GPU that are used for fitting."""
OUTLIER = 0.1
"""Error, as a logarithm, from which a row counts less and less."""
STEPS = 60
UNLIKE = 2.0
"""Factor on the band of a GPU of a maker whose GPUs were not measured."""

Band = tuple[float, float]
"""Logarithms of measured over predicted."""


class TimeRange(msgspec.Struct, frozen=True):
    """Milliseconds with a range."""

    middle: float
    low: float
    high: float

    def __add__(self, other: "TimeRange") -> "TimeRange":
        """Add as if errors went in the same direction: the range of a sum is the sum of the ranges."""
        return TimeRange(self.middle + other.middle, self.low + other.low, self.high + other.high)

    def times(self, factor: float) -> "TimeRange":
        """Multiply."""
        return TimeRange(self.middle * factor, self.low * factor, self.high * factor)


class ServingModel(msgspec.Struct, frozen=True):
    """Coefficients by kind of operation and GPU."""

    format: str
    version: int
    rows: dict[str, int]
    """Number of rows by kind."""
    coefficients: dict[str, dict[str, list[float]]]
    """By kind, then by GPU; the GPU "" is their median, for all others."""
    bands: dict[str, dict[str, Band]]
    """By kind: the band of sums on measured GPUs (`known`) and on held-out ones (`unseen`)."""

    def basis(self, kind: str, chip: GpuSpec, specs: GpuSpecs) -> tuple[str, str]:
        """Return which GPU's coefficients are used, and on what basis: gpu, same_chip or data_sheet."""
        known = self.coefficients[kind]
        if chip.gpu in known:
            return chip.gpu, "gpu"
        for name in known:
            if name and name in specs.gpus and chip.has_same_chip_as(specs.gpus[name]):
                return name, "same_chip"
        return "", "data_sheet"

    def estimate(self, kind: str, shape: Mapping[str, Sequence[float]], chip: GpuSpec, specs: GpuSpecs) -> TimeRange:
        """Return the time of all these operations together."""
        gpu, basis = self.basis(kind, chip, specs)
        columns = {name: np.asarray(values, dtype=np.float64) for name, values in shape.items()}
        total = float(milliseconds(kind, np.array(self.coefficients[kind][gpu]), columns, chip).sum())
        known, unseen = (np.array(self.bands[kind][name]) for name in ("known", "unseen"))
        makers = {specs.gpus[name].vendor for name in self.coefficients[kind] if name in specs.gpus}
        wide = UNLIKE * unseen if chip.vendor not in makers else unseen
        low, high = {"gpu": known, "same_chip": (known + unseen) / 2.0, "data_sheet": wide}[basis]
        return TimeRange(total, total * float(np.exp(low)), total * float(np.exp(high)))

    def save(self, path: Path) -> None:
        """Write the file atomically."""
        replace_file(path, msgspec.json.format(msgspec.json.encode(self), indent=1) + b"\n")


def load(path: Path = SHIPPED) -> ServingModel:
    """Read a file that `save` wrote."""
    try:
        found = msgspec.json.decode(read_file(path, largest=LARGEST_TEXT_BYTES), type=ServingModel)
    except OSError as error:
        raise WrongInput(f"{shown_path(path)}: {error.strerror}") from None
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        raise WrongInput(f"{shown_path(path)} is not a serving model of gpuyard") from None
    if found.format != FORMAT or found.version != VERSION or found.coefficients.keys() != KINDS.keys():
        raise WrongInput(
            f"{shown_path(path)} is not a serving model of this version; train it with 'gpuyard train serving'"
        )
    return found


def trained(parts: Sequence[OperationRows], specs: GpuSpecs, seed: int = 1) -> ServingModel:
    """Fit the coefficients of every kind and GPU."""
    coefficients: dict[str, dict[str, list[float]]] = {}
    bands: dict[str, dict[str, Band]] = {}
    rows = {}
    for kind in KINDS:
        mine = [one for one in parts if one.kind == kind and len(one)]
        if not mine:
            raise WrongInput(f"The files contain no rows of {kind.replace('_', ' ')}")
        every = joined(mine)
        rows[kind] = len(every)
        fitted = fit_gpus(every, specs, seed)
        coefficients[kind] = {name: one.tolist() for name, one in fitted.items()} | {"": _typical(fitted).tolist()}
        bands[kind] = _bands(every, fitted, specs, seed)
    return ServingModel(FORMAT, VERSION, rows, coefficients, bands)


def joined(parts: Sequence[OperationRows]) -> OperationRows:
    """Concatenate rows of one kind, with the columns that all parts have."""
    first = parts[0]
    names = [name for name in first.shape if all(name in one.shape for one in parts)]
    return OperationRows(
        first.kind,
        np.concatenate([one.gpu for one in parts]),
        np.concatenate([one.group for one in parts]),
        {name: np.concatenate([one.shape[name] for one in parts]) for name in names},
        np.concatenate([one.measured for one in parts]),
    )


def fit_gpus(rows: OperationRows, specs: GpuSpecs, seed: int) -> dict[str, FloatArray]:
    """Return the coefficients of each GPU with enough rows."""
    chance = np.random.default_rng(seed)
    found = {}
    for gpu in np.unique(rows.gpu).tolist():
        there = np.flatnonzero(rows.gpu == gpu)
        if len(there) >= LEAST_ROWS:
            some = rows.take(np.sort(chance.permutation(there)[:MOST_ROWS]))
            found[specs.find(gpu).gpu] = fit(some.kind, some.shape, some.measured, specs.find(gpu))
    if not found:
        raise WrongInput(f"No GPU has {LEAST_ROWS} rows of {rows.kind.replace('_', ' ')}")
    return found


def _typical(fitted: Mapping[str, FloatArray]) -> FloatArray:
    """Return the median of each coefficient: one GPU whose kernels are immature does not count for others."""
    return np.asarray(np.exp(np.median([np.log(one) for one in fitted.values()], axis=0)), dtype=np.float64)


def fit(kind: str, shape: Shape, measured: FloatArray, chip: GpuSpec) -> FloatArray:
    """Fit by damped Gauss-Newton steps in the logarithms of the coefficients; far outliers count less."""
    start = np.log(np.array(KINDS[kind].start))
    limit_low, limit_high = start - 4.0, start + 2.0

    def wrong(at: FloatArray) -> FloatArray:
        return np.asarray(np.log(milliseconds(kind, np.exp(at), shape, chip) / measured), dtype=np.float64)

    def loss(errors: FloatArray) -> float:
        return float(np.sum(np.sqrt(1.0 + (errors / OUTLIER) ** 2)))

    at, damping = start, 1e-2
    errors = wrong(at)
    for _ in range(STEPS):
        slopes = np.column_stack([(wrong(at + 1e-4 * unit) - errors) / 1e-4 for unit in np.eye(len(at))])
        weights = 1.0 / np.sqrt(1.0 + (errors / OUTLIER) ** 2)
        square, toward = slopes.T @ (slopes * weights[:, None]), slopes.T @ (weights * errors)
        step = np.linalg.solve(square + damping * (np.diag(np.diag(square)) + 1e-6 * np.eye(len(at))), toward)
        tried = np.clip(at - step, limit_low, limit_high)
        after = wrong(tried)
        if loss(after) < loss(errors):
            small = loss(errors) - loss(after) < 1e-7 * loss(errors)
            at, errors, damping = tried, after, max(damping / 3.0, 1e-6)
            if small:
                break
        else:
            damping *= 4.0
    return np.asarray(np.exp(at), dtype=np.float64)


def _bands(rows: OperationRows, fitted: Mapping[str, FloatArray], specs: GpuSpecs, seed: int) -> dict[str, Band]:
    """Return the bands from the errors of sums on measured GPUs, and on GPUs that are predicted from the others."""
    known, unseen = [], []
    for gpu in np.unique(rows.gpu).tolist():
        chip, there = specs.find(gpu), rows.take(rows.gpu == gpu)
        if chip.gpu not in fitted:
            continue
        known.append(sum_errors(there, fitted[chip.gpu], chip, seed))
        others = {name: one for name, one in fitted.items() if name != chip.gpu}
        if others:
            unseen.append(sum_errors(there, _typical(others), chip, seed))
    low, high = _quantiles(known)
    return {"known": (low, high), "unseen": _quantiles(unseen) if unseen else (2.0 * low, 2.0 * high)}


def sum_errors(rows: OperationRows, coefficients: FloatArray, chip: GpuSpec, seed: int) -> FloatArray:
    """Return the errors of sums of operations as a layer has them, as logarithms of measured over predicted.

    A sum has operations with the same number of tokens, as far as the kind has tokens.
    """
    said = milliseconds(rows.kind, coefficients, rows.shape, chip)
    size, chance = KINDS[rows.kind].chunk, np.random.default_rng(seed)
    order = chance.permutation(len(rows))
    order = order[np.argsort(rows.shape.get("m", rows.shape.get("bytes", np.zeros(len(rows))))[order], kind="stable")]
    order = order[: len(order) // size * size].reshape(-1, size)
    return np.asarray(np.log(rows.measured[order].sum(1) / said[order].sum(1)), dtype=np.float64)


def _quantiles(wrong: Sequence[FloatArray]) -> Band:
    """Return the band that contains the share `BAND` of the errors; each GPU has equal weight."""
    parts = ((1.0 - BAND) / 2.0, (1.0 + BAND) / 2.0)
    each = 4_000
    sampled = np.concatenate([np.quantile(one, (np.arange(each) + 0.5) / each) for one in wrong])
    low, high = (float(np.quantile(sampled, part)) for part in parts)
    return min(low, 0.0), max(high, 0.0)
