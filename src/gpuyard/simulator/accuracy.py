"""How right predictions of run times were: each was made when its job came, and is judged when the job has ended."""

from array import array
from collections.abc import Collection, Iterable, Iterator, Sequence
from math import exp, fsum, log
from statistics import median
from typing import NamedTuple

import msgspec

from gpuyard.core.domain.task import Estimate

LEAST_SECONDS = 1.0
"""Nobody minds whether it was half a second or one."""
DAY = 86_400.0


class RuntimeForecast(NamedTuple):
    """What was predicted, and what came of it."""

    at: float
    """When."""
    told: float
    low: float
    high: float
    seconds: float
    """How long it really ran."""

    @property
    def log_error(self) -> float:
        """By how much it was wrong, as the logarithm of the factor."""
        return abs(log(max(self.told, LEAST_SECONDS) / max(self.seconds, LEAST_SECONDS)))


class RuntimeForecasts:
    """All of one run, in the order in which they turned out, as columns of numbers: a million take 40 MB."""

    def __init__(self) -> None:
        self._columns = tuple(array("d") for _ in RuntimeForecast._fields)

    def __len__(self) -> int:
        return len(self._columns[0])

    def __iter__(self) -> Iterator[RuntimeForecast]:
        return map(RuntimeForecast._make, zip(*self._columns, strict=True))

    def __contains__(self, forecast: object) -> bool:
        return any(forecast == mine for mine in self)

    def add(self, at: float, told: Estimate, seconds: float) -> None:
        """One more."""
        row = (at, told.seconds, told.low_seconds, told.high_seconds, seconds)
        for column, value in zip(self._columns, row, strict=True):
            column.append(value)


class Accuracy(msgspec.Struct, frozen=True):
    """All predictions of one run together."""

    predicted: int
    typical_factor: float
    """The mean is wrong by this factor, up or down (of logarithms, so that no single job decides)."""
    median_error: float
    """Half of them were wrong by no more than this part of the real run time."""
    rank_correlation: float
    """Spearman's: 1, all jobs stand in the right order; 0, in no order at all."""
    within_band: float
    """Nine of ten should be."""
    below_high: float
    """Nineteen of twenty should be: backfill relies on this side."""


def accuracy(forecasts: Collection[RuntimeForecast]) -> Accuracy | None:
    """In numbers; none: nothing was predicted."""
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
    """By how much predictions are wrong on average."""
    return exp(fsum(it.log_error for it in forecasts) / len(forecasts))


def by_day(forecasts: Iterable[RuntimeForecast]) -> list[tuple[int, list[RuntimeForecast]]]:
    """Those of each day since the first, by when they were made; days without any are not there."""
    days: dict[int, list[RuntimeForecast]] = {}
    ordered = sorted(forecasts, key=lambda it: it.at)
    for it in ordered:
        days.setdefault(int((it.at - ordered[0].at) // DAY), []).append(it)
    return list(days.items())


def _ranks(values: Sequence[float]) -> list[float]:
    """Places in the order; equal values share the middle of theirs."""
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
