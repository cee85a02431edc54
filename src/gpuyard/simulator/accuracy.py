"""Accuracy of run-time predictions: each is made when its job is submitted and scored when the job has ended."""

from array import array
from collections.abc import Collection, Iterable, Iterator, Sequence
from math import exp, fsum, log
from statistics import median
from typing import NamedTuple

import msgspec

from gpuyard.core.domain.task import Estimate

LEAST_SECONDS = 1.0
"""Run times below this count as this long: differences under a second do not matter."""
DAY = 86_400.0


class RuntimeForecast(NamedTuple):
    """A prediction and the run time that was observed later."""

    at: float
    """When the prediction was made."""
    told: float
    low: float
    high: float
    seconds: float
    """Observed run time."""

    @property
    def log_error(self) -> float:
        """Absolute logarithm of the factor between prediction and run time."""
        return abs(log(max(self.told, LEAST_SECONDS) / max(self.seconds, LEAST_SECONDS)))


class RuntimeForecasts:
    """All forecasts of one run in the order in which jobs ended, as columns of numbers: a million take 40 MB."""

    def __init__(self) -> None:
        self._columns = tuple(array("d") for _ in RuntimeForecast._fields)

    def __len__(self) -> int:
        return len(self._columns[0])

    def __iter__(self) -> Iterator[RuntimeForecast]:
        return map(RuntimeForecast._make, zip(*self._columns, strict=True))

    def __contains__(self, forecast: object) -> bool:
        return any(forecast == mine for mine in self)

    def add(self, at: float, told: Estimate, seconds: float) -> None:
        """Add one forecast."""
        row = (at, told.seconds, told.low_seconds, told.high_seconds, seconds)
        for column, value in zip(self._columns, row, strict=True):
            column.append(value)


class Accuracy(msgspec.Struct, frozen=True):
    """Accuracy of all predictions of one run."""

    predicted: int
    typical_factor: float
    """Geometric mean of the error factors, up or down; the logarithm keeps a single job from dominating."""
    median_error: float
    """Median of the error relative to the real run time."""
    rank_correlation: float
    """Spearman's rank correlation: 1 means that all jobs are in the right order, 0 that there is no correlation."""
    within_band: float
    """Share of run times inside the predicted band; the target is nine of ten."""
    below_high: float
    """Share of run times below the upper bound; the target is nineteen of twenty. Backfill relies on this bound."""


def accuracy(forecasts: Collection[RuntimeForecast]) -> Accuracy | None:
    """Return the accuracy of these forecasts, or None if there are none."""
    if not forecasts:
        return None
    count = len(forecasts)
    real = [max(it.seconds, LEAST_SECONDS) for it in forecasts]
    told = [max(it.told, LEAST_SECONDS) for it in forecasts]
    return Accuracy(
        predicted=count,
        typical_factor=typical_factor(forecasts),
        median_error=median(abs(mine - theirs) / theirs for mine, theirs in zip(told, real, strict=True)),
        rank_correlation=_correlation(_ranks(told), _ranks(real)),
        within_band=sum(it.low <= it.seconds <= it.high for it in forecasts) / count,
        below_high=sum(it.seconds <= it.high for it in forecasts) / count,
    )


def typical_factor(forecasts: Collection[RuntimeForecast]) -> float:
    """Return the geometric mean of the error factors."""
    return exp(fsum(it.log_error for it in forecasts) / len(forecasts))


def by_day(forecasts: Iterable[RuntimeForecast]) -> list[tuple[int, list[RuntimeForecast]]]:
    """Group forecasts by the day they were made on, counted from the first day; empty days are omitted."""
    days: dict[int, list[RuntimeForecast]] = {}
    ordered = sorted(forecasts, key=lambda it: it.at)
    for it in ordered:
        days.setdefault(int((it.at - ordered[0].at) // DAY), []).append(it)
    return list(days.items())


def _ranks(values: Sequence[float]) -> list[float]:
    """Return the rank of each value; equal values share the mean of their ranks."""
    order = sorted(range(len(values)), key=values.__getitem__)
    ranks = [0.0] * len(values)
    first = 0
    while first < len(order):
        last = first
        while last + 1 < len(order) and values[order[last + 1]] == values[order[first]]:
            last += 1
        for place in range(first, last + 1):
            ranks[order[place]] = (first + last) / 2
        first = last + 1
    return ranks


def _correlation(one: Sequence[float], other: Sequence[float]) -> float:
    mean_one, mean_other = fsum(one) / len(one), fsum(other) / len(other)
    both = fsum((x - mean_one) * (y - mean_other) for x, y in zip(one, other, strict=True))
    spread = fsum((x - mean_one) ** 2 for x in one) * fsum((y - mean_other) ** 2 for y in other)
    return float(both / spread**0.5) if spread else 0.0
