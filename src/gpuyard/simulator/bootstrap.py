"""Confidence intervals for the figures of one workload, from its days: what another month of the same kind might give.

A trace is one sample, and its jobs are not independent: a burst on Monday delays the jobs of Tuesday. So not jobs but
blocks of consecutive days are drawn, with replacement and from a circle of all days, until there are as many days as
before (the circular block bootstrap; Künsch 1989, Politis and Romano 1992). A block has as many days as the cube root of
their number, rounded up. A job belongs to the day of its submission. 95 of 100 draws lie in the interval. A draw in which
a policy has no jobs has no averages and is left out for all policies.

All policies are judged on the same draws. The difficulty of a day cancels out of their difference, which can therefore be
sure where the intervals of the two overlap. The same holds for their ratio, which is taken within each draw: a difference
divided by the figure of the whole workload could fall by more than all of it, because another draw has another base. The
queue at the end of a day is carried to the next one, also where that is
another one, so the intervals are approximate; with few days they are too narrow.
"""

from array import array
from collections.abc import Callable, Mapping, Sequence
from heapq import nlargest
from math import ceil, fsum
from typing import NamedTuple

import msgspec

from gpuyard.simulator.measures import percentile
from gpuyard.simulator.recorder import TaskTimelines

DAY = 86_400.0
LEAST_DAYS = 5
DRAWS = 1_000
TAIL_PART = 0.001
"""Part of the jobs that wait longer than the 99.9th percentile."""


FIGURES = ("avg_jct_s", "avg_queue_s", "p999_queue_s")


class Interval(NamedTuple):
    """A 95 % confidence interval."""

    low: float
    high: float


class IntervalsOfRun(msgspec.Struct, frozen=True):
    """The intervals of one policy; times are in seconds."""

    days: int
    block_days: int
    figures: dict[str, Interval]
    """Average completion time, average wait and 99.9th percentile of the waits, by the names of the measures."""
    difference: dict[str, Interval] | None = None
    """The same figures minus those of the first policy, paired by draw; None for the first one."""
    ratio: dict[str, Interval] | None = None
    """The same figures divided by those of the first policy within each draw, without those that are 0 in one of them."""


def block_intervals(
    runs: Mapping[str, TaskTimelines], draw: Callable[[], float], draws: int = DRAWS
) -> dict[str, IntervalsOfRun]:
    """Return the intervals of each policy; none if the workload has fewer than five days, or if no draw has jobs."""
    found = {name: _Days(lives) for name, lives in runs.items()}
    count = max((days.count for days in found.values()), default=0)
    if count < LEAST_DAYS:
        return {}
    block = ceil(round(count ** (1 / 3), 9))
    sampled: dict[str, list[tuple[float, ...]]] = {name: [] for name in found}
    for _ in range(draws):
        weights = _drawn_days(count, block, draw)
        jobs = {name: days.jobs(weights) for name, days in found.items()}
        if all(jobs.values()):
            for name, days in found.items():
                sampled[name].append(days.figures(weights, jobs[name]))
    base = next(iter(found))
    if not sampled[base]:
        return {}
    return {
        name: _intervals(count, block, each, None if name == base else sampled[base]) for name, each in sampled.items()
    }


def _drawn_days(count: int, block: int, draw: Callable[[], float]) -> list[int]:
    """Return how often each day was drawn."""
    weights = [0] * count
    missing = count
    while missing:
        first = int(draw() * count)
        for day in range(first, first + min(block, missing)):
            weights[day % count] += 1
        missing -= min(block, missing)
    return weights


def _intervals(
    days: int, block: int, sampled: Sequence[tuple[float, ...]], base: Sequence[tuple[float, ...]] | None
) -> IntervalsOfRun:
    columns = dict(zip(FIGURES, zip(*sampled, strict=True), strict=True))
    own = {name: _interval(column) for name, column in columns.items()}
    if base is None:
        return IntervalsOfRun(days, block, own)
    first = dict(zip(FIGURES, zip(*base, strict=True), strict=True))
    apart = {
        name: _interval([value - other for value, other in zip(column, first[name], strict=True)])
        for name, column in columns.items()
    }
    ratios = {
        name: _interval([value / other for value, other in zip(column, first[name], strict=True)])
        for name, column in columns.items()
        if all(first[name])
    }
    return IntervalsOfRun(days, block, own, apart, ratios)


def _interval(values: Sequence[float]) -> Interval:
    ordered = sorted(values)
    return Interval(percentile(ordered, 0.025), percentile(ordered, 0.975))


class _Days:
    """The jobs of one run by day of submission, as sums."""

    def __init__(self, lives: TaskTimelines) -> None:
        ended = list(lives.over())
        first = min((life.submitted for life in ended), default=0.0)
        jcts: list[array[float]] = []
        queues: list[array[float]] = []
        for life in ended:
            day = int((life.submitted - first) // DAY)
            while len(jcts) <= day:
                jcts.append(array("d"))
                queues.append(array("d"))
            jcts[day].append(life.jct)
            queues[day].append(life.queued)
        self.count = len(jcts)
        self._jobs = [len(values) for values in jcts]
        self._jct = [fsum(values) for values in jcts]
        self._queue = [fsum(values) for values in queues]
        waits = ((queued, day) for day, values in enumerate(queues) for queued in values)
        self._longest = nlargest(len(ended) // 20 + 100, waits)
        """The longest waits with their days, longest first; enough of them for every draw but the strangest."""

    def jobs(self, weights: Sequence[int]) -> int:
        """Return the number of jobs of a draw."""
        return sum(weight * count for weight, count in zip(weights, self._jobs, strict=False))

    def figures(self, weights: Sequence[int], jobs: int) -> tuple[float, ...]:
        """Return average completion time, average wait and 99.9th percentile of the waits of a draw with this many jobs."""
        jct = fsum(weight * value for weight, value in zip(weights, self._jct, strict=False))
        queue = fsum(weight * value for weight, value in zip(weights, self._queue, strict=False))
        return jct / jobs, queue / jobs, self._tail(weights, TAIL_PART * jobs)

    def _tail(self, weights: Sequence[int], jobs: float) -> float:
        """Return the wait that this many jobs of a draw exceed."""
        longer = 0
        for queued, day in self._longest:
            longer += weights[day]
            if longer > jobs:
                return queued
        return self._longest[-1][0]
