"""Finish-time fairness: how much later a job ends than it would with a fair share of the cluster.

Themis (Mahajan et al., NSDI 2020) calls it rho: the time from submission to end, divided by the same time in a cluster
of which the job has one n-th. Above 1 the job would have been better off alone with its share. Here the fair cluster is
the limit of ever shorter turns (max-min fair processor sharing): at each instant every open job of a pool has an equal
part of the GPUs of that pool, but not more than it requests; GPUs that some do not need are divided among the others. A
job advances in proportion to its GPUs. So the fair end of a job depends on the workload and on the cluster, not on the
policy that is judged, and policies can be compared job by job.

    4 GPUs, two jobs of 4 GPUs and 100 s at once: each has 2 GPUs and ends after 200 s.
    first come, first served: 100 s and 200 s, so rho is 0.5 and 1.

Differences from a real cluster: nodes have no boundaries, and stops cost nothing. On several GPU models a job runs at the
average of its speeds. Times below 10 s count as 10 s.
"""

from array import array
from collections.abc import Iterable
from heapq import heappop, heappush
from math import inf

from gpuyard.core.domain.values import MILLI
from gpuyard.simulator.clusters import Cluster
from gpuyard.simulator.measures import SHORT_SECONDS, percentile
from gpuyard.simulator.recorder import TaskTimelines
from gpuyard.simulator.workloads.job import Job


def fair_jcts(jobs: Iterable[Job], cluster: Cluster) -> "array[float]":
    """Return the time from submission to end of each job in the fair cluster; the jobs must be in order of submission."""
    pools: dict[str, _FairPool] = {}
    factors: dict[tuple[object, ...], float] = {}
    found = array("d")
    for place, job in enumerate(jobs):
        found.append(0.0)
        if (pool := pools.get(job.pool)) is None:
            pool = pools[job.pool] = _FairPool(float(sum(cluster.sizes(job.pool))), found)
        if (factor := factors.get(job.speeds)) is None:
            factor = factors[job.speeds] = _average_speed(job, cluster)
        pool.submit(place, job.submit, job.seconds / factor, job.gpus * job.fraction_milli / MILLI)
    for pool in pools.values():
        pool.advance(inf)
    return found


def fairness_figures(lives: TaskTimelines, fair: "array[float]") -> dict[str, float]:
    """Return the figures of all ended tasks; task numbers are the positions of the jobs, from 1 on."""
    ratios = sorted(
        max(life.jct, SHORT_SECONDS) / max(fair[task - 1], SHORT_SECONDS)
        for task, life in lives.items()
        if life.ended is not None
    )
    return {"p95_ftf": percentile(ratios, 0.95), "worst_ftf": ratios[-1]}


def _average_speed(job: Job, cluster: Cluster) -> float:
    """Return the average speed of a job over the GPUs that it can use, where 1 is the fastest."""
    speeds = dict(job.speeds)
    known = [speeds[gpu.model] for node in cluster.nodes for gpu in node.gpus if gpu.model in speeds]
    return sum(known) / len(known) / max(speeds.values()) if known else 1.0


class _Size:
    """The open jobs of a pool that request the same number of GPUs; they advance at the same rate."""

    __slots__ = ("ends", "rate", "work")

    def __init__(self) -> None:
        self.work = 0.0
        """Work that a job of this size would have done since the beginning."""
        self.rate = 0.0
        self.ends: list[tuple[float, int, float]] = []
        """The work at which each job ends, with its position and its submission."""


class _FairPool:
    """GPUs that are divided evenly among all open jobs, at every instant."""

    def __init__(self, gpus: float, found: "array[float]") -> None:
        self._gpus = gpus
        self._found = found
        self._now = 0.0
        self._sizes: dict[float, _Size] = {}
        """In ascending order."""

    def submit(self, place: int, at: float, seconds: float, gpus: float) -> None:
        """Add a job at its instant; all earlier ones must have been added."""
        self.advance(at)
        if gpus not in self._sizes:
            self._sizes[gpus] = _Size()
            self._sizes = dict(sorted(self._sizes.items()))
        size = self._sizes[gpus]
        heappush(size.ends, (size.work + seconds, place, at))
        self._divide()

    def advance(self, until: float) -> None:
        """Advance to an instant and end the jobs that are done by then."""
        while True:
            due, ending = inf, None
            for size in self._sizes.values():
                if size.ends and (end := self._now + max(0.0, size.ends[0][0] - size.work) / size.rate) < due:
                    due, ending = end, size
            if ending is None or due > until:
                break
            self._work_until(due)
            work, place, submitted = heappop(ending.ends)
            ending.work = work  # without the rounding error
            self._found[place] = due - submitted
            self._divide()
        if until < inf:
            self._work_until(until)

    def _work_until(self, at: float) -> None:
        for size in self._sizes.values():
            size.work += (at - self._now) * size.rate
        self._now = at

    def _divide(self) -> None:
        """Set the rates: an equal part for each job, but not more than it requests."""
        left, jobs = self._gpus, sum(len(size.ends) for size in self._sizes.values())
        for gpus, size in self._sizes.items():
            if not size.ends:
                size.rate = 0.0
            elif gpus * jobs <= left:
                size.rate = 1.0
                left -= gpus * len(size.ends)
                jobs -= len(size.ends)
            else:
                size.rate = left / jobs / gpus
