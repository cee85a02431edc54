"""Jobs of a trace on a simulated cluster. `checkpoints.py` says what a job loses when it is preempted."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol

from msgspec.structs import replace

from gpuyard.core.domain import commands as command
from gpuyard.core.domain.kind_name import LONGEST_NAME, kind_name
from gpuyard.core.domain.task import Resources, Share, TaskSpec
from gpuyard.core.domain.tenant import Split
from gpuyard.core.domain.values import MILLI, Preemption, TaskId, TenantId
from gpuyard.learn.estimates.history import TaskFeatures
from gpuyard.simulator.clusters import POOL, Cluster
from gpuyard.simulator.interference import Interference, by_demand
from gpuyard.simulator.policy_variants import PolicyVariant
from gpuyard.simulator.workloads.arrival import Arrival, TimedInput
from gpuyard.simulator.workloads.checkpoints import DrawnCheckpoints, RandomStreams, published_restart_seconds
from gpuyard.simulator.workloads.job import Job
from gpuyard.simulator.world import TaskBehavior

TENANT = TenantId("all")
NO_COMMAND = "true"
"""The command of a job whose command is not recorded; it has no kind name."""


class JobSource(Protocol):
    """Jobs in the order of submission, iterated once for every policy variant; they need not be in memory."""

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[Job]: ...


@dataclass(frozen=True, slots=True)
class JobsOnCluster:
    """Jobs with a cluster; implements `gpuyard.simulator.workloads.arrival.Workload`."""

    jobs: JobSource
    cluster: Cluster
    stop_seconds: float = 0.0
    interference: Interference = by_demand
    say_speeds: bool = True
    """Whether jobs declare their different speeds on GPU models."""
    preemptible: float = 1.0
    """Share of the jobs that may be preempted; a live task may not unless its user says so."""
    checkpoints: DrawnCheckpoints | None = None
    """How jobs save their work; None means the rule of the published simulators."""
    chance: RandomStreams = lambda _: lambda: 0.0
    """The random numbers of the jobs, for a share of preemptible jobs and for drawn checkpoints."""

    @property
    def tasks(self) -> int:
        """Number of jobs."""
        return len(self.jobs)

    @property
    def gpus(self) -> int:
        """Number of GPUs of the cluster."""
        return self.cluster.gpus

    def restart_seconds(self, spec: TaskSpec) -> float:
        """Return the restart cost of a stop."""
        return published_restart_seconds(spec.resources.nodes)

    def slowed_by(self, spec: TaskSpec, other: TaskSpec) -> float:
        """Return the share of its speed that a job keeps next to another."""
        return self.interference(spec, other)

    def opening(self) -> list[command.Command]:
        """Return the commands that assign all GPUs to batch tasks and add all nodes."""
        return [command.SetSplit(Split(0.0, 1.0)), *(command.JoinNode(node) for node in self.cluster.nodes)]

    def arrivals(self, policy_variant: PolicyVariant) -> Iterator[TimedInput]:
        """Return the jobs in the order of submission."""
        asks: dict[tuple[object, ...], Resources] = {}
        chance, draw = self.chance("preemptible"), self.chance("checkpoints")
        for place, job in enumerate(self.jobs, start=1):
            like = (job.gpus, job.pool, job.fraction_milli, job.models, job.speeds)
            ask = asks.get(like)
            if ask is None:
                ask = resources(job, max(self.cluster.sizes(job.pool, job.models), default=0))
                asks[like] = ask = ask if self.say_speeds else replace(ask, speeds=())
            may_stop = chance() < self.preemptible and policy_variant.settings.preemption
            preemption = Preemption.CHECKPOINT if may_stop else Preemption.NEVER
            saving = None if self.checkpoints is None else self.checkpoints.behavior(ask.nodes, draw)
            run = TaskBehavior(job.seconds, speeds=job.speeds, saving=saving if may_stop else None)
            spec = TaskSpec(
                TENANT, ask, name=job.name, user=job.user, command=job.command or NO_COMMAND, preemption=preemption
            )
            asked = TaskFeatures(
                job.user,
                "",
                (job.name or job.command)[:LONGEST_NAME],
                job.gpus * job.fraction_milli / MILLI,
                job.pool,
                kind_name(job.name, job.command),
            )
            yield job.submit, (Arrival(TaskId(place), spec, asked, run),)


def fitting(jobs: Iterable[Job], cluster: Cluster) -> list[Job]:
    """Return the jobs that the cluster could ever run."""
    known: dict[tuple[int, str, tuple[str, ...]], bool] = {}
    found = []
    for job in jobs:
        like = (job.gpus, job.pool, job.models)
        if like not in known:
            known[like] = fits(job, cluster)
        if known[like]:
            found.append(job)
    return found


def fits(job: Job, cluster: Cluster) -> bool:
    """Return whether a cluster could ever run a job."""
    sizes = cluster.sizes(job.pool, job.models)
    if not sizes:
        return False
    ask = resources(job, max(sizes))
    return sum(size >= ask.gpus for size in sizes) >= ask.nodes


def resources(job: Job, largest: int) -> Resources:
    """Return one node if it can hold the job, otherwise the fewest nodes with equal parts; or its share of a GPU."""
    labels = ((POOL, job.pool),) if job.pool else ()
    if job.fraction_milli < MILLI:
        return Resources(share=Share(job.fraction_milli), labels=labels, models=job.models, speeds=job.speeds)
    nodes = -(-job.gpus // max(largest, 1))
    return Resources(gpus=-(-job.gpus // nodes), nodes=nodes, labels=labels, models=job.models, speeds=job.speeds)
