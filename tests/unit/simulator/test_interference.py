"""Tasks that share a GPU: each slows the others down, and ends accordingly."""

from pathlib import Path

import pytest

from gpuyard.core.domain import commands as command
from gpuyard.core.domain import events
from gpuyard.core.domain.settings import Settings
from gpuyard.core.domain.task import NewTask, Resources, Share, TaskSpec
from gpuyard.core.domain.tenant import QuotaMode, Split
from gpuyard.core.domain.values import Preemption, TaskClass, TaskId, TenantId
from gpuyard.simulator.clusters import parse_cluster
from gpuyard.simulator.interference import by_demand, by_pairs, read_pairs
from gpuyard.simulator.measures import SimulationMeasures
from gpuyard.simulator.policy_variants import policy_variant
from gpuyard.simulator.run import simulate_policy
from gpuyard.simulator.workloads.job import Job
from gpuyard.simulator.workloads.on_cluster import JobsOnCluster
from gpuyard.simulator.workloads.trace import WrongTrace
from gpuyard.simulator.world import TaskBehavior, World
from gpuyard.testing import node

HALF, QUARTER = Share(500), Share(250)


def spec(share: Share | None, name: str = "", **more: object) -> TaskSpec:
    resources = Resources(gpus=0 if share else 1, share=share)
    return TaskSpec(TenantId("all"), resources, name=name, command="true", **more)  # type: ignore[arg-type]


class Shared:
    """A world with one GPU, in which two tasks that share it have half the speed."""

    def __init__(self, cards: int = 1, keeps: float = 0.5) -> None:
        self.world = World(slowed_by=lambda *_: keeps)
        self.ends: dict[int, float] = {}
        self.world.listeners.append(self._hear)
        self.world.tell(command.SetSplit(Split(0.0, 1.0)))
        self.world.tell(command.JoinNode(node("a", gpus=cards)))

    def _hear(self, at: float, new_events: object) -> None:
        assert isinstance(new_events, list)
        self.ends |= {it.task: at for it in new_events if isinstance(it, events.TaskEnded)}

    def submits(self, number: int, seconds: float, asked: TaskSpec) -> None:
        self.world.runs[TaskId(number)] = TaskBehavior(seconds)
        self.world.tell(command.SubmitTasks((NewTask(TaskId(number), asked),)))


def test_two_tasks_on_a_shared_gpu_take_twice_as_long() -> None:
    cluster = Shared()
    cluster.submits(1, 100.0, spec(HALF))
    cluster.submits(2, 100.0, spec(HALF))
    cluster.world.run_to_end()
    assert cluster.ends == {1: 200.0, 2: 200.0}


def test_when_one_ends_early_the_other_speeds_up() -> None:
    cluster = Shared()
    cluster.submits(1, 100.0, spec(HALF))
    cluster.submits(2, 30.0, spec(HALF))
    cluster.world.run_to_end()
    assert cluster.ends == {2: 60.0, 1: 60.0 + 70.0}


def test_when_one_arrives_later_only_the_rest_is_slow() -> None:
    cluster = Shared()
    cluster.submits(1, 100.0, spec(HALF))
    cluster.world.advance(80.0)
    cluster.submits(2, 100.0, spec(HALF))
    cluster.world.run_to_end()
    assert cluster.ends == {1: 80.0 + 40.0, 2: 120.0 + 80.0}


def test_beside_several_tasks_the_slowdowns_multiply() -> None:
    cluster = Shared()
    for number in (1, 2, 3):
        cluster.submits(number, 100.0, spec(QUARTER))
    cluster.world.run_to_end()
    assert cluster.ends == dict.fromkeys((1, 2, 3), 400.0)


def test_a_task_alone_on_a_gpu_is_not_slowed() -> None:
    cluster = Shared(cards=2)
    cluster.submits(1, 100.0, spec(None))
    cluster.submits(2, 100.0, spec(HALF))
    cluster.world.run_to_end()
    assert cluster.ends == {1: 100.0, 2: 100.0}


def test_a_cancelled_task_speeds_its_neighbor_up() -> None:
    cluster = Shared()
    cluster.submits(1, 100.0, spec(HALF))
    cluster.submits(2, 100.0, spec(HALF))
    cluster.world.advance(60.0)
    cluster.world.tell(command.CancelTask(TaskId(1)))
    cluster.world.run_to_end()
    assert cluster.ends == {1: 60.0, 2: 60.0 + 70.0}


def test_a_preempted_task_resumes_with_the_rest_of_its_slow_run() -> None:
    cluster = Shared()
    cluster.world.tell(command.SetSplit(Split(1.0, 0.0, QuotaMode.BORROW)))
    cluster.world.tell(command.ChangeSettings(Settings(preemption_min_run_seconds=0.0)))
    cluster.submits(1, 100.0, spec(HALF, preemption=Preemption.CHECKPOINT, priority=10))
    cluster.submits(2, 100.0, spec(HALF, preemption=Preemption.CHECKPOINT, priority=10))
    cluster.world.advance(40.0)
    cluster.submits(3, 1000.0, spec(None, priority=90, task_class=TaskClass.ONLINE))
    cluster.world.run_to_end()
    assert cluster.ends == {3: 1040.0, 1: 1040.0 + 160.0, 2: 1040.0 + 160.0}


def played(*jobs: Job) -> SimulationMeasures:
    return simulate_policy(JobsOnCluster(jobs, parse_cluster("1x1")), policy_variant("fifo+backfill")).measures


def test_slow_time_counts_as_time_with_gpus() -> None:
    half = {"gpus": 1, "fraction_milli": 500}
    found = played(Job(0.0, 100.0, **half), Job(0.0, 100.0, **half), Job(0.0, 10.0, **half))  # type: ignore[arg-type]
    assert found.makespan_s == pytest.approx(125.0 + 10.0)
    assert found.avg_queue_s == pytest.approx(125 / 3)
    assert found.utilization == pytest.approx(260 / 2 / 135)


def test_the_more_the_other_requests_the_slower_a_task_is() -> None:
    alone = [by_demand(spec(HALF), spec(other)) for other in (QUARTER, HALF, None, Share(0, 1000))]
    assert alone == [1 / 1.125, 1 / 1.25, 1 / 1.5, 1 / 1.5]


def test_measured_pairs_are_used_and_others_follow_demand(tmp_path: Path) -> None:
    path = tmp_path / "pairs.csv"
    path.write_text("name,beside,speed\nbert,resnet,0.7\nresnet,bert,0.4\n")
    keeps = by_pairs(read_pairs(path))
    bert, resnet = spec(HALF, "bert"), spec(HALF, "resnet")
    assert (keeps(bert, resnet), keeps(resnet, bert), keeps(bert, bert)) == (0.7, 0.4, 0.8)


@pytest.mark.parametrize(
    ("rows", "sentence"),
    [
        ("a,b,0\n", "line 2: speed is 0; it must be between 0.001 and 10."),
        ("a,b,1\na,b,1\n", "line 3: a beside b occurs twice."),
    ],
)
def test_invalid_pairs_are_named_with_their_line(tmp_path: Path, rows: str, sentence: str) -> None:
    path = tmp_path / "pairs.csv"
    path.write_text("name,beside,speed\n" + rows)
    with pytest.raises(WrongTrace) as wrong:
        read_pairs(path)
    assert str(wrong.value).endswith(sentence)
