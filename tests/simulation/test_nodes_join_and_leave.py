"""Stories of nodes that are lost, return, change and leave, and of the attempts they may still run."""

import pytest

from gpuyard.core.domain import commands as command
from gpuyard.core.domain.causes import Cause, CauseKind
from gpuyard.core.domain.events import (
    AttemptEnded,
    NodeChanged,
    NodeReturned,
    OrphanedAttemptEnded,
    TaskEnded,
    TaskRequeued,
)
from gpuyard.core.domain.node import Gpu, NodeSpec
from gpuyard.core.domain.placement import Slice
from gpuyard.core.domain.refusals import GangsElsewhere, NodeChangedInUse, NodeInUse, Refusal
from gpuyard.core.domain.task import NewTask
from gpuyard.core.domain.tenant import QuotaMode, Split
from gpuyard.core.domain.values import AttemptRef, GpuHealth, NodeId, OnLost, Outcome, Preemption, TaskId, TaskStatus
from gpuyard.core.engine import snapshot
from gpuyard.core.engine.engine import Engine
from gpuyard.core.engine.phases import Placed, Waiting
from gpuyard.testing import ClusterStory, gang, node, task


@pytest.fixture
def cluster() -> ClusterStory:
    return ClusterStory()


def causes(cluster: ClusterStory, name: str) -> list[Cause]:
    return [event.cause for event in cluster.events_of(name) if isinstance(event, TaskRequeued)]


# --- what a lost node may still run -----------------------------------------------------------------------------------


def test_attempts_a_returned_node_still_runs_keep_their_gpus_until_they_end(cluster: ClusterStory) -> None:
    cluster.has_node(node("a", gpus=4))
    cluster.submits(task("old", gpus=3, cpus=8))
    cluster.loses("a")
    cluster.gets_back("a", "old")
    assert not cluster.is_running("old")
    assert cluster.gpus_in_use() == 0
    cluster.submits(task("small"))
    assert cluster.is_running("small")
    cluster.tells(command.ReportEnded(cluster.numbers["old"], 1, Outcome.STOPPED, node=NodeId("a")))
    assert cluster.is_running("old")
    assert cluster.state.tasks[cluster.numbers["old"]].attempts == 2
    assert not cluster.state.orphaned_attempts


def test_gpus_of_attempts_a_returned_node_no_longer_runs_are_free_at_once(cluster: ClusterStory) -> None:
    cluster.has_node(node("a", gpus=4))
    cluster.submits(task("one", gpus=2), task("two", gpus=2))
    cluster.loses("a")
    cluster.gets_back("a", "two")
    assert cluster.running() == ["one"]
    returned = [event for _, event in cluster.events if isinstance(event, NodeReturned)]
    assert returned == [NodeReturned(NodeId("a"), (AttemptRef(cluster.numbers["two"], 1),))]


def test_a_node_that_registers_again_reports_which_attempts_are_gone(cluster: ClusterStory) -> None:
    spec = node("a", gpus=4)
    cluster.has_node(spec)
    cluster.submits(task("old", gpus=4))
    cluster.loses("a")
    cluster.tells(command.JoinNode(spec, (AttemptRef(cluster.numbers["old"], 1),)))
    assert not cluster.is_running("old")
    cluster.tells(command.JoinNode(spec))
    assert cluster.is_running("old")
    assert any(isinstance(event, OrphanedAttemptEnded) for _, event in cluster.events)


def test_possible_remains_survive_a_restart_of_the_scheduler_and_leave_with_the_node(cluster: ClusterStory) -> None:
    cluster.has_node(node("a", gpus=4, memory_mib=100))
    cluster.submits(task("old", gpus=2, memory_mib=60))
    cluster.loses("a")
    cluster.gets_back("a", "old")
    restarted = Engine(snapshot.load(snapshot.dump(cluster.state)))
    assert restarted.state.index.hosts[NodeId("a")].device_groups[0].free == 2
    assert restarted.state.index.hosts[NodeId("a")].memory_free == 40
    assert not isinstance(restarted.handle(command.RemoveNode(NodeId("a")), 9.0), Refusal)
    assert not restarted.state.orphaned_attempts


def test_a_suspended_task_leaves_only_its_memory_behind(cluster: ClusterStory) -> None:
    cluster.has_node(node("a", gpus=2, memory_mib=100))
    cluster.submits(task("sleeps", gpus=2, memory_mib=60, preemption=Preemption.SUSPEND))
    cluster.tells(command.SuspendTask(cluster.numbers["sleeps"]))
    cluster.loses("a")
    cluster.gets_back("a", "sleeps")
    cluster.submits(task("other", gpus=2, memory_mib=40))
    assert cluster.is_running("other")
    assert cluster.state.index.hosts[NodeId("a")].memory_free == 0


def test_a_part_of_a_gang_on_a_node_that_reconnects_is_waited_for(cluster: ClusterStory) -> None:
    cluster.world.stop_seconds = 50.0
    cluster.has_nodes(2, gpus_each=2)
    cluster.submits(gang("train", members=2, gpus_each=2))
    lost, alive = cluster.nodes_of("train")
    cluster.loses(lost)
    cluster.gets_back(lost, "train")
    cluster.tells(command.ReportEnded(cluster.numbers["train"], 1, Outcome.STOPPED, node=NodeId(alive)))
    (ended,) = [event for event in cluster.events_of("train") if isinstance(event, AttemptEnded)]
    assert ended.orphaned_on == (lost,)
    assert causes(cluster, "train") == [Cause(CauseKind.NODE_LOST, node=NodeId(lost))]
    assert not cluster.is_running("train")
    cluster.tells(command.ReportEnded(cluster.numbers["train"], 1, Outcome.STOPPED, node=NodeId(lost)))
    assert cluster.is_running("train")


def test_a_part_of_a_gang_that_is_gone_when_its_node_returns_leaves_nothing(cluster: ClusterStory) -> None:
    cluster.world.stop_seconds = 50.0
    cluster.has_nodes(2, gpus_each=2)
    cluster.submits(gang("train", members=2, gpus_each=2))
    lost, _ = cluster.nodes_of("train")
    cluster.loses(lost)
    cluster.gets_back(lost)
    cluster.passes(50)
    assert cluster.is_running("train")


# --- tasks and lost nodes ---------------------------------------------------------------------------------------------


def test_cancelling_a_task_that_waits_for_its_lost_node_ends_it_at_once(cluster: ClusterStory) -> None:
    cluster.has_nodes(1, gpus_each=2)
    cluster.submits(task("patient", gpus=2, on_lost=OnLost.WAIT))
    cluster.loses("node-1")
    cluster.cancels("patient")
    assert cluster.status("patient") is TaskStatus.CANCELLED
    cluster.gets_back("node-1", "patient")
    cluster.submits(task("next"))
    assert not cluster.is_running("next")
    cluster.tells(command.ReportEnded(cluster.numbers["patient"], 1, Outcome.STOPPED, node=NodeId("node-1")))
    assert cluster.is_running("next")


def test_a_cancelled_gang_that_waits_for_its_node_is_stopped_on_the_others(cluster: ClusterStory) -> None:
    cluster.world.stop_seconds = 5.0
    cluster.has_nodes(2, gpus_each=2)
    cluster.submits(gang("train", members=2, gpus_each=2, on_lost=OnLost.WAIT))
    lost, _ = cluster.nodes_of("train")
    cluster.loses(lost)
    cluster.cancels("train")
    cluster.passes(5)
    assert cluster.status("train") is TaskStatus.CANCELLED
    assert list(cluster.state.orphaned_attempts) == [lost]


def test_a_task_that_is_being_cancelled_does_not_wait_for_its_lost_node(cluster: ClusterStory) -> None:
    cluster.world.stop_seconds = 50.0
    cluster.has_nodes(1, gpus_each=2)
    cluster.submits(task("patient", on_lost=OnLost.WAIT))
    cluster.cancels("patient")
    cluster.loses("node-1")
    assert cluster.status("patient") is TaskStatus.CANCELLED


def test_a_repeatedly_lost_task_is_retried_with_growing_delays(cluster: ClusterStory) -> None:
    cluster.has_nodes(1, gpus_each=1)
    cluster.submits(task("unlucky"))
    number = cluster.numbers["unlucky"]
    for delay in (0, 2, 4, 8):
        cluster.tells(command.ReportEnded(number, cluster.state.tasks[number].attempts, Outcome.LOST))
        assert cluster.is_running("unlucky") == (delay == 0)
        cluster.passes(delay)
        assert cluster.is_running("unlucky")
    cluster.tells(command.ReportEnded(number, cluster.state.tasks[number].attempts, Outcome.SUCCEEDED, 0))
    assert cluster.status("unlucky") is TaskStatus.SUCCESS


def test_a_node_that_failed_to_start_a_task_is_tried_last_the_next_time(cluster: ClusterStory) -> None:
    cluster.has_nodes(2, gpus_each=4)
    cluster.submits(task("picky", retries=3), task("filler", gpus=2))
    number, first = cluster.numbers["picky"], cluster.nodes_of("picky")[0]
    cluster.tells(command.ReportEnded(number, 1, Outcome.NOT_LAUNCHED, node=NodeId(first)))
    assert not cluster.is_running("picky")
    assert causes(cluster, "picky") == [Cause(CauseKind.NOT_LAUNCHED, node=NodeId(first))]
    cluster.passes(2)
    (second,) = cluster.nodes_of("picky")
    assert second != first
    cluster.cordons(first)
    cluster.tells(command.ReportEnded(number, 2, Outcome.NOT_LAUNCHED, node=NodeId(second)))
    cluster.passes(4)
    assert cluster.nodes_of("picky") == (second,)


# --- nodes that change ------------------------------------------------------------------------------------------------


def test_a_node_with_new_details_is_updated_under_its_tasks(cluster: ClusterStory) -> None:
    cluster.has_node(node("a", gpus=2, cpus=8))
    cluster.submits(task("runs", gpus=1, cpus=4), task("wants", gpus=1, labels=(("driver", "571"),), cpus=10))
    cluster.cordons("a", drain=True)
    cluster.gpu_becomes("a", 1, GpuHealth.OFFLINE)
    cluster.tells(command.JoinNode(node("a", gpus=2, cpus=16, driver="571")))
    assert cluster.is_running("runs")
    host = cluster.state.index.hosts[NodeId("a")]
    assert (host.cordoned, host.draining, host.health, host.cpus_free) == (True, True, {1: GpuHealth.OFFLINE}, 12)
    cluster.uncordons("a")
    assert not cluster.is_running("wants")
    cluster.gpu_becomes("a", 1, GpuHealth.OK)
    assert cluster.running() == ["runs", "wants"]
    assert any(isinstance(event, NodeChanged) for _, event in cluster.events)


def test_an_idle_node_that_returns_with_other_gpus_stays_cordoned_and_keeps_its_broken_gpus(
    cluster: ClusterStory,
) -> None:
    def cards(*names: str) -> NodeSpec:
        return NodeSpec(NodeId("a"), tuple(Gpu("A100", 40_960, name) for name in names), 8, 1000)

    cluster.has_node(cards("x", "y"))
    cluster.gpu_becomes("a", 1, GpuHealth.OFFLINE)
    cluster.cordons("a", drain=True)
    cluster.tells(command.JoinNode(cards("z", "x", "y")))
    host = cluster.state.index.hosts[NodeId("a")]
    assert (host.cordoned, host.draining, host.health) == (True, True, {2: GpuHealth.OFFLINE})


def test_a_node_whose_gpus_changed_is_refused_while_it_holds_attempts(cluster: ClusterStory) -> None:
    cluster.has_node(node("a", gpus=2))
    cluster.submits(task("old", gpus=2))
    cluster.loses("a")
    other = node("a", gpus=4)
    answer = cluster.tells(command.JoinNode(other, (AttemptRef(cluster.numbers["old"], 1),)))
    assert answer == NodeChangedInUse(NodeId("a"))
    cluster.tells(command.JoinNode(other))
    assert cluster.is_running("old")
    assert not cluster.state.orphaned_attempts


def test_a_busy_node_is_not_removed_and_a_lost_one_is(cluster: ClusterStory) -> None:
    cluster.has_nodes(1, gpus_each=2)
    cluster.submits(task("fenced", on_lost=OnLost.FENCE), task("patient", on_lost=OnLost.WAIT))
    both = (cluster.numbers["fenced"], cluster.numbers["patient"])
    assert cluster.tells(command.RemoveNode(NodeId("node-1"))) == NodeInUse(NodeId("node-1"), both)
    cluster.loses("node-1")
    assert not isinstance(cluster.tells(command.RemoveNode(NodeId("node-1"))), Refusal)
    assert [cluster.status(name) for name in ("fenced", "patient")] == [TaskStatus.PENDING] * 2


def test_a_lost_node_is_not_removed_under_a_gang_that_runs_elsewhere(cluster: ClusterStory) -> None:
    cluster.has_nodes(2, gpus_each=2)
    cluster.submits(gang("train", members=2, gpus_each=2, on_lost=OnLost.WAIT))
    lost, _ = cluster.nodes_of("train")
    cluster.loses(lost)
    answer = cluster.tells(command.RemoveNode(NodeId(lost)))
    assert answer == GangsElsewhere(NodeId(lost), (TaskId(1),))


def test_a_preempting_task_is_tried_again_when_a_full_node_is_uncordoned(cluster: ClusterStory) -> None:
    cluster.is_split(online=0.0)
    cluster.has_nodes(1, gpus_each=4)
    cluster.submits(task("low", gpus=4, priority=0, preemption=Preemption.REQUEUE))
    cluster.passes(100)
    cluster.cordons("node-1")
    cluster.submits(task("urgent", gpus=4, priority=90))
    assert not cluster.is_running("urgent")
    cluster.uncordons("node-1")
    assert cluster.is_running("urgent")


def test_a_preempting_task_is_tried_again_when_a_gpu_recovers(cluster: ClusterStory) -> None:
    cluster.is_split(online=0.0)
    cluster.has_nodes(1, gpus_each=4)
    cluster.gpu_becomes("node-1", 3, GpuHealth.EXTERNAL)
    cluster.submits(task("low", gpus=3, priority=0, preemption=Preemption.REQUEUE))
    cluster.passes(100)
    cluster.submits(task("urgent", gpus=4, priority=90))
    assert not cluster.is_running("urgent")
    cluster.gpu_becomes("node-1", 3, GpuHealth.OK)
    assert cluster.is_running("urgent")


# --- draining ---------------------------------------------------------------------------------------------------------


def test_draining_leaves_suspended_tasks_unless_it_is_forced(cluster: ClusterStory) -> None:
    cluster.has_nodes(2, gpus_each=2)
    cluster.submits(task("sleeps", gpus=2, preemption=Preemption.SUSPEND))
    cluster.submits(task("runs", gpus=2, preemption=Preemption.SUSPEND))
    here, there = cluster.nodes_of("sleeps")[0], cluster.nodes_of("runs")[0]
    cluster.tells(command.SuspendTask(cluster.numbers["sleeps"]))
    cluster.tells(command.ResumeTask(cluster.numbers["sleeps"]))
    cluster.tells(command.SuspendTask(cluster.numbers["sleeps"]))
    cluster.cordons(here, drain=True)
    cluster.cordons(there, drain=True, force=True)
    assert cluster.is_suspended("sleeps")
    assert cluster.is_running("runs")
    cluster.cordons(here, drain=True, force=True)
    assert causes(cluster, "sleeps") == [Cause(CauseKind.DRAINED, node=NodeId(here))]
    assert not cluster.state.on_node[NodeId(here)]


# --- gangs ------------------------------------------------------------------------------------------------------------


def test_a_gang_runs_when_its_last_part_runs(cluster: ClusterStory) -> None:
    cluster.world.start_seconds = 1000.0
    cluster.has_nodes(2, gpus_each=2)
    cluster.submits(gang("train", members=2, gpus_each=2))
    number, (first, second) = cluster.numbers["train"], cluster.nodes_of("train")
    for _ in range(2):
        cluster.tells(command.ReportStarted(number, 1, NodeId(first)))
        assert not cluster.is_running("train")
    cluster.tells(command.ReportStarted(number, 1, NodeId(second)))
    assert cluster.is_running("train")


def test_a_gang_whose_first_part_ends_before_the_last_has_started_counts_as_running(cluster: ClusterStory) -> None:
    cluster.world.start_seconds = 1000.0
    cluster.has_nodes(2, gpus_each=2)
    cluster.submits(gang("train", members=2, gpus_each=2))
    number, (first, second) = cluster.numbers["train"], cluster.nodes_of("train")
    cluster.tells(command.ReportStarted(number, 1, NodeId(first)))
    cluster.tells(command.ReportEnded(number, 1, Outcome.SUCCEEDED, 0, NodeId(first)))
    cluster.tells(command.ReportStarted(number, 1, NodeId(second)))
    assert cluster.is_running("train")
    cluster.tells(command.ReportEnded(number, 1, Outcome.SUCCEEDED, 0, NodeId(second)))
    assert cluster.status("train") is TaskStatus.SUCCESS


def test_a_gang_ends_with_the_exit_code_of_the_part_that_failed_first(cluster: ClusterStory) -> None:
    cluster.world.stop_seconds = 99.0
    cluster.has_nodes(2, gpus_each=2)
    cluster.submits(gang("train", members=2, gpus_each=2))
    number, (first, second) = cluster.numbers["train"], cluster.nodes_of("train")
    cluster.tells(command.ReportEnded(number, 1, Outcome.FAILED, 42, NodeId(first), message="Out of memory."))
    cluster.tells(command.ReportEnded(number, 1, Outcome.STOPPED, 143, NodeId(second), 15))
    (ended,) = [event for event in cluster.events_of("train") if isinstance(event, AttemptEnded)]
    assert (ended.outcome, ended.exit_code, ended.signal, ended.message) == (Outcome.FAILED, 42, None, "Out of memory.")
    (over,) = [event for event in cluster.events_of("train") if isinstance(event, TaskEnded)]
    assert over.cause == Cause(CauseKind.MEMBER_FAILED, node=NodeId(first))


# --- what a node has that the journal does not know -------------------------------------------------------------------

STRAY = AttemptRef(TaskId(77), 1, 5)


def comes_with_a_stray(cluster: ClusterStory, *gpus: int, still_has: tuple[AttemptRef, ...] = ()) -> None:
    """Node a registers again: it runs an attempt on these GPUs that was not placed here."""
    part = (STRAY, Slice(NodeId("a"), gpus))
    cluster.tells(command.JoinNode(node("a", gpus=2), (STRAY, *still_has), (STRAY, *still_has), (part,)))


def test_a_stray_takes_the_gpu_of_an_attempt_that_turns_out_to_be_gone(cluster: ClusterStory) -> None:
    """The journal is an old copy: it thinks that a task runs where another one came later."""
    cluster.has_node(node("a", gpus=2))
    cluster.submits(task("old"))
    assert cluster.gpus_of("old") == [("a", (0,))]
    old = AttemptRef(cluster.numbers["old"], 1)
    comes_with_a_stray(cluster, 0, still_has=(old,))
    cluster.tells(command.ReportEnded(old.task, 1, Outcome.LOST, node=NodeId("a")))
    cluster.passes(10)
    assert cluster.gpus_of("old") == [("a", (1,))]
    loaded = Engine(snapshot.load(snapshot.dump(cluster.state))).state
    assert loaded.orphaned_attempts == cluster.state.orphaned_attempts
    cluster.tells(command.ReportEnded(STRAY.task, 1, Outcome.SUCCEEDED, node=NodeId("a"), origin=STRAY.origin))
    assert not cluster.state.orphaned_attempts


def test_a_stray_waits_until_all_it_holds_is_free(cluster: ClusterStory) -> None:
    cluster.has_node(node("a", gpus=2))
    cluster.submits(task("one"), task("two"))
    refs = [AttemptRef(cluster.numbers[name], 1) for name in ("one", "two")]
    comes_with_a_stray(cluster, 0, 1, still_has=tuple(refs))
    for ref in refs:
        cluster.tells(command.ReportEnded(ref.task, 1, Outcome.SUCCEEDED, 0, NodeId("a")))
        cluster.submits(task(f"after {ref.task}"))
    assert cluster.running() == []
    assert cluster.state.orphaned_attempts[NodeId("a")][STRAY].part.gpus == (0, 1)


def test_an_attempt_the_node_never_received_does_not_start_where_a_stray_runs() -> None:
    """It is placed in the journal only: the launch that reconciling would say comes where something runs."""
    engine = Engine()
    engine.handle(command.SetSplit(Split(0.5, 0.5, QuotaMode.BORROW)), 0.0)
    spec = node("a", gpus=2)
    engine.handle(command.JoinNode(spec), 0.0)
    engine.handle(command.SubmitTasks((NewTask(TaskId(1), task("one", gpus=2).spec),)), 0.0)
    engine.decide(0.0)
    assert isinstance(engine.state.tasks[TaskId(1)].phase, Placed)
    joins = command.JoinNode(spec, (STRAY,), (STRAY,), ((STRAY, Slice(spec.id, (1,))),), complete=True)
    engine.handle(joins, 1.0)
    engine.decide(100.0)
    assert isinstance(engine.state.tasks[TaskId(1)].phase, Waiting)
