"""Regimes: kinds of clusters and workloads on which an advisor is trained, selected and evaluated.

A regime is a set of nodes, a load and a kind of jobs; with a seed it is a workload. Jobs are generated
(gpuyard.simulator.workloads.generated) or sampled from a section of a trace in their order, with arrival times scaled
to the load of the regime. In a cluster with several GPU models, every program has its own speed on each, drawn once
from the range of the model; the ranges are those of Gavel's measurements (OSDI 2020) in round numbers.

Jobs cannot be preempted, like tasks that do not declare how to save a checkpoint: a task that can be moved later needs
no advice. In a regime with `preemptible` they can, and advice must not make it worse.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import exp, log
from random import Random

from gpuyard.core.domain.errors import WrongInput
from gpuyard.core.placement.speeds import Speeds
from gpuyard.simulator.clusters import Cluster, parse_cluster
from gpuyard.simulator.workloads.generated import GeneratedJobs
from gpuyard.simulator.workloads.job import Job
from gpuyard.simulator.workloads.on_cluster import JobsOnCluster, fits

Range = tuple[float, float]
LONGEST_STRETCH = 20
"""A section of a trace has at most this multiple of the number of jobs to sample."""


@dataclass(frozen=True, slots=True)
class Regime:
    """A kind of cluster and workload."""

    name: str
    nodes: str
    """In the format of `gpuyard simulate --cluster`."""
    load: float
    """GPU-seconds at full speed that arrive, as a share of those available."""
    speeds: Mapping[str, Range] = field(default_factory=dict)
    """Range of programs' speeds for each GPU model; empty means equal speeds."""
    jobs: int = 600
    trace: str = ""
    """The trace from which jobs are sampled; empty means generated jobs."""
    preemptible: bool = False

    def workload(self, seed: int, traces: Mapping[str, Sequence[Job]]) -> JobsOnCluster:
        """Return a workload of this kind; the same seed gives the same jobs."""
        cluster = parse_cluster(self.nodes)
        if self.trace:
            jobs = _stretch(traces[self.trace], self.jobs, cluster, self.load, Random(f"{self.name}/{seed}"))  # noqa: S311
            if not jobs:
                raise WrongInput(f"No job of the trace {self.trace} fits on the nodes {self.nodes} of this regime.")
        else:
            jobs = list(GeneratedJobs(self.jobs, cluster, lambda: Random(seed).random, self.load))  # noqa: S311
        if self.speeds:
            jobs = list(_with_speeds(jobs, self.speeds, seed))
        return JobsOnCluster(jobs, cluster, preemptible=self.preemptible)


DESK = {"new": (1.0, 1.0), "old": (0.15, 0.9)}
GAVEL_NODES = "2x4:v100+4x4:p100+6x4:k80"
GAVEL = {"v100": (0.8, 1.0), "p100": (0.5, 1.0), "k80": (0.1, 0.5)}

TRAINED: tuple[Regime, ...] = (
    Regime("desk, old and new", "1x4:new+1x4:old", 0.6, DESK),
    Regime("lab, three models", GAVEL_NODES, 0.45, GAVEL),
    Regime("lab, two models", "2x8:new+2x8:old", 0.65, DESK),
    Regime("desk, mostly old", "1x2:new+1x4:old", 0.75, DESK),
    Regime("lab, mostly old", "1x8:new+3x8:old", 0.55, DESK),
)
"""For training, and with other seeds for selecting the guard. All mix GPU models; without a mix no advice is used."""


def of_trace(name: str) -> Regime:
    """Return the regime for training on a trace."""
    return Regime(f"lab, three models, jobs of {name}", GAVEL_NODES, 0.45, GAVEL, trace=name)


def _with_speeds(jobs: Sequence[Job], ranges: Mapping[str, Range], seed: int) -> Iterator[Job]:
    """Yield the jobs with speeds; jobs of one program, user and size are equally fast."""
    known: dict[tuple[str, str, int], Speeds] = {}
    for job in jobs:
        program = (job.user, job.name, job.gpus)
        if program not in known:
            draw = Random(f"{seed}/{program}")  # noqa: S311
            known[program] = tuple(
                (model, exp(draw.uniform(log(low), log(high)))) for model, (low, high) in sorted(ranges.items())
            )
        yield job._replace(speeds=known[program])


def _stretch(trace: Sequence[Job], count: int, cluster: Cluster, load: float, draw: Random) -> list[Job]:
    """Sample jobs from a section of a trace, in order, at the wanted load; users and names stay."""
    most = max(cluster.sizes(""))
    fitting = [job._replace(pool="") for job in trace if job.gpus <= most and fits(job._replace(pool=""), cluster)]
    if not fitting:
        return []
    among = min(len(fitting), LONGEST_STRETCH * count)
    begins = draw.randrange(len(fitting) - among + 1)
    chosen = sorted(draw.sample(range(begins, begins + among), min(count, among)))
    jobs = [fitting[place] for place in chosen]
    work = sum(job.gpus * max(job.seconds, 1.0) for job in jobs)
    lasts = max(1.0, jobs[-1].submit - jobs[0].submit)
    pace = work / (load * cluster.gpus) / lasts
    start = jobs[0].submit
    return [job._replace(submit=round((job.submit - start) * pace, 3), seconds=max(job.seconds, 1.0)) for job in jobs]
