"""Stories of tasks that are suspended to host memory and resumed, with reports that are late, repeated or missing."""

import pytest

from gpuyard.core.domain import commands as command
from gpuyard.core.domain.causes import Cause, CauseKind
from gpuyard.core.domain.events import AttemptStopping, AttemptSuspending, ReservationDropped, TaskRequeued
from gpuyard.core.domain.node import Gpu, NodeSpec
from gpuyard.core.domain.refusals import StaleReport, SuspensionFailedBefore
from gpuyard.core.domain.values import NodeId, Outcome, Preemption, TaskId, TaskStatus
from gpuyard.testing import ClusterStory, gang, node, task


@pytest.fixture
def cluster() -> ClusterStory:
    return ClusterStory()


def test_a_report_of_an_earlier_suspension_frees_nothing(cluster: ClusterStory) -> None:
    cluster.world.stop_seconds = 20.0
    cluster.has_nodes(1, gpus_each=4)
    cluster.submits(task("moves", gpus=4, preemption=Preemption.SUSPEND))
    number = cluster.numbers["moves"]
    cluster.tells(command.SuspendTask(number))
    cluster.passes(20)
    cluster.tells(command.ResumeTask(number))
    cluster.submits(task("waits", gpus=4))
    cluster.tells(command.SuspendTask(number))
    assert cluster.tells(command.ReportSuspended(number, 1, 1)) == StaleReport(number, 1)
    assert not cluster.is_running("waits")
    cluster.passes(20)
    assert cluster.is_running("waits")
    rounds = [event.round for event in cluster.events_of("moves") if isinstance(event, AttemptSuspending)]
    assert rounds == [1, 2]


def test_a_task_that_fails_to_suspend_keeps_running_and_is_not_suspended_again(cluster: ClusterStory) -> None:
    cluster.world.stop_seconds = 20.0
    cluster.has_nodes(1, gpus_each=4)
    cluster.submits(task("stubborn", gpus=4, priority=0, preemption=Preemption.SUSPEND, timeout_seconds=500.0))
    number = cluster.numbers["stubborn"]
    cluster.passes(100)
    cluster.submits(task("urgent", gpus=4, priority=90))
    cluster.passes(10)
    cluster.tells(command.ReportNotSuspended(number, 1, 1, "The driver is too old."))
    assert cluster.is_running("stubborn")
    dropped = [event.cause for event in cluster.events_of("urgent") if isinstance(event, ReservationDropped)]
    assert dropped == [Cause(CauseKind.NOT_SUSPENDED, task=number)]
    cluster.passes(300)
    assert cluster.is_running("stubborn")
    answer = cluster.tells(command.SuspendTask(number))
    assert answer == SuspensionFailedBefore(number, "The driver is too old.")
    assert "The driver is too old." in answer.sentence()
    cluster.passes(89)
    assert cluster.is_running("stubborn")
    cluster.passes(1)
    assert not cluster.is_running("stubborn"), "the time in which it was to be moved counts: it ran all along"
    cluster.passes(20)
    assert cluster.status("stubborn") is TaskStatus.TIMEOUT


def test_suspended_parts_of_a_gang_resume_when_one_part_could_not_be_suspended(cluster: ClusterStory) -> None:
    cluster.world.stop_seconds = 1000.0
    cluster.has_nodes(2, gpus_each=2)
    cluster.submits(gang("train", members=2, gpus_each=2, preemption=Preemption.SUSPEND))
    number, nodes = cluster.numbers["train"], cluster.nodes_of("train")
    cluster.tells(command.SuspendTask(number))
    cluster.tells(command.ReportSuspended(number, 1, 1, NodeId(nodes[0])))
    cluster.tells(command.ReportNotSuspended(number, 1, 1, "No memory is left.", NodeId(nodes[1])))
    assert cluster.is_running("train")
    assert cluster.gpus_in_use() == 4
    cluster.tells(command.ReportResumed(number, 1, 1, NodeId(nodes[0])))
    assert cluster.is_running("train")
    cluster.tells(command.ReportNotResumed(number, 1, 1, "It is gone.", NodeId(nodes[0])))
    assert not cluster.is_running("train")


def test_a_task_that_fails_to_resume_starts_over(cluster: ClusterStory) -> None:
    cluster.has_nodes(1, gpus_each=4)
    cluster.submits(task("gone", preemption=Preemption.SUSPEND))
    number = cluster.numbers["gone"]
    cluster.tells(command.SuspendTask(number))
    cluster.world.start_seconds = 50.0
    cluster.tells(command.ResumeTask(number))
    cluster.tells(command.ReportNotResumed(number, 1, 1, "Host memory was lost."))
    (requeued,) = [event for event in cluster.events_of("gone") if isinstance(event, TaskRequeued)]
    assert requeued.cause == Cause(CauseKind.ATTEMPT_LOST, node=NodeId("node-1"))
    cluster.passes(50)
    assert cluster.is_running("gone")
    assert cluster.state.tasks[number].attempts == 2


def test_a_gang_is_suspended_when_its_last_part_is(cluster: ClusterStory) -> None:
    cluster.world.stop_seconds = cluster.world.start_seconds = 1000.0
    cluster.has_nodes(2, gpus_each=2)
    cluster.submits(gang("train", members=2, gpus_each=2, preemption=Preemption.SUSPEND))
    number, nodes = cluster.numbers["train"], cluster.nodes_of("train")
    cluster.passes(1000)
    cluster.tells(command.SuspendTask(number))
    cluster.tells(command.ReportSuspended(number, 1, 1, NodeId(nodes[0])))
    assert cluster.gpus_in_use() == 4
    cluster.tells(command.ReportSuspended(number, 1, 1, NodeId(nodes[1])))
    assert cluster.is_suspended("train")
    assert cluster.gpus_in_use() == 0
    cluster.tells(command.ResumeTask(number))
    for where in nodes:
        assert not cluster.is_running("train")
        cluster.tells(command.ReportResumed(number, 1, 1, NodeId(where)))
    assert cluster.is_running("train")


def test_one_part_of_a_gang_that_fails_to_resume_ends_all_of_it(cluster: ClusterStory) -> None:
    cluster.has_nodes(2, gpus_each=2)
    cluster.submits(gang("train", members=2, gpus_each=2, preemption=Preemption.SUSPEND))
    number, nodes = cluster.numbers["train"], cluster.nodes_of("train")
    cluster.tells(command.SuspendTask(number))
    cluster.world.start_seconds = cluster.world.stop_seconds = 10.0
    cluster.tells(command.ResumeTask(number))
    cluster.tells(command.ReportNotResumed(number, 1, 1, "Host memory was lost.", NodeId(nodes[1])))
    assert any(isinstance(event, AttemptStopping) for event in cluster.events_of("train"))
    assert cluster.gpus_in_use() == 4
    cluster.passes(10)
    assert cluster.state.tasks[number].attempts == 2


def test_extending_a_lease_prolongs_it(cluster: ClusterStory) -> None:
    cluster.has_nodes(1, gpus_each=1)
    cluster.submits(task("lease", command=None, timeout_seconds=100.0, deadline=1000.0))
    cluster.passes(90)
    cluster.tells(command.ExtendTask(TaskId(1), timeout_seconds=300.0))
    cluster.passes(200)
    assert cluster.is_running("lease")
    cluster.passes(10)
    assert cluster.status("lease") is TaskStatus.TIMEOUT


def test_extending_a_deadline_keeps_a_waiting_task(cluster: ClusterStory) -> None:
    cluster.has_nodes(1, gpus_each=1)
    cluster.submits(task("blocks", runs_for=150))
    cluster.submits(task("late", deadline=100.0))
    cluster.tells(command.ExtendTask(cluster.numbers["late"], deadline=200.0))
    cluster.passes(160)
    assert cluster.is_running("late")
    cluster.passes(40)
    assert cluster.status("late") is TaskStatus.TIMEOUT


# --- where a suspended task can go on ---------------------------------------------------------------------------------


def test_a_suspended_task_resumes_only_on_gpus_as_large_as_it_needs(cluster: ClusterStory) -> None:
    cluster.has_node(NodeSpec(NodeId("a"), (Gpu("A100", 81_920), Gpu("A100", 40_960)), 8, 1000))
    cluster.submits(task("big", gpu_memory_mib=60_000, preemption=Preemption.SUSPEND))
    assert cluster.gpus_of("big") == [("a", (0,))]
    cluster.tells(command.SuspendTask(cluster.numbers["big"]))
    cluster.submits(task("other", gpu_memory_mib=60_000))
    cluster.tells(command.ResumeTask(cluster.numbers["big"]))
    assert cluster.is_suspended("big")
    cluster.finishes("other")
    assert cluster.gpus_of("big") == [("a", (0,))]


def test_a_suspended_gang_over_two_models_resumes_in_place(cluster: ClusterStory) -> None:
    cluster.has_node(node("a", gpus=2, model="A100"))
    cluster.has_node(node("h", gpus=2, model="H100"))
    cluster.submits(gang("mixed", members=2, gpus_each=2, preemption=Preemption.SUSPEND))
    cluster.tells(command.SuspendTask(cluster.numbers["mixed"]))
    cluster.tells(command.ResumeTask(cluster.numbers["mixed"]))
    assert cluster.is_running("mixed")


def test_a_better_task_that_needs_the_memory_of_a_suspended_one_does_not_block_the_node(cluster: ClusterStory) -> None:
    cluster.has_node(node("a", gpus=4, memory_mib=1000))
    cluster.submits(
        task("low", gpus=4, memory_mib=600, priority=0, preemption=Preemption.SUSPEND, estimate=600, runs_for=600)
    )
    cluster.passes(100)
    cluster.submits(task("urgent", gpus=4, priority=90, runs_for=50))
    cluster.passes(1)
    cluster.submits(task("mid", gpus=4, memory_mib=800, priority=50, estimate=10, runs_for=10))
    cluster.passes(100)
    assert cluster.is_running("low")
    cluster.passes(1000)
    assert [cluster.status(name) for name in ("low", "mid")] == [TaskStatus.SUCCESS] * 2


def test_a_task_that_fails_while_it_is_suspended_has_failed(cluster: ClusterStory) -> None:
    cluster.world.stop_seconds = 20.0
    cluster.has_nodes(1, gpus_each=1)
    cluster.submits(task("fails", preemption=Preemption.SUSPEND))
    cluster.tells(command.SuspendTask(TaskId(1)))
    cluster.tells(command.ReportEnded(TaskId(1), 1, Outcome.FAILED, 3, NodeId("node-1")))
    assert cluster.status("fails") is TaskStatus.FAILED
