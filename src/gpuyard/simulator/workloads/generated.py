"""Jobs that nobody ever submitted, drawn from a seed: as many as wanted, for any cluster, at any load.

They have the shape that the public traces have, in round numbers: of Helios (SC 2021) its cluster Venus in September 2020, of
Philly (ATC 2019) October 2017.

    what              here                                                 there
    run time          median 230 s, mean 6,500 s, at most ten days         Venus 193 and 11,769 s, Philly 1,684 and 11,373 s
    ends early        a third, anywhere in their run                       Venus: 44 % did not complete
    GPUs              powers of two, 60 % ask for one, 4.2 on average      Venus 57 % and 8.0, Philly 95 % and 1.2
    users             one for 9 GPUs, the first has an eighth of all       Venus: 118 on 1,080 GPUs, the first has 15 %
    habits            nine of ten jobs are as large as their user's last   Venus: 87 %
    sweeps            a third come together with their user's last         Venus: 31 % within a minute of it
    hours, days       at six a sixth of three in the afternoon;            Venus: the same; weekends 0.4
                      Sundays 0.4 of Tuesdays

Chance comes in from outside, as a function that makes one that draws numbers from 0 to 1, so that one workload can be
played many times. The load is met exactly: what all jobs need decides over how long a time they come. Nothing is kept
but the habits of the users, however many jobs there are.
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

"""A number from 0 to 1, without 1: another with every call."""
RandomSource = Callable[[], RandomDraw]
"""Makes a draw that begins anew."""

HABIT_SECONDS, HABIT_SPREAD, RUN_SPREAD = 300.0, 2.55, 0.3
"""Run times: what is usual for all kinds together, how kinds differ, and how runs of a kind differ (of the logarithm)."""
LEAST_SECONDS, MOST_SECONDS = 1.0, 10 * 86_400.0
ENDS_EARLY = 1 / 3
SIZES = {1: 0.60, 2: 0.08, 4: 0.09, 8: 0.16, 16: 0.04, 32: 0.02, 64: 0.01}
"""GPUs, and which part of the kinds asks for them."""
MOST_OF_CLUSTER = 4
"""No job asks for more than one part in so many, unless that is less than a GPU."""
GPUS_A_USER, USERS_SLOPE = 9, 0.8
KINDS, SAME_AGAIN, NEW_KIND, ANOTHER = 5, 0.7, 0.1, 0.3
"""Kinds of jobs that a user has; how often it is the same again, a changed one is a new one, and another comes with it."""
LOAD = 0.9
MOST_JOBS, LEAST_LOAD, MOST_LOAD = 100_000_000, 0.001, 100.0
LIGHT_MILLI = (250, 500)
"""What a light job asks for of a GPU."""
HOURS = (0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.3, 0.3, 0.5, 0.8, 1.2, 1.3, 1.2, 1.3, 1.6, 1.7, 1.6, 1.5, 1.3, 1.2, 1.3, 1.3, 1.1, 0.9)  # fmt: skip
DAYS = (1.1, 1.2, 1.2, 1.2, 1.1, 0.6, 0.5)
"""How busy each hour of a day is, and each day of a week; the first is a Monday."""

HOUR = 3600.0
_WEEK = tuple(accumulate((day * hour * HOUR for day in DAYS for hour in HOURS), initial=0.0))
"""How much has come by the end of each hour of a week."""
_NORMAL = NormalDist().inv_cdf


class JobKind(NamedTuple):
    """A program that a user runs again and again."""

    gpus: int
    seconds: float
    """What it usually takes."""
    fraction_milli: int


@dataclass(frozen=True)
class GeneratedJobs:
    """Jobs for a cluster, drawn anew whenever they are walked through, and always the same."""

    count: int
    cluster: Cluster
    chance: RandomSource
    load: float = LOAD
    """GPUs asked for, of those there are, while jobs come."""
    light: float = 0.0
    """How many of the kinds with one GPU do with a part of it."""

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
        """What one turn is of the rhythm's time, so that the load is as asked."""
        turns = gpu_seconds = 0.0
        for wait, _, _, kind, seconds in self._drawn():
            turns += wait
            gpu_seconds += kind.gpus * kind.fraction_milli / MILLI * seconds
        return expected_arrivals(gpu_seconds / (self.load * self.cluster.gpus)) / turns

    def _drawn(self) -> Iterator[tuple[float, str, str, JobKind, float]]:
        """How long after the one before, whose, by which name, of what kind, and how long it runs."""
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
        """The sizes that this cluster has a place for, and their weights, added up."""
        most = max(1, self.cluster.gpus // MOST_OF_CLUSTER)
        sizes = [gpus for gpus in SIZES if gpus <= most and fits(Job(0.0, 0.0, gpus), self.cluster)]
        return sizes, list(accumulate(SIZES[gpus] for gpus in sizes))


def read_count(text: str) -> tuple[int, float]:
    """`10000` jobs, or `10000:0.8`: so many, for this part of the GPUs."""
    count, colon, load = text.partition(":")
    try:
        found = int(count), float(load) if colon else LOAD
    except ValueError:
        found = 0, 0.0
    if not (1 <= found[0] <= MOST_JOBS and LEAST_LOAD <= found[1] <= MOST_LOAD):
        raise WrongTrace(
            f"--generate is {text!r}; it must be JOBS or JOBS:LOAD, such as 10000:0.8, with 1 to {MOST_JOBS:,} jobs and a load "
            f"from {LEAST_LOAD:g} to {MOST_LOAD:g}."
        )
    return found


def _normal(draw: RandomDraw) -> float:
    return _NORMAL(max(draw(), 1e-12))


# --- hours and days -----------------------------------------------------------------------------------------------------


def arrival_time(came: float) -> float:
    """When so much has come."""
    weeks, came = divmod(came, _WEEK[-1])
    hour = bisect(_WEEK, came) - 1
    part = (came - _WEEK[hour]) / (_WEEK[hour + 1] - _WEEK[hour])
    return (weeks * len(DAYS) * len(HOURS) + hour + part) * HOUR


def expected_arrivals(at: float) -> float:
    """How much has come by an instant."""
    weeks, at = divmod(at / HOUR, len(DAYS) * len(HOURS))
    hour = int(at)
    return weeks * _WEEK[-1] + _WEEK[hour] + (at - hour) * (_WEEK[hour + 1] - _WEEK[hour])
