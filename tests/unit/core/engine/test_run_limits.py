"""Limits on how many tasks of an array or sweep run at the same time. Every step of a story checks all invariants."""

from typing import Any

import pytest

from gpuyard.core.domain import commands as command
from gpuyard.core.domain import refusals as no
from gpuyard.core.domain.events import ReservationMade, RunLimitSet, TaskPlaced
from gpuyard.core.domain.refusals import Refusal
from gpuyard.core.domain.task import NewTask, Resources, RunLimit, TaskSpec
from gpuyard.core.domain.tenant import QuotaMode
from gpuyard.core.domain.values import NodeId, Outcome, Preemption, TaskId, TenantId
from gpuyard.core.engine import snapshot
from gpuyard.core.engine.apply import apply_recorded
from gpuyard.core.engine.engine import Engine
from gpuyard.core.engine.state import State
from gpuyard.testing import ClusterStory, node, task


def a_cluster(*, gpus: int = 8, **settings: Any) -> ClusterStory:
    cluster = ClusterStory(**{"policy": "fifo", **settings})
    cluster.has_nodes(1, gpus_each=gpus)
    return cluster


def set_limit(cluster: ClusterStory, name: str, most: int, first: str = "", last: str = "") -> Refusal | None:
    numbers = cluster.numbers
    limit = RunLimit(numbers[first or name], numbers[last or name], most)
    answer = cluster.tells(command.SetRunLimit(numbers[name], limit))
    return answer if isinstance(answer, Refusal) else None


def test_at_most_so_many_tasks_of_an_array_run_at_the_same_time() -> None:
    cluster = a_cluster()
    cluster.submits_many(6, task("a", runs_for=10), max_running=2)
    assert cluster.running() == ["a-1", "a-2"]
    cluster.finishes("a-2")
    assert cluster.running() == ["a-1", "a-3"]
    cluster.runs_out()
    assert cluster.placements() == [f"a-{number}" for number in range(1, 7)]
    assert not cluster.state.run_limits


def test_other_tasks_use_the_gpus_that_the_array_leaves() -> None:
    cluster = a_cluster(gpus=4)
    cluster.submits_many(6, task("a"), max_running=1)
    cluster.submits_many(3, task("b"))
    assert cluster.running() == ["a-1", "b-1", "b-2", "b-3"]


def test_a_task_over_the_limit_names_it_and_how_to_raise_it() -> None:
    cluster = a_cluster()
    cluster.submits_many(5, task("a"), max_running=2)
    reason = cluster.why("a-4")
    assert reason == no.RunLimitReached(TaskId(4), TaskId(1), TaskId(5), 2, 2)
    assert reason.sentence() == (
        "Its array or sweep (task-1 to task-5) is limited to 2 running tasks; running now: 2. It starts after those before it, "
        "or when the limit is raised (gpuyard max-running task-4 N)."
    )


def test_on_a_full_cluster_it_says_that_none_runs() -> None:
    cluster = a_cluster(gpus=1)
    cluster.submits(task("other"))
    cluster.submits_many(4, task("a"), max_running=2)
    assert isinstance(cluster.why("a-2"), no.NoRoom)
    assert cluster.why("a-3") == no.RunLimitReached(TaskId(4), TaskId(2), TaskId(5), 2, 0)
    cluster.finishes("other")
    assert cluster.why("a-3") == no.RunLimitReached(TaskId(4), TaskId(2), TaskId(5), 2, 1)


def test_tasks_over_the_limit_are_not_in_the_queue() -> None:
    cluster = a_cluster(gpus=1)
    cluster.submits_many(100, task("a", estimate=60), max_running=3)
    assert cluster.state.queue.waiting == 2
    cluster.submits(task("b", estimate=60))
    assert cluster.explains("b").ahead == 2


def test_a_suspended_task_keeps_its_place() -> None:
    cluster = a_cluster()
    cluster.submits_many(3, task("a", preemption=Preemption.SUSPEND), max_running=1)
    cluster.tells(command.SuspendTask(cluster.numbers["a-1"]))
    assert cluster.is_suspended("a-1")
    assert cluster.running() == []
    cluster.tells(command.ResumeTask(cluster.numbers["a-1"]))
    assert cluster.running() == ["a-1"]


def test_a_task_on_hold_or_in_its_retry_delay_keeps_no_other_waiting() -> None:
    cluster = a_cluster()
    cluster.submits(task("other", gpus=8))
    cluster.submits_many(3, task("a", retries=1), max_running=1)
    cluster.holds("a-1")
    cluster.finishes("other")
    assert cluster.running() == ["a-2"]
    cluster.fails("a-2")
    assert cluster.running() == ["a-3"]
    cluster.releases("a-1")
    assert isinstance(cluster.why("a-1"), no.RunLimitReached)
    cluster.finishes("a-3")
    assert cluster.running() == ["a-1"]


def test_a_cancelled_task_makes_room_for_the_next() -> None:
    cluster = a_cluster()
    cluster.submits_many(4, task("a"), max_running=1)
    cluster.cancels("a-2")
    cluster.cancels("a-1")
    assert cluster.running() == ["a-3"]


def test_the_task_of_the_highest_priority_is_next_although_others_had_their_turn() -> None:
    cluster = a_cluster(gpus=1, policy="priority")
    cluster.submits(task("other"))
    cluster.submits_many(4, task("a"), max_running=2)
    cluster.tells(command.ChangePriority(cluster.numbers["a-4"], 90))
    assert isinstance(cluster.why("a-4"), no.NoRoom)
    assert isinstance(cluster.why("a-2"), no.RunLimitReached)
    cluster.finishes("other")
    assert cluster.running() == ["a-4"]


def test_a_change_of_the_policy_changes_who_is_next() -> None:
    cluster = a_cluster(gpus=1)
    cluster.submits(task("other"))
    lengths = (50.0, 40.0, 30.0, 20.0)
    cluster.submits(*(task(f"a-{place}", estimate=seconds) for place, seconds in enumerate(lengths)), max_running=1)
    assert not cluster.state.tasks[cluster.numbers["a-0"]].is_parked
    cluster.decides_by(policy="sjf")
    assert isinstance(cluster.why("a-0"), no.RunLimitReached)
    cluster.finishes("other")
    assert cluster.running() == ["a-3"]


def test_a_task_that_needs_another_gpu_than_is_free_keeps_no_other_waiting() -> None:
    cluster = a_cluster(gpus=2, backfill="greedy")
    cluster.submits(task("other"))
    cluster.submits(task("large", gpus=2), task("small-1"), task("small-2"), max_running=1)
    assert cluster.running() == ["other", "small-1"]
    assert isinstance(cluster.why("large"), no.RunLimitReached)
    cluster.finishes("other", "small-1")
    assert cluster.running() == ["large"]


def test_a_task_over_the_limit_gets_no_reservation_and_stops_no_other() -> None:
    cluster = a_cluster(gpus=4, policy="priority", backfill="conservative", preemption_min_run_seconds=0.0)
    cluster.submits(task("other", gpus=3, runs_for=100, estimate=100))
    cluster.submits_many(2, task("low", priority=0, preemption=Preemption.REQUEUE, tenant="low", estimate=500))
    cluster.submits_many(4, task("a", gpus=2, priority=50, estimate=50), max_running=1)
    cluster.passes(30)
    reserved = {cluster.names[event.task] for _, event in cluster.events if isinstance(event, ReservationMade)}
    assert reserved <= {"a-1", "low-2"}
    cluster.runs_out()


def test_a_task_that_others_are_stopped_for_has_a_place_already() -> None:
    cluster = a_cluster(gpus=2, policy="priority", preemption_min_run_seconds=0.0)
    cluster.is_split(online=0.0, mode=QuotaMode.NONE)
    cluster.world.stop_seconds = 30.0
    cluster.submits_many(2, task("low", priority=0, preemption=Preemption.REQUEUE))
    cluster.passes(10)
    cluster.submits_many(2, task("a", priority=90), max_running=1)
    assert isinstance(cluster.why("a-1"), no.WaitingForVictims)
    assert cluster.why("a-2") == no.RunLimitReached(TaskId(4), TaskId(3), TaskId(4), 1, 1)
    cluster.passes(30)
    assert "a-1" in cluster.running()
    assert "a-2" not in cluster.running()


def test_a_task_whose_turn_ends_loses_its_reservation() -> None:
    cluster = a_cluster(gpus=2, backfill="easy")
    cluster.submits(task("other", estimate=100))
    cluster.submits(task("large", gpus=2, estimate=50), task("small", estimate=50), max_running=1)
    made = [event for event in cluster.events_of("large") if isinstance(event, ReservationMade)]
    assert made, "it had a turn and found no room"
    assert cluster.running() == ["other", "small"]
    assert cluster.reserved_for("large") is None


def test_a_limit_of_one_makes_a_sequence_also_if_a_task_is_preempted() -> None:
    cluster = a_cluster(gpus=2, policy="priority", preemption_min_run_seconds=0.0)
    cluster.is_split(online=0.0, mode=QuotaMode.NONE)
    cluster.submits_many(3, task("a", priority=10, preemption=Preemption.REQUEUE, runs_for=30), max_running=1)
    cluster.submits(task("b", gpus=2, priority=90, runs_for=10))
    cluster.runs_out()
    assert cluster.placements() == ["a-1", "b", "a-1", "a-2", "a-3"]


def test_raising_the_limit_starts_tasks_and_lowering_it_stops_none() -> None:
    cluster = a_cluster()
    cluster.submits_many(8, task("a"), max_running=2)
    assert set_limit(cluster, "a-5", 4) is None
    assert cluster.running() == ["a-1", "a-2", "a-3", "a-4"]
    set_limit(cluster, "a-5", 1)
    assert len(cluster.running()) == 4
    cluster.finishes("a-1", "a-2", "a-3")
    assert cluster.running() == ["a-4"]
    cluster.finishes("a-4")
    assert cluster.running() == ["a-5"]


def test_a_limit_can_be_removed_and_set_later() -> None:
    cluster = a_cluster(gpus=4)
    cluster.submits_many(8, task("a"), max_running=1)
    set_limit(cluster, "a-1", 0)
    assert len(cluster.running()) == 4
    assert not cluster.state.run_limits
    set_limit(cluster, "a-1", 2, first="a-1", last="a-8")
    cluster.finishes("a-1", "a-2", "a-3")
    assert cluster.running() == ["a-4", "a-5"]
    assert isinstance(cluster.why("a-8"), no.RunLimitReached)


def test_a_limit_for_tasks_of_others_is_refused() -> None:
    cluster = a_cluster()
    cluster.submits_many(2, task("a"), max_running=1)
    cluster.submits_many(2, task("b"))
    cluster.submits(task("c", tenant="other"))
    assert set_limit(cluster, "b-1", 1, first="a-1", last="b-2") == no.RunLimitsOverlap(TaskId(1), TaskId(4))
    assert set_limit(cluster, "b-1", 1, first="b-1", last="c") == no.RunLimitsOverlap(TaskId(3), TaskId(5))
    assert set_limit(cluster, "b-1", -1) == no.NegativeCount("max_running", -1)
    assert set_limit(cluster, "b-1", 0) is None
    assert [event for _, event in cluster.events if isinstance(event, RunLimitSet)] == [
        RunLimitSet(RunLimit(TaskId(1), TaskId(2), 1))
    ]


@pytest.mark.parametrize(
    "limits",
    [
        (RunLimit(TaskId(1), TaskId(4), 1),),
        (RunLimit(TaskId(2), TaskId(1), 1),),
        (RunLimit(TaskId(1), TaskId(2), 1), RunLimit(TaskId(2), TaskId(3), 1)),
    ],
)
def test_limits_that_overlap_or_reach_beyond_the_request_are_refused(limits: tuple[RunLimit, ...]) -> None:
    engine = Engine()
    specs = [TaskSpec(TenantId("lab"), Resources(gpus=1), command="true") for _ in range(3)]
    asked = command.SubmitTasks(tuple(NewTask(TaskId(1 + n), spec) for n, spec in enumerate(specs)), limits=limits)
    answer = engine.handle(asked, 0.0)
    assert isinstance(answer, no.RunLimitsOverlap)
    assert not engine.state.tasks
    assert not engine.state.run_limits
    nothing = command.SubmitTasks(asked.tasks, limits=(RunLimit(TaskId(1), TaskId(3), 0),))
    assert engine.handle(nothing, 0.0) == no.NotPositive("max_running", 0)


def test_an_attempt_that_is_found_again_may_exceed_the_limit_and_starts_no_other() -> None:
    cluster = ClusterStory(policy="fifo")
    cluster.has_nodes(2, gpus_each=1)
    cluster.submits_many(3, task("a"), max_running=1)
    home = cluster.nodes_of("a-1")[0]
    cluster.loses(home)
    assert cluster.running() == ["a-1"]
    cluster.finishes("a-1")
    assert cluster.running() == ["a-2"]


def test_a_snapshot_and_a_replay_keep_limits() -> None:
    cluster = a_cluster()
    cluster.submits_many(6, task("a"), max_running=2)
    set_limit(cluster, "a-1", 3)
    state = snapshot.load(snapshot.dump(cluster.state))
    assert [limited.limit for limited in state.run_limits.values()] == [RunLimit(TaskId(1), TaskId(6), 3)]
    engine = Engine(state)
    assert not [event for event in engine.decide(cluster.now) if isinstance(event, TaskPlaced)]
    replayed = State()
    for at, event in cluster.events:
        apply_recorded(replayed, event, at)
    again = Engine(replayed)
    again.handle(command.ReportEnded(TaskId(1), 1, Outcome.SUCCEEDED, 0), cluster.now)
    assert [event.task for event in again.decide(cluster.now) if isinstance(event, TaskPlaced)] == [4]


def test_the_expected_start_is_when_those_before_it_have_run() -> None:
    cluster = a_cluster()
    cluster.submits_many(5, task("a", estimate=100), max_running=2)
    told = cluster.explains("a-5")
    assert (told.ahead, told.starts_at, told.guessed) == (2, cluster.now + 200, True)
    assert cluster.explains("a-3").starts_at == cluster.now + 100


def test_on_a_full_cluster_the_expected_start_is_after_that_of_the_first_one() -> None:
    cluster = a_cluster(gpus=1)
    cluster.submits(task("other", estimate=1000))
    cluster.submits_many(3, task("a", estimate=100), max_running=1)
    assert cluster.explains("a-1").starts_at == cluster.now + 1000
    assert cluster.explains("a-3").starts_at == cluster.now + 1200


def test_without_estimates_no_start_is_given() -> None:
    cluster = a_cluster()
    cluster.submits_many(3, task("a"), max_running=1)
    assert cluster.explains("a-3").starts_at is None


def test_the_cost_of_an_end_does_not_depend_on_the_size_of_the_array() -> None:
    entries = []
    for count in (50, 5000):
        engine = Engine()
        engine.handle(command.JoinNode(node("n", gpus=16)), 0.0)
        spec = TaskSpec(TenantId("lab"), Resources(gpus=1), command="true")
        tasks = tuple(NewTask(TaskId(1 + n), spec) for n in range(count))
        engine.handle(command.SubmitTasks(tasks, limits=(RunLimit(TaskId(1), TaskId(count), 2),)), 0.0)
        engine.decide(0.0)
        (shelf,) = engine.state.run_limits[TaskId(1)].shelves.values()
        assert engine.state.queue.waiting == 0
        before = len(shelf.parked)
        engine.handle(command.ReportEnded(TaskId(1), 1, Outcome.SUCCEEDED, 0, NodeId("n")), 1.0)
        engine.decide(1.0)
        entries.append(before - len(shelf.parked))
    assert entries[0] == entries[1]
