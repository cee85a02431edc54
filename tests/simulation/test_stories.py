"""Stories of a cluster: one for each behavior that gpuyard promises.

Each step of a story checks every invariant as well: no GPU held twice, nothing stranded, nothing above its quota,
books that add up, and that the events alone give the same state.
"""

from dataclasses import replace

import msgspec
import pytest

from gpuyard.core.domain.causes import Cause, CauseKind
from gpuyard.core.domain.commands import BeginEpoch, EndEpoch, ReportEnded, SkipTaskNumbers
from gpuyard.core.domain.events import AttemptEnded, ReservationMade, TaskEnded, TaskRequeued
from gpuyard.core.domain.refusals import (
    BudgetSpent,
    ClassQuotaFull,
    GangIncomplete,
    NoRoom,
    OnHold,
    ReservedFor,
    TenantModelQuotaFull,
    TenantQuotaFull,
    UnknownGpuModel,
    WaitingForTasks,
)
from gpuyard.core.domain.settings import Backfill
from gpuyard.core.domain.task import Estimate
from gpuyard.core.domain.tenant import Budget, QuotaMode
from gpuyard.core.domain.values import (
    GpuHealth,
    Link,
    NodeId,
    OnLost,
    Outcome,
    Preemption,
    TaskId,
    TaskStatus,
    TenantId,
)
from gpuyard.core.engine.scheduling.actions import UNPREDICTABLE_TIMES
from gpuyard.testing import ClusterStory, TaskBuilder, cpu_task, gang, node, share, task


@pytest.fixture
def cluster() -> ClusterStory:
    return ClusterStory()


# --- quotas -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", range(1, 41))
def test_a_strict_split_strands_no_gpu_at_any_size(size: int) -> None:
    cluster = ClusterStory()
    cluster.is_split(online=0.7)
    cluster.has_nodes(size, gpus_each=1)
    cluster.submits_many(size, task("online", gpus=1, online=True))
    cluster.submits_many(size, task("batch", gpus=1))
    assert cluster.gpus_in_use() == size


def test_a_class_never_exceeds_its_share_of_a_strict_split(cluster: ClusterStory) -> None:
    cluster.is_split(online=0.75)
    cluster.has_nodes(1, gpus_each=4)
    cluster.submits(task("first"), task("second"))
    assert cluster.running() == ["first"]
    assert isinstance(cluster.why("second"), ClassQuotaFull)


def test_a_class_that_has_the_whole_cluster_waits_only_for_room(cluster: ClusterStory) -> None:
    left, right = (("pool", "left"),), (("pool", "right"),)
    cluster.decides_by(backfill=Backfill.GREEDY)
    cluster.is_split(online=0.0)
    cluster.has_nodes(2, gpus_each=8, pool="left")
    cluster.has_nodes(1, gpus_each=8, pool="right")
    cluster.submits(task("long", gpus=1, labels=left), task("other", gpus=8, labels=left))
    cluster.submits(gang("large", members=2, gpus_each=8, labels=left))
    cluster.submits(task("elsewhere", gpus=8, labels=right))
    assert cluster.running() == ["long", "other", "elsewhere"]


def test_small_tasks_do_not_overtake_a_large_one_at_a_quota(cluster: ClusterStory) -> None:
    cluster.is_split(online=0.0)
    cluster.has_tenant("team", max_gpus=4)
    cluster.has_nodes(2, gpus_each=8)
    cluster.submits_many(3, task("small"))
    cluster.submits(task("large", gpus=4))
    cluster.submits(task("late"))
    assert not cluster.is_running("late")
    cluster.finishes("small-1", "small-2", "small-3")
    assert cluster.is_running("large")


def test_borrowed_gpus_are_returned_when_their_class_needs_them(cluster: ClusterStory) -> None:
    cluster.is_split(online=0.5, mode=QuotaMode.BORROW)
    cluster.has_nodes(1, gpus_each=4)
    cluster.submits_many(4, task("batch", preemption=Preemption.REQUEUE))
    cluster.passes(100)
    cluster.submits_many(4, task("online", online=True, priority=0))
    cluster.passes(100)
    assert [name for name in cluster.running() if name.startswith("online")] == ["online-1", "online-2"]
    assert len([name for name in cluster.running() if name.startswith("batch")]) == 2


def test_a_tenant_at_its_limit_waits_and_the_others_do_not(cluster: ClusterStory) -> None:
    cluster.has_nodes(1, gpus_each=4)
    cluster.has_tenant("red", max_gpus=1)
    cluster.submits(task("red-1", tenant="red"), task("red-2", tenant="red"), task("blue", tenant="blue"))
    assert cluster.running() == ["red-1", "blue"]
    assert cluster.why("red-2") == TenantQuotaFull(TenantId("red"), 1, 1.0, 1.0)


def test_a_limit_on_one_model_does_not_affect_the_others(cluster: ClusterStory) -> None:
    cluster.has_node(node("old", gpus=2, model="A100"))
    cluster.has_node(node("new", gpus=2, model="H100"))
    cluster.has_tenant("team", max_gpus_by_model=(("H100", 1),))
    cluster.submits(*(task(f"new-{place}", models=("H100",)) for place in (1, 2)), task("old", models=("A100",)))
    assert cluster.running() == ["new-1", "old"]
    assert cluster.why("new-2") == TenantModelQuotaFull(TenantId("team"), ("H100",))


def test_a_spent_budget_starts_nothing_until_the_next_period(cluster: ClusterStory) -> None:
    cluster.has_nodes(1, gpus_each=2)
    cluster.has_tenant("team", budget=Budget(gpu_hours=1.0, period_seconds=10_000))
    cluster.submits(task("spends", runs_for=3700))
    cluster.passes(3800)
    cluster.submits(task("waits", runs_for=10))
    assert cluster.why("waits") == BudgetSpent(TenantId("team"), 1.0, 10_000.0)
    cluster.passes(6300)
    assert cluster.status("waits") is TaskStatus.SUCCESS
    assert cluster.started_at("waits") == 10_000


def test_a_guarantee_takes_gpus_back_from_tenants_above_theirs() -> None:
    cluster = ClusterStory(policy="fifo")
    cluster.has_nodes(1, gpus_each=4)
    cluster.has_tenant("red", guaranteed_gpus=2)
    cluster.has_tenant("blue", guaranteed_gpus=2)
    cluster.submits_many(4, task("blue", tenant="blue", preemption=Preemption.REQUEUE))
    cluster.passes(100)
    cluster.submits(task("red", gpus=2, tenant="red"))
    cluster.passes(1)
    assert cluster.is_running("red")
    assert len([name for name in cluster.running() if name.startswith("blue")]) == 2


# --- order, gangs, reservations ---------------------------------------------------------------------------------------


def test_waiting_compensates_for_priority() -> None:
    cluster = ClusterStory(level_seconds=600.0)
    cluster.has_nodes(1, gpus_each=1)
    cluster.submits(task("runs", runs_for=1000), task("humble", priority=0))
    cluster.passes(900)
    cluster.submits(task("important", priority=10))
    cluster.passes(200)
    assert cluster.is_running("humble")


def test_a_gang_waits_until_every_member_fits(cluster: ClusterStory) -> None:
    cluster.has_nodes(2, gpus_each=8)
    cluster.submits(gang("train", members=2, gpus_each=8, runs_for=50), task("blocker"))
    assert cluster.is_running("train")
    assert not cluster.is_running("blocker")
    cluster.submits(gang("next", members=2, gpus_each=8))
    cluster.passes(60)
    assert cluster.is_running("blocker")
    assert cluster.why("next") == GangIncomplete(needed=2, can_start=1)


def test_a_large_task_starts_at_its_reservation_and_small_ones_use_the_gap(cluster: ClusterStory) -> None:
    cluster.has_nodes(1, gpus_each=4)
    cluster.submits(task("a", gpus=2, estimate=100, runs_for=100), task("b", estimate=300, runs_for=300))
    cluster.submits(task("large", gpus=4, estimate=500, runs_for=500))
    assert cluster.reserved_for("large") == (("node-1",), 300.0)
    cluster.submits(task("short", estimate=200, runs_for=200), task("long", estimate=600, runs_for=600))
    assert cluster.is_running("short")
    assert cluster.why("long") in (ReservedFor(cluster.numbers["large"]), NoRoom(1.0, 1, 0))
    cluster.passes(299)
    assert not cluster.is_running("long")
    cluster.passes(1)
    assert cluster.started_at("large") == 300.0
    cluster.runs_out()
    assert cluster.started_at("long") == 800.0


def test_a_gang_reserves_nodes_that_are_free_at_the_same_time(cluster: ClusterStory) -> None:
    cluster.has_nodes(3, gpus_each=2)
    for name, seconds in (("a", 100), ("b", 200), ("c", 300)):
        cluster.submits(task(name, gpus=2, estimate=seconds, runs_for=seconds))
    cluster.submits(gang("pair", members=2, gpus_each=2, estimate=50, runs_for=50))
    promised = cluster.reserved_for("pair")
    assert promised is not None
    assert promised[1] == 200.0
    cluster.submits(task("long", estimate=1000))
    cluster.runs_out()
    assert cluster.started_at("pair") == 200.0


def test_a_stream_of_small_tasks_does_not_starve_a_large_one_of_unknown_length(cluster: ClusterStory) -> None:
    cluster.has_nodes(2, gpus_each=4)
    cluster.submits_many(8, task("early", runs_for=100))
    cluster.submits(task("large", gpus=4, runs_for=10))
    for hour in range(20):
        cluster.submits(task(f"stream-{hour}", runs_for=100))
        cluster.passes(20)
    assert cluster.started_at("large") == 100.0


def test_conservative_backfill_delays_no_reservation() -> None:
    cluster = ClusterStory(backfill="conservative")
    cluster.has_nodes(1, gpus_each=4)
    cluster.submits(task("now", gpus=4, estimate=100, runs_for=100))
    cluster.submits(
        task("first", gpus=4, estimate=100, runs_for=100), task("second", gpus=3, estimate=100, runs_for=100)
    )
    promised = [cluster.reserved_for(name) for name in ("first", "second")]
    assert promised == [(("node-1",), 100.0), (("node-1",), 200.0)]
    cluster.runs_out()
    assert [cluster.started_at(name) for name in ("first", "second")] == [100.0, 200.0]


def test_without_backfill_no_task_overtakes_on_the_same_nodes() -> None:
    cluster = ClusterStory(policy="fifo", backfill="none")
    cluster.has_node(node("a", gpus=4, model="A100"))
    cluster.has_node(node("h", gpus=4, model="H100"))
    cluster.submits(task("half", gpus=2, models=("A100",)), task("large", gpus=4, models=("A100",)))
    cluster.submits(task("small", models=("A100",)), task("elsewhere", models=("H100",)))
    assert cluster.running() == ["half", "elsewhere"]


# --- preemption -------------------------------------------------------------------------------------------------------


def test_the_victims_with_the_least_work_to_lose_are_chosen(cluster: ClusterStory) -> None:
    cluster.has_nodes(2, gpus_each=2)
    cluster.submits(task("old", gpus=2, preemption=Preemption.REQUEUE, priority=10))
    cluster.passes(5000)
    cluster.submits(task("young", gpus=2, preemption=Preemption.REQUEUE, priority=10))
    cluster.passes(100)
    cluster.submits(task("urgent", gpus=2, online=True, priority=90))
    cluster.passes(1)
    assert cluster.running() == ["old", "urgent"]


def test_a_suspended_task_resumes_where_it_was_and_loses_nothing(cluster: ClusterStory) -> None:
    cluster.has_nodes(1, gpus_each=2)
    cluster.submits(task("patient", gpus=2, preemption=Preemption.SUSPEND, runs_for=1000))
    cluster.passes(400)
    cluster.submits(task("urgent", gpus=2, online=True, runs_for=50))
    assert cluster.is_suspended("patient")
    cluster.passes(50)
    assert cluster.is_running("patient")
    cluster.passes(599)
    assert cluster.is_running("patient")
    cluster.passes(2)
    assert cluster.status("patient") is TaskStatus.SUCCESS
    assert cluster.state.ended[cluster.numbers["patient"]] is TaskStatus.SUCCESS


def test_a_cleared_place_goes_to_the_task_it_was_cleared_for(cluster: ClusterStory) -> None:
    cluster.world.stop_seconds = 30.0
    cluster.has_nodes(1, gpus_each=4)
    cluster.submits_many(2, task("old", gpus=2, priority=40, preemption=Preemption.REQUEUE))
    cluster.passes(72_000)
    cluster.submits(task("urgent", gpus=4, priority=60))
    cluster.passes(31)
    assert cluster.running() == ["urgent"]


def test_no_task_is_preempted_for_an_equal_one_or_before_its_minimum_run_time() -> None:
    cluster = ClusterStory(preemption_min_run_seconds=60.0)
    cluster.has_nodes(1, gpus_each=1)
    cluster.submits(task("runs", priority=50, preemption=Preemption.REQUEUE))
    cluster.submits(task("equal", priority=50), task("higher", priority=80))
    cluster.passes(59)
    assert cluster.running() == ["runs"]
    cluster.passes(1)
    assert cluster.running() == ["higher"]


def test_an_urgent_task_may_preempt_its_own_class_when_the_class_is_full(cluster: ClusterStory) -> None:
    cluster.is_split(online=0.5)
    cluster.has_nodes(1, gpus_each=4)
    cluster.submits_many(2, task("low", priority=10, preemption=Preemption.REQUEUE))
    cluster.passes(100)
    cluster.submits(task("high", priority=90))
    cluster.passes(1)
    assert cluster.is_running("high")
    assert cluster.gpus_in_use() == 2


# --- nodes ------------------------------------------------------------------------------------------------------------


def test_a_task_of_a_lost_node_runs_again_elsewhere_without_counting_as_failed(cluster: ClusterStory) -> None:
    cluster.has_nodes(2, gpus_each=1)
    cluster.submits(task("job"))
    cluster.loses(cluster.nodes_of("job")[0])
    assert cluster.is_running("job")
    assert cluster.nodes_of("job") == ("node-1",)
    requeued = [event for event in cluster.events_of("job") if isinstance(event, TaskRequeued)]
    assert [event.cause.why for event in requeued] == [CauseKind.NODE_LOST]
    assert cluster.state.tasks[cluster.numbers["job"]].failures == 0


def test_a_task_that_waits_for_its_node_resumes_when_the_node_returns(cluster: ClusterStory) -> None:
    cluster.has_nodes(1, gpus_each=1)
    cluster.submits(task("job", on_lost=OnLost.WAIT, runs_for=100))
    cluster.loses("node-1")
    cluster.passes(500)
    cluster.gets_back("node-1")
    cluster.passes(1)
    assert cluster.status("job") is TaskStatus.SUCCESS


def test_draining_moves_tasks_that_may_move_and_waits_for_the_rest(cluster: ClusterStory) -> None:
    cluster.has_nodes(2, gpus_each=2)
    cluster.submits(task("fixed", gpus=1), task("movable", gpus=1, preemption=Preemption.CHECKPOINT))
    home = cluster.nodes_of("movable")[0]
    assert cluster.nodes_of("fixed") == (home,)
    cluster.cordons(home, drain=True)
    assert cluster.nodes_of("movable")[0] != home
    assert cluster.nodes_of("fixed") == (home,)


def test_an_externally_used_gpu_is_not_allocated(cluster: ClusterStory) -> None:
    cluster.has_nodes(1, gpus_each=2)
    cluster.gpu_becomes("node-1", 0, GpuHealth.EXTERNAL)
    cluster.submits(task("one"), task("two"))
    assert cluster.gpus_of("one") == [("node-1", (1,))]
    cluster.gpu_becomes("node-1", 0, GpuHealth.OK)
    assert cluster.gpus_of("two") == [("node-1", (0,))]


def test_a_gang_that_loses_a_node_is_stopped_on_the_others_and_starts_again_elsewhere(cluster: ClusterStory) -> None:
    cluster.has_nodes(3, gpus_each=8)
    cluster.submits(gang("train", members=2, gpus_each=8))
    lost = cluster.nodes_of("train")[0]
    cluster.loses(lost)
    cluster.passes(1)
    assert cluster.is_running("train")
    assert lost not in cluster.nodes_of("train")
    cluster.gets_back(lost)
    assert cluster.is_running("train")


def test_an_attempt_its_node_lost_is_retried_and_not_counted_as_a_failure(cluster: ClusterStory) -> None:
    cluster.has_nodes(1, gpus_each=1)
    cluster.submits(task("train"))
    cluster.tells(ReportEnded(cluster.numbers["train"], 1, Outcome.LOST, message="The supervisor was killed."))
    assert cluster.is_running("train")
    (requeued,) = [event for event in cluster.events_of("train") if isinstance(event, TaskRequeued)]
    assert requeued.cause == Cause(CauseKind.ATTEMPT_LOST, node=NodeId("node-1"))


def test_a_node_may_end_a_task_at_its_timeout_by_itself(cluster: ClusterStory) -> None:
    cluster.has_nodes(1, gpus_each=1)
    cluster.submits(task("train", retries=3, timeout_seconds=60.0))
    cluster.tells(ReportEnded(cluster.numbers["train"], 1, Outcome.TIMED_OUT))
    assert cluster.status("train") == "timeout"


def test_every_scheduler_that_takes_over_increments_the_epoch(cluster: ClusterStory) -> None:
    cluster.tells(BeginEpoch("0.1.0"))
    cluster.tells(EndEpoch(60.0))
    cluster.tells(BeginEpoch("0.1.0"))
    assert (cluster.state.epoch, cluster.state.scheduler_back_by) == (2, 60.0)
    cluster.tells(BeginEpoch("0.1.0", above=7))
    assert cluster.state.epoch == 8, "a node has obeyed the seventh, whatever this journal knows"


def test_numbers_known_to_a_node_are_not_reused(cluster: ClusterStory) -> None:
    cluster.submits(task("first"))
    cluster.tells(SkipTaskNumbers(TaskId(5)))
    cluster.submits(task("second"))
    assert cluster.numbers == {"first": 1, "second": 6}
    assert [number for number in range(1, 8) if cluster.state.was_ours(TaskId(number))] == [1, 6]


def test_one_failing_member_ends_the_gang_and_all_of_it_is_retried(cluster: ClusterStory) -> None:
    cluster.has_nodes(2, gpus_each=2)
    cluster.submits(gang("train", members=2, gpus_each=2, retries=1))
    cluster.fails_on("train", "node-1")
    ended = [event for event in cluster.events_of("train") if isinstance(event, AttemptEnded)]
    assert len(ended) == 1
    cluster.passes(10)
    assert cluster.is_running("train")
    assert cluster.state.tasks[cluster.numbers["train"]].attempts == 2


# --- what runs --------------------------------------------------------------------------------------------------------


def test_a_failed_task_is_retried_with_growing_delays_and_then_given_up(cluster: ClusterStory) -> None:
    cluster.has_nodes(1, gpus_each=1)
    cluster.submits(task("flaky", retries=2))
    for wait in (2, 4):
        cluster.fails("flaky")
        cluster.passes(wait - 0.1)
        assert not cluster.is_running("flaky")
        cluster.passes(0.1)
        assert cluster.is_running("flaky")
    cluster.fails("flaky")
    assert cluster.status("flaky") is TaskStatus.FAILED


def test_a_task_is_ended_by_its_timeout_and_suspended_time_does_not_count(cluster: ClusterStory) -> None:
    cluster.has_nodes(1, gpus_each=1)
    cluster.submits(task("endless", timeout_seconds=100, preemption=Preemption.SUSPEND))
    cluster.passes(80)
    cluster.submits(task("urgent", online=True, runs_for=500))
    cluster.passes(500)
    assert cluster.is_running("endless")
    cluster.passes(19)
    assert cluster.is_running("endless")
    cluster.passes(1)
    assert cluster.status("endless") is TaskStatus.TIMEOUT


def test_a_task_whose_deadline_passes_in_the_queue_is_not_started(cluster: ClusterStory) -> None:
    cluster.has_nodes(1, gpus_each=1)
    cluster.submits(task("runs"), task("too-late", deadline=60.0))
    cluster.passes(60)
    assert cluster.status("too-late") is TaskStatus.TIMEOUT


def test_a_chain_runs_in_order_and_breaks_where_a_link_fails(cluster: ClusterStory) -> None:
    cluster.has_nodes(1, gpus_each=4)
    cluster.submits(
        task("train"),
        task("test", after=("train",)),
        task("publish", after=("test",)),
        task("tidy", after_any=("publish",)),
    )
    assert cluster.running() == ["train"]
    assert cluster.why("test") == WaitingForTasks(cluster.numbers["train"], 1)
    cluster.finishes("train")
    assert cluster.running() == ["test"]
    cluster.fails("test")
    assert cluster.status("publish") is TaskStatus.CANCELLED
    ends = [event for event in cluster.events_of("publish") if isinstance(event, TaskEnded)]
    assert ends[0].cause.sentence() == "task-2, on whose success it depends, did not succeed."
    assert cluster.running() == ["tidy"]


def test_shares_never_exceed_one_gpu_and_pack_tightly(cluster: ClusterStory) -> None:
    cluster.has_nodes(2, gpus_each=2, gpu_memory_mib=40_000)
    cluster.submits(
        share("half", fraction=0.5),
        share("memory", memory_mib=20_000),
        share("more", fraction=0.25),
        task("whole", gpus=2),
    )
    assert cluster.gpus_of("half") == cluster.gpus_of("memory")
    assert cluster.gpus_of("more") != cluster.gpus_of("half")
    assert cluster.nodes_of("more") == cluster.nodes_of("half")
    assert cluster.is_running("whole")


def test_a_task_without_gpus_avoids_nodes_with_gpus(cluster: ClusterStory) -> None:
    cluster.has_node(node("gpu-node", gpus=4, cpus=8))
    cluster.has_node(node("cpu-node", gpus=0, cpus=8))
    cluster.submits(cpu_task("compile", cpus=8), cpu_task("more", cpus=8))
    assert cluster.nodes_of("compile") == ("cpu-node",)
    assert cluster.nodes_of("more") == ("gpu-node",)


def test_a_lease_holds_gpus_until_it_is_released_or_times_out(cluster: ClusterStory) -> None:
    cluster.has_nodes(1, gpus_each=2)
    cluster.submits(task("lease", gpus=2, command=None, timeout_seconds=600))
    cluster.submits(task("next", gpus=1))
    cluster.passes(599)
    assert cluster.running() == ["lease"]
    cluster.passes(1)
    assert cluster.status("lease") is TaskStatus.TIMEOUT
    assert cluster.running() == ["next"]


def test_hold_and_release(cluster: ClusterStory) -> None:
    cluster.has_nodes(1, gpus_each=1)
    cluster.submits(task("runs"), task("later"))
    cluster.holds("later")
    cluster.finishes("runs")
    assert cluster.why("later") == OnHold(cluster.numbers["later"])
    cluster.releases("later")
    assert cluster.running() == ["later"]


def test_small_tasks_fill_the_fullest_node_so_that_a_large_one_still_fits(cluster: ClusterStory) -> None:
    cluster.has_nodes(3, gpus_each=4)
    cluster.submits_many(5, task("small"))
    cluster.submits(task("large", gpus=4))
    assert cluster.is_running("large")


def test_a_task_that_prefers_nvlink_gets_linked_gpus(cluster: ClusterStory) -> None:
    cluster.has_nodes(1, gpus_each=8)
    cluster.submits(task("one"), task("four", gpus=4, link=Link.NVLINK))
    assert cluster.gpus_of("four") == [("node-1", (4, 5, 6, 7))]


# --- explain ----------------------------------------------------------------------------------------------------------


def test_a_user_learns_why_a_task_waits_what_is_ahead_and_when_it_will_start(cluster: ClusterStory) -> None:
    cluster.has_nodes(1, gpus_each=1)
    cluster.submits(task("runs", estimate=Estimate(100.0, 50.0, 200.0)))
    cluster.submits(task("ahead", estimate=Estimate(10.0, 5.0, 20.0)), task("mine"))
    said = cluster.explains("mine")
    assert (
        said.sentence()
        == "The task needs 1 GPU on one node; the only suitable node has 0 free. It starts when enough are free."
    )
    assert (said.ahead, said.starts_low, said.starts_at, said.starts_high) == (1, 55.0, 110.0, 220.0)


def test_unknown_start_times_are_not_invented(cluster: ClusterStory) -> None:
    cluster.has_nodes(1, gpus_each=1)
    cluster.submits(task("runs"), task("mine"))
    assert cluster.explains("mine").starts_at is None


def test_a_task_too_large_for_every_node_waits_with_that_reason_until_one_joins(cluster: ClusterStory) -> None:
    cluster.has_nodes(1, gpus_each=4, model="A100")
    cluster.submits(task("wishful", models=("B300",)))
    assert cluster.why("wishful") == UnknownGpuModel(("B300",), ("A100",))
    cluster.has_node(node("new", model="B300"))
    assert cluster.is_running("wishful")


def test_the_explained_reservation_is_the_one_the_scheduler_keeps(cluster: ClusterStory) -> None:
    cluster.has_nodes(1, gpus_each=2)
    cluster.submits(task("runs", estimate=60, runs_for=60), task("large", gpus=2, estimate=60))
    made = [event for event in cluster.events_of("large") if isinstance(event, ReservationMade)]
    assert cluster.explains("large").starts_at == made[0].starts_at == 60.0
    cluster.runs_out()
    assert cluster.started_at("large") == 60.0


# --- ranks ------------------------------------------------------------------------------------------------------------


def test_every_demotion_of_a_running_task_gives_others_their_chance(cluster: ClusterStory) -> None:
    cluster.decides_by(policy="default", preemption_min_run_seconds=0.0)
    cluster.has_nodes(1, gpus_each=8)
    cluster.submits(task("first", gpus=8, runs_for=9000, preemption=Preemption.CHECKPOINT))
    cluster.passes(700)
    cluster.submits(task("second", gpus=8, runs_for=9000, preemption=Preemption.CHECKPOINT))
    assert cluster.running() == ["second"]
    cluster.passes(600)
    assert cluster.running() == ["first"]  # both were demoted once, and the earlier one takes its GPUs back
    cluster.passes(2400 - 700)
    assert cluster.running() == ["second"]
    cluster.passes(2400 - 600)
    assert cluster.running() == ["first"]
    cluster.runs_out()
    assert [cluster.status(name) for name in ("first", "second")] == [TaskStatus.SUCCESS] * 2


def test_the_lowest_ranked_tasks_are_preempted_first(cluster: ClusterStory) -> None:
    cluster.has_nodes(2, gpus_each=4)
    cluster.submits(task("low", gpus=4, priority=10, preemption=Preemption.REQUEUE))
    cluster.passes(3600)
    cluster.submits(task("middle", gpus=4, priority=20, preemption=Preemption.REQUEUE))
    cluster.passes(300)
    cluster.submits(task("high", gpus=4, priority=90))
    assert cluster.running() == ["middle", "high"]


def test_a_task_that_may_preempt_the_rest_of_a_node_does_so_when_part_of_it_is_freed(cluster: ClusterStory) -> None:
    cluster.has_nodes(1, gpus_each=8)
    cluster.submits(
        task("firm", gpus=4, runs_for=500), task("weak", gpus=4, priority=10, preemption=Preemption.CHECKPOINT)
    )
    cluster.submits(task("large", gpus=8, priority=90))
    cluster.passes(499)
    assert cluster.running() == ["firm", "weak"]
    cluster.passes(1)
    assert cluster.running() == ["large"]


def test_reserved_nodes_are_open_to_preemptible_tasks(cluster: ClusterStory) -> None:
    cluster.is_split(online=0.0)
    cluster.has_nodes(1, gpus_each=8)
    cluster.submits(task("firm", gpus=4, runs_for=500), task("large", gpus=8, runs_for=100))
    cluster.passes(1)
    cluster.submits(task("stays", gpus=4), task("gives way", gpus=4, runs_for=9000, preemption=Preemption.CHECKPOINT))
    assert cluster.running() == ["firm", "gives way"]
    cluster.passes(499)
    assert cluster.running() == ["large"]
    cluster.passes(100)
    assert cluster.running() == ["stays", "gives way"]


def test_a_task_that_returns_to_a_line_blocked_by_a_reservation_is_tried_if_it_goes_first() -> None:
    cluster = ClusterStory(policy="fifo", backfill="conservative")
    cluster.is_split(online=0.0)
    cluster.has_nodes(1, gpus_each=3)
    for one in (task("early", gpus=2, retries=1), task("stays"), task("large", gpus=3), task("late", gpus=2)):
        cluster.submits(one)
        cluster.passes(1)
    cluster.fails("early")
    cluster.passes(5)
    assert cluster.running() == ["early", "stays"]


def test_reserved_nodes_are_closed_to_tasks_that_would_start_over(cluster: ClusterStory) -> None:
    cluster.is_split(online=0.0)
    cluster.has_nodes(1, gpus_each=8)
    cluster.submits(task("firm", gpus=4, runs_for=500), task("large", gpus=8, runs_for=100))
    cluster.passes(1)
    cluster.submits(task("starts over", gpus=4, runs_for=9000, preemption=Preemption.REQUEUE))
    cluster.passes(499)
    assert cluster.running() == ["large"]


def test_reserved_nodes_are_closed_to_tasks_that_would_leave_memory_there(cluster: ClusterStory) -> None:
    cluster.is_split(online=0.0)
    cluster.has_node(node("one", gpus=8, memory_mib=1000))
    cluster.submits(
        task("firm", gpus=4, memory_mib=400, runs_for=500), task("large", gpus=8, memory_mib=900, runs_for=100)
    )
    cluster.passes(1)
    cluster.submits(task("stays in memory", gpus=4, memory_mib=500, runs_for=9000, preemption=Preemption.SUSPEND))
    cluster.passes(499)
    assert cluster.running() == ["large"]


def test_a_preempting_task_is_tried_again_when_its_victims_start(cluster: ClusterStory) -> None:
    cluster.decides_by(preemption_min_run_seconds=0.0)
    cluster.world.start_seconds = 5.0
    cluster.has_nodes(1, gpus_each=2)
    cluster.submits(task("patient", gpus=2, runs_for=1000, preemption=Preemption.REQUEUE))
    cluster.passes(1)
    cluster.submits(task("urgent", gpus=1, online=True, runs_for=50))
    cluster.passes(20)
    assert cluster.is_running("urgent")


def test_a_large_task_is_overtaken_until_it_has_waited_long_enough_for_a_reservation() -> None:
    cluster = ClusterStory(backfill="easy", reserve_after_seconds=100.0)
    cluster.has_nodes(1, gpus_each=4)
    cluster.submits(task("early", gpus=3, runs_for=1000.0, estimate=1000.0))
    cluster.submits(task("large", gpus=4, runs_for=10.0, estimate=10.0))
    cluster.submits(task("overtakes", runs_for=20.0, estimate=5000.0))
    assert "overtakes" in cluster.placements()
    cluster.passes(99.0)
    assert not cluster.state.reservations
    cluster.passes(1.0)
    assert cluster.numbers["large"] in cluster.state.reservations, "a timer makes it, without any other event"
    cluster.submits(task("too late", runs_for=20.0, estimate=5000.0))
    assert "too late" not in cluster.placements()


def test_where_run_times_are_unpredictable_nodes_are_reserved_much_later() -> None:
    cluster = ClusterStory(backfill="easy", reserve_after_seconds=100.0)
    cluster.has_nodes(1, gpus_each=4)
    cluster.submits(task("early", gpus=3, runs_for=50_000.0, estimate=50_000.0))
    cluster.submits(task("large", gpus=4, runs_for=10.0, estimate=10.0, unpredictable=True))
    cluster.passes(UNPREDICTABLE_TIMES * 100.0 - 1.0)
    assert not cluster.state.reservations
    cluster.passes(1.0)
    assert cluster.numbers["large"] in cluster.state.reservations, "it is protected in the end"


@pytest.mark.parametrize(("unpredictable", "starts"), [(False, True), (True, False)])
def test_a_task_starts_on_reserved_nodes_only_if_it_can_be_stopped_there_for_the_other(
    unpredictable: bool, starts: bool
) -> None:
    cluster = ClusterStory(policy="default", backfill="easy", reserve_after_seconds=0.0)
    cluster.has_nodes(1, gpus_each=4)
    cluster.submits(task("early", gpus=3, runs_for=1000.0, estimate=1000.0))
    cluster.submits(task("large", gpus=4, runs_for=10.0, estimate=10.0))
    assert cluster.numbers["large"] in cluster.state.reservations
    cluster.passes(1.0)
    cluster.submits(task("small", runs_for=9000.0, preemption=Preemption.CHECKPOINT, unpredictable=unpredictable))
    assert ("small" in cluster.placements()) is starts
    cluster.passes(1000.0)
    assert "large" in cluster.placements(), "the other starts when it was promised to"


def of_kind(kind: str, name: str, level: int, gpus: int) -> TaskBuilder:
    built = task(name, gpus=gpus, user="ada", preemption=Preemption.CHECKPOINT, remaining_time_levels=(level,))
    return replace(built, spec=msgspec.structs.replace(built.spec, name=kind))


def test_a_task_is_preempted_for_one_of_another_kind_and_not_for_its_own() -> None:
    cluster = ClusterStory(policy="default")
    cluster.has_nodes(1, gpus_each=4)
    cluster.submits(of_kind("sweep", "runs", level=3, gpus=4))
    cluster.submits(of_kind("sweep", "own", level=2, gpus=4))
    cluster.passes(1000.0)
    assert cluster.is_running("runs")
    cluster.submits(of_kind("trial", "other", level=1, gpus=2))
    cluster.passes(1000.0)
    assert cluster.is_running("other")
    assert not cluster.is_running("runs")


def test_if_the_first_of_a_line_leaves_the_next_one_preempts_what_was_spared_from_it() -> None:
    cluster = ClusterStory(policy="default")
    cluster.has_nodes(1, gpus_each=4)
    cluster.submits(of_kind("sweep", "runs", level=3, gpus=4))
    cluster.submits(of_kind("sweep", "first", level=0, gpus=4))
    cluster.submits(of_kind("trial", "second", level=1, gpus=4))
    cluster.passes(1000.0)
    assert cluster.is_running("runs"), "the first one of the line waits, and the second one goes behind it"
    cluster.cancels("first")
    cluster.passes(1.0)
    assert cluster.is_running("second")


def test_with_reservations_at_once_an_unpredictable_task_has_one_at_once() -> None:
    cluster = ClusterStory(backfill="easy", reserve_after_seconds=0.0)
    cluster.has_nodes(1, gpus_each=4)
    cluster.submits(task("early", gpus=3, runs_for=5000.0, estimate=5000.0))
    cluster.submits(task("large", gpus=4, runs_for=10.0, estimate=10.0, unpredictable=True))
    assert cluster.numbers["large"] in cluster.state.reservations
