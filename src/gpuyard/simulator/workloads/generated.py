"""Synthetic jobs drawn from a seed: any number, for any cluster, at any load.

They have the shape of the public traces, in round numbers: for Helios (SC 2021) its cluster Venus in September 2020,
for Philly (ATC 2019) October 2017.

    property          here                                                 traces
    run time          median 230 s, mean 6,500 s, at most ten days         Venus 193 and 11,769 s, Philly 1,684 and
11,373 s
    ends early        a third, anywhere in their run                       Venus: 44 % did not complete
    GPUs              powers of two, 60 % ask for one, 4.2 on average      Venus 57 % and 8.0, Philly 95 % and 1.2
    users             one for 9 GPUs, the first has an eighth of all       Venus: 118 on 1,080 GPUs, the first has 15 %
    habits            nine of ten jobs are as large as their user's last   Venus: 87 %
    sweeps            a third come together with their user's last         Venus: 31 % within a minute of it
    hours, days       at six a sixth of three in the afternoon;            Venus: the same; weekends 0.4
                      Sundays 0.4 of Tuesdays

Randomness is passed in as a function that creates a generator of numbers in [0, 1), so that one workload can be run
many times. The load is met exactly: the total work of all jobs determines the time over which they arrive. Only the
users' habits are kept in memory, independent of the number of jobs.
"""

from bisect import bisect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from math import exp, log
from statistics import NormalDist
from typing import NamedTuple

from gpuyard.core.domain.values import MILLI
from gpuyard.simulator.clusters import Cluster
from gpuyard.simulator.failures import RandomDraw
from gpuyard.simulator.workloads.job import Job
from gpuyard.simulator.workloads.on_cluster import fits
from gpuyard.simulator.workloads.trace import WrongTrace

RandomSource = Callable[[], RandomDraw]
"""Creates a generator that starts from the beginning of its sequence."""

HABIT_SECONDS, HABIT_SPREAD, RUN_SPREAD = 300.0, 2.55, 0.3
"""Run times: their median over all kinds; standard deviations of the logarithm between kinds and between runs."""
LEAST_SECONDS, MOST_SECONDS = 1.0, 10 * 86_400.0
ENDS_EARLY = 1 / 3
SIZES = {1: 0.60, 2: 0.08, 4: 0.09, 8: 0.16, 16: 0.04, 32: 0.02, 64: 0.01}
"""GPUs, and the share of job kinds that request them."""
MOST_OF_CLUSTER = 4
"""No job requests more than 1/MOST_OF_CLUSTER of the cluster, but at least one GPU is allowed."""
GPUS_A_USER, USERS_SLOPE = 9, 0.8
KINDS, SAME_AGAIN, NEW_KIND, ANOTHER = 5, 0.7, 0.1, 0.3
"""Kinds of a user; probabilities of the same kind again, of a new kind on a change, of arrival with the last job."""
LOAD = 0.9
MOST_JOBS, LEAST_LOAD, MOST_LOAD = 100_000_000, 0.001, 100
LIGHT_MILLI = (250, 500)
"""Shares of a GPU that a fractional job requests, in thousandths."""
HOURS = (0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.3, 0.3, 0.5, 0.8, 1.2, 1.3, 1.2, 1.3, 1.6, 1.7, 1.6, 1.5, 1.3, 1.2, 1.3, 1.3, 1.1, 0.9)  # fmt: skip
DAYS = (1.1, 1.2, 1.2, 1.2, 1.1, 0.6, 0.5)
"""Relative arrival rate of each hour of a day and of each day of a week; the first day is a Monday."""

HOUR = 3600.0
_WEEK = tuple(accumulate((day * hour * HOUR for day in DAYS for hour in HOURS), initial=0.0))
"""Cumulative arrivals at the end of each hour of a week."""
_NORMAL = NormalDist().inv_cdf


class JobKind(NamedTuple):
    """A program that a user runs repeatedly."""

    gpus: int
    seconds: float
    """Its typical run time."""
    fraction_milli: int


@dataclass(frozen=True)
class GeneratedJobs:
    """Jobs for a cluster, drawn again on each iteration and always the same."""

    count: int
    cluster: Cluster
    chance: RandomSource
    load: float = LOAD
    """GPUs requested while jobs arrive, as a share of all GPUs."""
    light: float = 0.0
    """Share of the one-GPU job kinds that request only part of the GPU."""

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[Job]:
        turns, scale = 0.0, self._scale
        for wait, user, name, kind, seconds in self._drawn():
            turns += wait
            at = round(arrival_time(turns * scale), 3)
            yield Job(at, seconds, kind.gpus, user, name=name, fraction_milli=kind.fraction_milli)

    @cached_property
    def _scale(self) -> float:
        """Factor from drawn waiting times to expected arrivals, so that the load is met."""
        turns = gpu_seconds = 0.0
        for wait, _, _, kind, seconds in self._drawn():
            turns += wait
            gpu_seconds += kind.gpus * kind.fraction_milli / MILLI * seconds
        return expected_arrivals(gpu_seconds / (self.load * self.cluster.gpus)) / turns

    def _drawn(self) -> Iterator[tuple[float, str, str, JobKind, float]]:
        """Draw for each job: the wait after the previous one, the user, the name, the kind and the run time."""
        draw = self.chance()
        sizes, weights = self._sizes
        users = [f"user{number + 1:03}" for number in range(max(4, self.cluster.gpus // GPUS_A_USER))]
        busy = list(accumulate((place + 1) ** -USERS_SLOPE for place in range(len(users))))
        kinds: list[list[JobKind | None]] = [[None] * KINDS for _ in users]
        last = [0] * len(users)
        who = 0
        for number in range(self.count):
            wait = 0.0
            if number == 0 or draw() >= ANOTHER:
                wait = -log(1.0 - draw())
                who = bisect(busy, draw() * busy[-1])
                if draw() >= SAME_AGAIN:
                    last[who] = int(draw() * KINDS)
                    if draw() < NEW_KIND:
                        kinds[who][last[who]] = None
            kind = kinds[who][last[who]]
            if kind is None:
                kind = kinds[who][last[who]] = self._kind(draw, sizes, weights)
            seconds = kind.seconds * exp(RUN_SPREAD * _normal(draw))
            if draw() < ENDS_EARLY:
                seconds *= draw()
            seconds = round(min(MOST_SECONDS, max(LEAST_SECONDS, seconds)), 3)
            yield wait, users[who], f"kind{last[who] + 1}", kind, seconds

    def _kind(self, draw: RandomDraw, sizes: list[int], weights: list[float]) -> JobKind:
        gpus = sizes[bisect(weights, draw() * weights[-1])]
        milli = MILLI
        if gpus == 1 and draw() < self.light:
            milli = LIGHT_MILLI[int(draw() * len(LIGHT_MILLI))]
        return JobKind(gpus, HABIT_SECONDS * exp(HABIT_SPREAD * _normal(draw)), milli)

    @property
    def _sizes(self) -> tuple[list[int], list[float]]:
        """The job sizes that fit this cluster, and their cumulative weights."""
        most = max(1, self.cluster.gpus // MOST_OF_CLUSTER)
        sizes = [gpus for gpus in SIZES if gpus <= most and fits(Job(0.0, 0.0, gpus), self.cluster)]
        return sizes, list(accumulate(SIZES[gpus] for gpus in sizes))


def read_count(text: str) -> tuple[int, float]:
    """Parse `10000` (jobs) or `10000:0.8` (jobs and load)."""
    count, colon, load = text.partition(":")
    try:
        return int(count), float(load) if colon else LOAD
    except ValueError:
        raise WrongTrace(f"--generate is {text!r}; it must be JOBS or JOBS:LOAD, such as 10000:0.8.") from None


def _normal(draw: RandomDraw) -> float:
    return _NORMAL(max(draw(), 1e-12))


# --- hours and days -----------------------------------------------------------------------------------------------------


def arrival_time(came: float) -> float:
    """Return the instant at which the expected arrivals reach `came`; the inverse of `expected_arrivals`."""
    weeks, came = divmod(came, _WEEK[-1])
    hour = bisect(_WEEK, came) - 1
    part = (came - _WEEK[hour]) / (_WEEK[hour + 1] - _WEEK[hour])
    return (weeks * len(DAYS) * len(HOURS) + hour + part) * HOUR


def expected_arrivals(at: float) -> float:
    """Return the expected arrivals up to an instant."""
    weeks, at = divmod(at / HOUR, len(DAYS) * len(HOURS))
    hour = int(at)
    return weeks * _WEEK[-1] + _WEEK[hour] + (at - hour) * (_WEEK[hour + 1] - _WEEK[hour])
