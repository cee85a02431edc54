"""Plays a workload on a cluster under one contender: the live engine, a virtual clock, and the cost of every stop."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from gpuyard.domain import commands as command
from gpuyard.domain import events as fact
from gpuyard.domain.refusals import Refusal
from gpuyard.domain.task import Estimate, NewTask, Resources, TaskSpec
from gpuyard.domain.tenant import Split
from gpuyard.domain.values import Preemption, TaskId, TenantId
from gpuyard.predictor.history import Asked, History
from gpuyard.simulator.clusters import POOL, Cluster
from gpuyard.simulator.contenders import Contender, Foresight
from gpuyard.simulator.measures import Measures, measure
from gpuyard.simulator.recorder import Recorder
from gpuyard.simulator.workloads.job import Job
from gpuyard.simulator.world import Due, Run, World

TENANT = TenantId("all")
RESTART_SECONDS, RESTART_SECONDS_GANG = 40.0, 60.0
"""Work a job does once more after a stop, on one node and on several: to save itself and to load again."""
LEAST_SECONDS = 1e-3
"""An estimate of nothing is none."""

Progress = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class Result:
    """One contender's run."""

    contender: Contender
    measures: Measures
    recorder: Recorder


def play(
    jobs: list[Job],
    cluster: Cluster,
    contender: Contender,
    *,
    oracle: bool = False,
    progress: Progress = lambda _: None,
) -> Result:
    """Simulate to the end of the last job; `progress` hears now and then how many have come."""
    world = World(restart_seconds=_restart_seconds)
    recorder = Recorder(world.engine.state)
    _open(world, cluster, contender)
    world.listeners.append(recorder.hear)
    foresight: _Foresight = _Blind()
    if contender.foresight is Foresight.HISTORY:
        foresight = _Oracle() if oracle else _Learner(world, jobs)
    world.feed(_submissions(world, jobs, cluster, contender, foresight, progress))
    world.run_out()
    return Result(contender, measure(recorder, cluster.gpus), recorder)


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


def _open(world: World, cluster: Cluster, contender: Contender) -> None:
    orders: list[command.Command] = [
        command.FoundYard("simulated"),
        command.SetSplit(Split(0.0, 1.0)),
        command.ChangeSettings(contender.settings),
        *(command.JoinNode(node) for node in cluster.nodes),
    ]
    for order in orders:
        answer = world.tell(order)
        assert not isinstance(answer, Refusal), answer.sentence()


def _submissions(
    world: World,
    jobs: list[Job],
    cluster: Cluster,
    contender: Contender,
    foresight: "_Foresight",
    progress: Progress,
) -> Iterator[Due]:
    largest = {pool: cluster.gpus_of(pool)[1] for pool in {job.pool for job in jobs}}
    preemption = Preemption.CHECKPOINT if contender.settings.preemption else Preemption.NEVER
    for place, job in enumerate(jobs, start=1):
        task = TaskId(place)
        world.runs[task] = Run(job.seconds)
        spec = TaskSpec(
            TENANT,
            resources(job, largest[job.pool]),
            name=job.name,
            user=job.user,
            command="true",
            preemption=preemption,
            estimate=foresight.estimate(job),
        )
        yield job.submit, command.SubmitTasks((NewTask(task, spec),))
        if place % 1000 == 0:
            progress(place)
    progress(len(jobs))


def _restart_seconds(spec: TaskSpec) -> float:
    return RESTART_SECONDS if spec.resources.nodes == 1 else RESTART_SECONDS_GANG


# --- foresight --------------------------------------------------------------------------------------------------------


class _Foresight(Protocol):
    def estimate(self, job: Job) -> Estimate | None:
        """How long it is thought to run, when it is submitted."""
        ...


class _Blind:
    """Nobody knows."""

    def estimate(self, job: Job) -> Estimate | None:  # noqa: ARG002
        return None


class _Oracle:
    """The truth."""

    def estimate(self, job: Job) -> Estimate | None:
        seconds = max(job.seconds, LEAST_SECONDS)
        return Estimate(seconds, seconds, seconds)


class _Learner:
    """What had ended by then, as the live scheduler would have learnt it."""

    def __init__(self, world: World, jobs: list[Job]) -> None:
        self._history = History()
        self._jobs = jobs
        world.listeners.append(self._hear)

    def estimate(self, job: Job) -> Estimate | None:
        return self._history.estimate(_asked(job))

    def _hear(self, _at: float, facts: Sequence[fact.Event]) -> None:
        for event in facts:
            if isinstance(event, fact.TaskEnded):
                job = self._jobs[event.task - 1]
                self._history.observe(_asked(job), job.seconds)


def _asked(job: Job) -> Asked:
    return Asked(job.user, "", job.name, job.gpus, job.pool)
