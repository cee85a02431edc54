"""Edge cases of explain: unknown times are not invented, and of several reasons the longest-lasting one is shown."""

from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuyard.core.domain import commands as command
from gpuyard.core.domain import refusals as no
from gpuyard.core.domain.node import Gpu, NodeSpec
from gpuyard.core.domain.task import Estimate, NewTask, Resources, TaskSpec
from gpuyard.core.domain.tenant import Budget, QuotaMode
from gpuyard.core.domain.values import NodeId, Preemption, TaskClass, TaskId, TaskStatus, TenantId
from gpuyard.core.engine.engine import Engine
from gpuyard.core.engine.explain import AHEAD, MOST_COUNTED, Explanation, explain, why_all_wait, why_waits
from gpuyard.core.engine.waiting.sort_key import sort_key
from gpuyard.testing import ClusterStory, gang, node, task


@pytest.fixture
def cluster() -> ClusterStory:
    """One node of four GPUs, all of them for batch work, and no quota in the way."""
    cluster = ClusterStory()
    cluster.is_split(online=0.0, mode=QuotaMode.BORROW)
    cluster.has_nodes(1, gpus_each=4)
    return cluster


def test_an_unknown_task_has_no_explanation(cluster: ClusterStory) -> None:
    told = explain(cluster.state, TaskId(99), 0.0)
    assert told == Explanation(TaskId(99), TaskStatus.PENDING, no.UnknownTask(TaskId(99)))


def test_a_running_task_and_an_ended_one_do_not_wait(cluster: ClusterStory) -> None:
    cluster.submits(task("a", runs_for=10), task("b"))
    cluster.passes(10)
    assert cluster.explains("a") == Explanation(TaskId(1), TaskStatus.SUCCESS, None)
    assert cluster.explains("b") == Explanation(TaskId(2), TaskStatus.RUNNING, None)
    assert cluster.explains("b").sentence() == "It does not wait."


def test_dependencies_come_before_a_hold_and_a_hold_before_all_else(cluster: ClusterStory) -> None:
    cluster.submits(task("first"), task("then", gpus=9, after=("first",)))
    cluster.holds("then")
    assert cluster.why("then") == no.WaitingForTasks(TaskId(1), 1)
    cluster.finishes("first")
    assert cluster.why("then") == no.OnHold(cluster.numbers["then"])
    cluster.releases("then")
    assert cluster.why("then") == no.NodeTooSmall(9, 4)
    assert cluster.explains("then").starts_at is None


@pytest.mark.parametrize(("backfill", "overtakes"), [("none", False), ("easy", True)])
def test_smaller_tasks_go_before_one_that_waits_for_room_if_backfill_lets_them(backfill: str, overtakes: bool) -> None:
    cluster = ClusterStory(backfill=backfill)
    cluster.has_nodes(1, gpus_each=4)
    cluster.submits(
        task("busy", gpus=3, timeout_seconds=60.0), task("large", gpus=4), task("small", timeout_seconds=9.0)
    )
    assert isinstance(cluster.why("large"), no.NoRoom)
    assert cluster.explains("large").ahead == 0
    assert cluster.explains("large").may_be_overtaken == overtakes
    assert ("small" in cluster.running()) == overtakes
    if overtakes:
        cluster.submits(task("single"))
        assert not cluster.explains("single").may_be_overtaken


def test_back_off_shows_its_end(cluster: ClusterStory) -> None:
    cluster.submits(task("flaky", retries=3))
    cluster.fails("flaky")
    assert cluster.why("flaky") == no.BackingOff(2.0)


def test_a_task_suspended_on_request_is_on_hold_and_one_suspended_for_others_waits_for_room() -> None:
    cluster = ClusterStory(preemption_min_run_seconds=0.0)
    cluster.is_split(online=0.0, mode=QuotaMode.BORROW)
    cluster.has_nodes(1, gpus_each=4)
    cluster.submits(task("a", gpus=4, priority=10, preemption=Preemption.SUSPEND))
    cluster.tells(command.SuspendTask(cluster.numbers["a"]))
    assert (cluster.why("a"), cluster.status("a")) == (no.OnHold(cluster.numbers["a"]), TaskStatus.SUSPENDED)
    cluster.tells(command.ResumeTask(cluster.numbers["a"]))
    cluster.submits(task("b", gpus=4, priority=90))
    assert cluster.is_suspended("a")
    assert isinstance(cluster.why("a"), no.NoRoom)


def test_a_task_with_victims_shows_how_many() -> None:
    cluster = ClusterStory(preemption_min_run_seconds=0.0)
    cluster.is_split(online=0.0, mode=QuotaMode.BORROW)
    cluster.world.stop_seconds = 30.0
    cluster.has_nodes(1, gpus_each=4)
    cluster.submits_many(4, task("small", priority=10, preemption=Preemption.REQUEUE))
    cluster.submits(task("urgent", gpus=3, priority=90))
    told = cluster.explains("urgent")
    assert told.reason == no.WaitingForVictims(3, cluster.state.reservations[cluster.numbers["urgent"]].nodes[0])
    assert (told.starts_at, told.nodes) == (0.0, ("node-1",))


def test_cordoned_nodes_are_distinguished_from_full_ones() -> None:
    cluster = ClusterStory()
    cluster.has_nodes(3, gpus_each=4)
    cluster.cordons("node-1")
    cluster.submits(gang("three", members=3, gpus_each=2))
    assert cluster.why("three") == no.NodesClosed(3, 3, 2)
    cluster.uncordons("node-1")
    assert cluster.is_running("three")


def test_a_spent_budget_shows_the_next_period_as_does_the_expected_start(cluster: ClusterStory) -> None:
    cluster.has_tenant("lab", budget=Budget(gpu_hours=1.0, period_seconds=7200.0))
    cluster.submits(task("a", gpus=4, tenant="lab", runs_for=1800))
    cluster.passes(1800)
    cluster.submits(task("b", tenant="lab", estimate=60))
    assert cluster.why("b") == no.BudgetSpent("lab", 1.0, 7200.0)  # type: ignore[arg-type]
    assert cluster.explains("b").starts_at == 7200.0


def test_behind_many_tasks_the_start_is_a_guess_from_the_throughput_of_the_gpus(cluster: ClusterStory) -> None:
    cluster.submits(task("now", gpus=4, estimate=10))
    cluster.submits_many(AHEAD + 1, task("ahead", gpus=4, estimate=10))
    cluster.submits(task("last", gpus=4, estimate=10))
    last = cluster.explains("last")
    assert (last.ahead, last.guessed) == (AHEAD + 1, True)
    assert last.starts_at == 10.0 * (AHEAD + 2)
    assert (cluster.explains("ahead-2").starts_at, cluster.explains("ahead-2").guessed) == (20.0, False)


def test_behind_many_tasks_one_without_an_estimate_that_fills_the_pool_leaves_the_start_unknown(
    cluster: ClusterStory,
) -> None:
    cluster.submits(task("endless", gpus=4))
    cluster.submits_many(AHEAD + 1, task("ahead", estimate=10))
    cluster.submits(task("last", estimate=10))
    assert (cluster.explains("last").starts_at, cluster.explains("last").guessed) == (None, False)


def test_behind_many_tasks_only_their_part_on_its_own_nodes_counts() -> None:
    cluster = ClusterStory()
    cluster.is_split(online=0.0, mode=QuotaMode.BORROW)
    for name, zone in (("node-1", "a"), ("node-2", "b"), ("node-3", "b")):
        cluster.has_node(node(name, gpus=4, zone=zone))
    cluster.submits_many(3, task("now", gpus=4, estimate=10))
    cluster.submits_many(3 * AHEAD, task("ahead", gpus=4, estimate=10))
    cluster.submits(task("last", gpus=4, estimate=10, labels=(("zone", "a"),)))
    start = cluster.explains("last").starts_at
    assert start is not None
    assert 10.0 * AHEAD <= start <= 10.0 * (AHEAD + 2)


def test_behind_many_tasks_without_an_open_node_the_node_is_the_reason_and_no_start_is_given(
    cluster: ClusterStory,
) -> None:
    cluster.submits(task("now", gpus=4, estimate=10))
    cluster.submits_many(AHEAD + 1, task("ahead", gpus=4, estimate=10))
    cluster.submits(task("last", gpus=4, estimate=10))
    cluster.cordons("node-1")
    last = cluster.explains("last")
    assert isinstance(last.reason, no.NodesClosed)
    assert last.starts_at is None


def test_behind_more_tasks_than_are_counted_no_start_is_invented(
    cluster: ClusterStory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpuyard.core.engine.explain.MOST_COUNTED", AHEAD + 1)
    cluster.submits(task("now", gpus=4, estimate=10))
    cluster.submits_many(AHEAD + 2, task("ahead", gpus=4, estimate=10))
    cluster.submits(task("last", gpus=4, estimate=10))
    assert (cluster.explains("last").more_ahead, cluster.explains("last").starts_at) == (True, None)


def test_no_task_is_ahead_of_one_that_no_node_could_hold(cluster: ClusterStory) -> None:
    cluster.submits(task("first", gpus=4), task("huge", gpus=9, after=("first",)))
    cluster.submits_many(2, task("ahead", gpus=4))
    cluster.finishes("first")
    told = cluster.explains("huge")
    assert (told.reason, told.ahead) == (no.NodeTooSmall(9, 4), 0)


def test_without_an_estimate_ahead_no_start_is_invented(cluster: ClusterStory) -> None:
    cluster.submits(task("somebody", gpus=4))
    cluster.submits(task("next", gpus=4, estimate=10))
    assert cluster.explains("next").starts_at is None


def test_behind_a_task_of_unknown_start_no_start_is_invented(cluster: ClusterStory) -> None:
    cluster.submits(task("endless", gpus=2), task("short", gpus=2, estimate=10, runs_for=10))
    cluster.submits(task("large", gpus=4, estimate=5))
    cluster.submits(task("last", gpus=2, estimate=100))
    assert cluster.explains("large").starts_at is None
    assert cluster.explains("last").starts_at is None
    cluster.passes(11)
    assert not cluster.is_running("last")


def test_unreserved_nodes_still_have_an_expected_start(cluster: ClusterStory) -> None:
    cluster.submits(task("endless", gpus=4))
    cluster.has_nodes(1, gpus_each=3)
    cluster.submits(task("short", gpus=3, estimate=10, runs_for=10))
    cluster.submits(task("large", gpus=4, estimate=5))
    cluster.submits(task("last", gpus=2, estimate=100))
    assert cluster.explains("large").starts_at is None
    assert cluster.explains("last").starts_at == 10.0
    cluster.passes(10)
    assert cluster.is_running("last")


def test_a_start_behind_a_task_that_exceeded_its_estimate_is_a_guess(cluster: ClusterStory) -> None:
    cluster.submits(task("late", gpus=4, estimate=10))
    cluster.submits(task("next", gpus=4, estimate=10))
    assert (cluster.explains("next").starts_at, cluster.explains("next").guessed) == (10.0, False)
    cluster.passes(20)
    assert (cluster.explains("next").starts_at, cluster.explains("next").guessed) == (80.0, True)


def test_a_timeout_is_no_guess(cluster: ClusterStory) -> None:
    cluster.submits(task("late", gpus=4, estimate=10, timeout_seconds=50))
    cluster.submits(task("next", gpus=4, estimate=10))
    cluster.passes(20)
    assert (cluster.explains("next").starts_at, cluster.explains("next").guessed) == (50.0, False)


def test_a_start_behind_others_at_a_quota_is_known_if_all_estimates_are(cluster: ClusterStory) -> None:
    cluster.is_split(online=0.0)
    cluster.submits(task("now", gpus=4, estimate=10), task("next", gpus=4, estimate=10), task("last", estimate=10))
    assert cluster.explains("next").starts_at == 10.0
    assert cluster.explains("last").starts_at == 20.0


def test_the_range_contains_its_middle_even_if_a_longer_run_leaves_a_gap(cluster: ClusterStory) -> None:
    cluster.submits_many(3, task("short", estimate=10))
    cluster.submits(task("maybe", estimate=Estimate(10.0, 10.0, 20.0)))
    cluster.submits(task("large", gpus=4, estimate=10))
    cluster.submits(task("last", estimate=10))
    told = cluster.explains("last")
    assert (told.starts_at, told.starts_high) == (20.0, 20.0)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.floats(1.0, 500.0), st.floats(0.1, 1.0), st.floats(1.0, 4.0)), max_size=10))
def test_the_range_contains_its_middle(tasks: list[tuple[float, float, float]]) -> None:
    cluster = ClusterStory(policy="fifo")
    cluster.is_split(online=0.0, mode=QuotaMode.BORROW)
    cluster.has_nodes(1, gpus_each=4)
    for place, (seconds, low, high) in enumerate(tasks):
        cluster.submits(task(f"t{place}", gpus=4, estimate=Estimate(seconds, seconds * low, seconds * high)))
    for name in cluster.numbers:
        told = cluster.explains(name)
        if told.reason is not None:
            assert told.starts_low is not None
            assert told.starts_at is not None
            assert told.starts_high is not None
            assert cluster.now <= told.starts_low <= told.starts_at <= told.starts_high


@pytest.mark.parametrize("backfill", ["none", "greedy", "easy", "conservative"])
def test_the_start_of_a_task_far_back_follows_the_queue(backfill: str) -> None:
    cluster = ClusterStory(backfill=backfill)
    cluster.has_nodes(1, gpus_each=4)
    cluster.submits_many(150, task("sweep", gpus=1, runs_for=30, estimate=30))
    cluster.passes(10)
    assert cluster.explains("sweep-147").starts_at == pytest.approx(36 * 30)


def test_a_prediction_that_running_tasks_exceeded_is_not_used_for_waiting_ones() -> None:
    cluster = ClusterStory()
    cluster.has_nodes(1, gpus_each=4)
    cluster.submits_many(150, task("sweep", gpus=1, runs_for=30, estimate=Estimate(0.5, 0.2, 134.0, 9)))
    cluster.passes(25)
    told = cluster.explains("sweep-147")
    assert told.starts_low is not None
    assert told.starts_low >= 25 + 35 * 25
    assert told.guessed


def test_an_expected_start_uses_current_predictions() -> None:
    cluster = ClusterStory()
    cluster.has_nodes(1, gpus_each=4)
    cluster.submits_many(150, task("sweep", gpus=1, runs_for=30, estimate=Estimate(0.5, 0.2, 134.0, 9)))
    cluster.passes(31)
    number, now = cluster.numbers["sweep-147"], cluster.world.now
    told = explain(cluster.state, number, now, lambda _: Estimate(30.0, 29.0, 31.0, 13))
    assert told.starts_at == pytest.approx(36 * 30, rel=0.1)


def test_a_wide_range_makes_a_likely_start_a_guess(cluster: ClusterStory) -> None:
    cluster.submits(task("now", gpus=4, estimate=Estimate(10.0, 1.0, 900.0, 3)))
    cluster.submits(task("next", gpus=4, estimate=10))
    assert cluster.explains("next").guessed


def test_a_task_above_the_share_of_its_class_never_starts_and_shows_what_would_help() -> None:
    cluster = ClusterStory()
    cluster.is_split(online=0.7)
    cluster.has_nodes(1, gpus_each=1)
    cluster.submits(task("batch"))
    told = cluster.explains("batch")
    assert told.reason == no.ClassQuotaTooSmall(TaskClass.BATCH, 0, 1.0)
    assert told.starts_at is None
    assert told.sentence() == (
        "The quota of batch tasks is 0 GPUs, and the task needs 1. It can only start if the quota changes "
        "(gpuyard quota --mode borrow) or GPUs are added."
    )
    cluster.is_split(online=0.7, mode=QuotaMode.BORROW)
    assert cluster.explains("batch").reason is None


def test_a_task_above_a_lowered_limit_never_starts_and_names_the_command() -> None:
    cluster = ClusterStory()
    cluster.is_split(online=0.0, mode=QuotaMode.BORROW)
    cluster.has_nodes(1, gpus_each=4)
    cluster.submits(task("first", gpus=4, tenant="team"))
    cluster.submits(task("second", gpus=4, tenant="team"))
    cluster.has_tenant("team", max_gpus=2)
    told = cluster.explains("second")
    assert told.reason == no.TenantQuotaTooSmall(TenantId("team"), 2, 4.0, 4)
    assert "gpuyard tenants set team --max-gpus 4" in told.sentence()


def test_without_a_split_either_class_uses_every_gpu() -> None:
    cluster = ClusterStory()
    cluster.is_split(online=0.7, mode=QuotaMode.NONE)
    cluster.has_nodes(1, gpus_each=1)
    cluster.submits(task("batch"))
    assert cluster.explains("batch").reason is None


def ahead_by_hand(cluster: ClusterStory, number: TaskId) -> list[TaskId]:
    """Every waiting task that goes before one and competes with it, by a look at all of them."""
    state, at = cluster.state, cluster.state.now
    me = state.tasks[number]
    assert me.group is not None
    found = []
    for other in state.tasks.values():
        if other.group is None or other is me:
            continue
        same_quota = other.class_index == me.class_index or other.tenant_usage is me.tenant_usage
        same_nodes = other.group.line.shape.eligible & me.group.line.shape.eligible
        if (same_quota or same_nodes) and sort_key(state, other, at) < sort_key(state, me, at):
            found.append(other)
    return [other.id for other in sorted(found, key=lambda other: sort_key(state, other, at))]


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["default", "fair_share", "priority", "small_first"])
@pytest.mark.parametrize("seed", range(2))
def test_what_is_ahead_equals_a_scan_of_all_tasks(policy: str, seed: int) -> None:
    draw = Random(seed)
    cluster = ClusterStory()
    cluster.is_split(online=0.5, mode=QuotaMode.BORROW)
    cluster.has_nodes(2, gpus_each=4, model="A")
    cluster.has_nodes(1, gpus_each=2, model="B")
    cluster.decides_by(policy=policy)
    for place in range(60):
        more: dict[str, Any] = {"models": draw.choice(((), ("A",), ("B",)))}
        cluster.submits(
            task(
                f"t{place}",
                gpus=draw.choice((1, 2, 4)),
                tenant=draw.choice("xyz"),
                online=draw.random() < 0.5,
                priority=draw.choice((10, 50, 90)),
                runs_for=draw.choice((5.0, 50.0)),
                **more,
            )
        )
        cluster.passes(draw.choice((0.0, 1.0)))
        if draw.random() < 0.2:
            waiting = [number for number, each in cluster.state.tasks.items() if each.group is not None]
            if waiting:
                cluster.tells(command.ChangePriority(draw.choice(waiting), draw.choice((10, 50, 90))))
    waiting = [number for number, each in cluster.state.tasks.items() if each.group is not None]
    assert len(waiting) > 10
    reasons = why_all_wait(cluster.state, waiting, cluster.state.now)
    for number in waiting:
        by_hand = ahead_by_hand(cluster, number)
        told = explain(cluster.state, number, cluster.state.now)
        assert told.ahead == (0 if isinstance(told.reason, no.NodeTooSmall) else len(by_hand))
        assert reasons.get(number) == told.reason == why_waits(cluster.state, number, cluster.state.now)


def test_the_count_of_tasks_ahead_is_limited() -> None:
    engine = Engine()
    engine.handle(command.JoinNode(NodeSpec(NodeId("n"), (Gpu("v", 1024),) * 2, 8, 1024), ()), 0.0)
    spec = TaskSpec(TenantId("lab"), Resources(gpus=2))
    last = MOST_COUNTED + 10
    engine.handle(command.SubmitTasks(tuple(NewTask(TaskId(number), spec) for number in range(1, last + 1))), 0.0)
    engine.decide(0.0)
    told = explain(engine.state, TaskId(last), 0.0)
    assert (told.ahead, told.more_ahead) == (MOST_COUNTED, True)
    told = explain(engine.state, TaskId(6), 0.0)
    assert (told.ahead, told.more_ahead) == (5, False)
