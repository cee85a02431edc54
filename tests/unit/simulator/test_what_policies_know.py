"""A simulated policy knows what it would know in a live cluster, and nothing of the future."""

from collections.abc import Iterator, Sequence
from random import Random

import pytest
from msgspec.structs import replace

from gpuyard.core.domain import events
from gpuyard.core.domain.causes import Cause, CauseKind
from gpuyard.core.domain.task import TaskSpec
from gpuyard.core.domain.values import TaskId, TaskStatus
from gpuyard.learn.estimates.history import features_of
from gpuyard.live.control_plane.prediction.runtime_estimator import RuntimeEstimator
from gpuyard.live.control_plane.views import TaskView
from gpuyard.simulator.clusters import parse_cluster
from gpuyard.simulator.policy_variants import POLICY_VARIANTS, PolicyVariant, policy_variant
from gpuyard.simulator.run import simulate_policy
from gpuyard.simulator.workloads.arrival import TimedInput
from gpuyard.simulator.workloads.generated import GeneratedJobs
from gpuyard.simulator.workloads.job import Job
from gpuyard.simulator.workloads.on_cluster import JobsOnCluster
from gpuyard.simulator.world import World

CLUSTER = parse_cluster("2x8")
Heard = list[tuple[float, events.Event]]
NOT_ADVISED = sorted(set(POLICY_VARIANTS) - {"dqn"})


def jobs(count: int, seed: int = 1, load: float = 1.0) -> list[Job]:
    return list(GeneratedJobs(count, CLUSTER, lambda: Random(seed).random, load))


class AsSubmitted(JobsOnCluster):
    """Jobs that are told apart by what a live cluster knows of them: their specification."""

    __slots__ = ()

    def arrivals(self, policy_variant: PolicyVariant) -> Iterator[TimedInput]:
        for at, coming in JobsOnCluster.arrivals(self, policy_variant):
            assert isinstance(coming, tuple)
            yield at, tuple(arrival._replace(features=features_of(arrival.spec)) for arrival in coming)


def simulated(workload: JobsOnCluster, policy: str = "default") -> Heard:
    heard: Heard = []

    def hear(at: float, new: Sequence[events.Event]) -> None:
        heard.extend((at, event) for event in new)

    def watch(world: World) -> None:
        world.listeners.append(hear)

    simulate_policy(workload, policy_variant(policy), watch=watch)
    return heard


def test_the_simulator_tells_a_policy_what_the_live_scheduler_would_tell() -> None:
    live, views = RuntimeEstimator(), dict[TaskId, TaskView]()
    compared = 0
    for at, event in simulated(AsSubmitted(jobs(300), CLUSTER, preemptible=False)):
        if isinstance(event, events.TaskSubmitted):
            asked = replace(event.spec, estimate=None, remaining_time_levels=(), run_level=None, unpredictable=False)
            asked = replace(asked, kind_varies=False)
            assert _told(live.estimated(asked, at)) == pytest.approx(_told(event.spec))
            compared += event.spec.estimate is not None and event.spec.run_level is not None
            views[event.task] = TaskView(event.task, event.spec, at)
        elif isinstance(event, events.AttemptStarted):
            views[event.task].started_at = at
            live.hear(event, views[event.task], at)
        elif isinstance(event, events.AttemptEnded):
            live.hear(event, views[event.task], at)
        elif isinstance(event, events.TaskEnded):
            view = views.pop(event.task)
            assert view.started_at is not None
            view.run_seconds, view.status, view.cause = at - view.started_at, TaskStatus.SUCCESS, SUCCEEDED
            live.ended(view, at)
    assert compared > 200


SUCCEEDED = Cause(CauseKind.SUCCEEDED)


def _told(spec: TaskSpec) -> list[float]:
    estimate = spec.estimate
    seconds = [] if estimate is None else [estimate.seconds, estimate.low_seconds, estimate.high_seconds, estimate.runs]
    level = -1.0 if spec.run_level is None else spec.run_level
    return [level, spec.unpredictable, spec.kind_varies, *seconds, *spec.remaining_time_levels]


@pytest.mark.parametrize("preemptible", [True, False])
@pytest.mark.parametrize("policy", NOT_ADVISED)
def test_run_times_of_jobs_that_have_not_ended_change_nothing_before(policy: str, preemptible: bool) -> None:
    drawn = jobs(120)
    before = simulated(JobsOnCluster(drawn, CLUSTER, preemptible=preemptible), policy)
    ends = {event.task: at for at, event in before if isinstance(event, events.TaskEnded)}
    then = sorted(ends.values())[len(ends) // 2]
    changed = [
        job if ends[TaskId(place)] <= then else job._replace(seconds=3 * job.seconds + 777)
        for place, job in enumerate(drawn, start=1)
    ]
    after = simulated(JobsOnCluster(changed, CLUSTER, preemptible=preemptible), policy)
    assert [fact for fact in after if fact[0] < then] == [fact for fact in before if fact[0] < then]


@pytest.mark.parametrize("preemptible", [True, False])
def test_default_is_not_worse_than_fifo_with_backfill(preemptible: bool) -> None:
    found = dict.fromkeys(("default", "fifo+backfill"), 0.0)
    for seed in range(5):
        workload = JobsOnCluster(jobs(250, seed, load=0.9), CLUSTER, preemptible=preemptible)
        for policy in found:
            measures = simulate_policy(workload, policy_variant(policy)).measures
            assert measures.jobs == 250, "every job starts and ends"
            found[policy] += measures.avg_jct_s
    assert found["default"] < found["fifo+backfill"]
