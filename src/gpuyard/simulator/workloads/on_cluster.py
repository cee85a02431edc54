"""Jobs of a trace on a simulated cluster. A job that is stopped keeps what it had done, and pays for the stop."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from gpuyard.domain import commands as command
from gpuyard.domain.task import Resources, TaskSpec
from gpuyard.domain.tenant import Split
from gpuyard.domain.values import Preemption, TaskId, TenantId
from gpuyard.predictor.history import Asked
from gpuyard.simulator.clusters import POOL, Cluster
from gpuyard.simulator.contenders import Contender
from gpuyard.simulator.workloads.arrival import Arrival, Coming
from gpuyard.simulator.workloads.job import Job
from gpuyard.simulator.world import Run

TENANT = TenantId("all")
RESTART_SECONDS, RESTART_SECONDS_GANG = 40.0, 60.0
"""Work a job does once more after a stop, on one node and on several: to save itself and to load again."""


@dataclass(frozen=True, slots=True)
class JobsOnCluster:
    """See gpuyard.simulator.workloads.arrival.Workload."""

    jobs: Sequence[Job]
    cluster: Cluster
    stop_seconds: float = 0.0

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

    def opening(self) -> list[command.Command]:
        """All GPUs are for everybody, and all nodes are there."""
        return [command.SetSplit(Split(0.0, 1.0)), *(command.JoinNode(node) for node in self.cluster.nodes)]

    def comings(self, contender: Contender) -> Iterator[Coming]:
        """The jobs, in order."""
        largest = {pool: self.cluster.gpus_of(pool)[1] for pool in {job.pool for job in self.jobs}}
        preemption = Preemption.CHECKPOINT if contender.settings.preemption else Preemption.NEVER
        for place, job in enumerate(self.jobs, start=1):
            spec = TaskSpec(
                TENANT,
                resources(job, largest[job.pool]),
                name=job.name,
                user=job.user,
                command="true",
                preemption=preemption,
            )
            asked = Asked(job.user, "", job.name, job.gpus, job.pool)
            yield job.submit, (Arrival(TaskId(place), spec, asked, Run(job.seconds)),)


def fits(job: Job, cluster: Cluster) -> bool:
    """Whether a cluster could ever run a job."""
    total, largest = cluster.gpus_of(job.pool)
    ask = resources(job, largest)
    return largest > 0 and ask.gpus * ask.nodes <= total


def resources(job: Job, largest: int) -> Resources:
    """One node if it can hold the job, else as few as possible with equal parts."""
    labels = ((POOL, job.pool),) if job.pool else ()
    nodes = -(-job.gpus // max(largest, 1))
    return Resources(gpus=-(-job.gpus // nodes), nodes=nodes, labels=labels)
