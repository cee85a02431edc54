"""Jobs of a trace on a simulated cluster. A job that is stopped keeps what it had done, and pays for the stop."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol

from msgspec.structs import replace

from gpuyard.core.domain import commands as command
from gpuyard.core.domain.task import Resources, Share, TaskSpec
from gpuyard.core.domain.tenant import Split
from gpuyard.core.domain.values import MILLI, Preemption, TaskId, TenantId
from gpuyard.learn.estimates.history import TaskFeatures
from gpuyard.simulator.clusters import POOL, Cluster
from gpuyard.simulator.interference import Interference, by_demand
from gpuyard.simulator.policy_variants import PolicyVariant
from gpuyard.simulator.workloads.arrival import Arrival, TimedInput
from gpuyard.simulator.workloads.job import Job
from gpuyard.simulator.world import TaskBehavior

TENANT = TenantId("all")
RESTART_SECONDS, RESTART_SECONDS_GANG = 40.0, 60.0
"""Work a job does once more after a stop, on one node and on several: to save itself and to load again."""


class JobSource(Protocol):
    """Walked through once for every contender, in the order of submission; they need not be in memory."""

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[Job]: ...


@dataclass(frozen=True, slots=True)
class JobsOnCluster:
    """See gpuyard.simulator.workloads.arrival.Workload."""

    jobs: JobSource
    cluster: Cluster
    stop_seconds: float = 0.0
    interference: Interference = by_demand
    say_speeds: bool = True
    """Whether jobs that are faster on some GPUs than on others say so."""
    preemptible: bool = True
    """Whether jobs save themselves when they are told to stop; else nobody may stop them."""

    @property
    def tasks(self) -> int:
        """How many jobs come."""
        return len(self.jobs)

    @property
    def gpus(self) -> int:
        """How many the cluster has."""
        return self.cluster.gpus

    def restart_seconds(self, spec: TaskSpec) -> float:
        """What a stop costs."""
        return RESTART_SECONDS if spec.resources.nodes == 1 else RESTART_SECONDS_GANG

    def slowed_by(self, spec: TaskSpec, other: TaskSpec) -> float:
        """What sharing a card costs."""
        return self.interference(spec, other)

    def opening(self) -> list[command.Command]:
        """All GPUs are for everybody, and all nodes are there."""
        return [command.SetSplit(Split(0.0, 1.0)), *(command.JoinNode(node) for node in self.cluster.nodes)]

    def arrivals(self, policy_variant: PolicyVariant) -> Iterator[TimedInput]:
        """The jobs, in order."""
        asks: dict[tuple[object, ...], Resources] = {}
        preemption = (
            Preemption.CHECKPOINT if self.preemptible and policy_variant.settings.preemption else Preemption.NEVER
        )
        for place, job in enumerate(self.jobs, start=1):
            like = (job.gpus, job.pool, job.fraction_milli, job.models, job.speeds)
            ask = asks.get(like)
            if ask is None:
                ask = resources(job, max(self.cluster.sizes(job.pool, job.models), default=0))
                asks[like] = ask = ask if self.say_speeds else replace(ask, speeds=())
            spec = TaskSpec(TENANT, ask, name=job.name, user=job.user, command="true", preemption=preemption)
            asked = TaskFeatures(job.user, "", job.name, job.gpus * job.fraction_milli / MILLI, job.pool)
            yield job.submit, (Arrival(TaskId(place), spec, asked, TaskBehavior(job.seconds, speeds=job.speeds)),)


def fitting(jobs: Iterable[Job], cluster: Cluster) -> list[Job]:
    """Those that a cluster could ever run."""
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
    """Whether a cluster could ever run a job."""
    sizes = cluster.sizes(job.pool, job.models)
    if not sizes:
        return False
    ask = resources(job, max(sizes))
    return sum(size >= ask.gpus for size in sizes) >= ask.nodes


def resources(job: Job, largest: int) -> Resources:
    """One node if it can hold the job, else as few as possible with equal parts; or its part of a GPU."""
    labels = ((POOL, job.pool),) if job.pool else ()
    if job.fraction_milli < MILLI:
        return Resources(share=Share(job.fraction_milli), labels=labels, models=job.models, speeds=job.speeds)
    nodes = -(-job.gpus // max(largest, 1))
    return Resources(gpus=-(-job.gpus // nodes), nodes=nodes, labels=labels, models=job.models, speeds=job.speeds)
