"""A waiting task that gets the right to preempt others is tried at that instant, whatever gave it the right."""

from gpuyard.core.domain import commands as command
from gpuyard.core.domain.tenant import Budget, QuotaMode
from gpuyard.core.domain.values import Preemption, TaskStatus
from gpuyard.testing import ClusterStory, node, task


def test_under_dqn_a_task_is_preempted_at_the_instant_at_which_it_reaches_a_higher_step() -> None:
    cluster = ClusterStory(policy="dqn", preemption_min_run_seconds=1.0)
    cluster.has_nodes(1, gpus_each=1)
    cluster.submits(task("long", gpus=1, preemption=Preemption.CHECKPOINT))
    cluster.submits(task("short", gpus=1, estimate=5))
    cluster.passes(15.9)
    assert cluster.is_running("long")
    cluster.passes(0.2)
    assert cluster.is_running("short")


def test_a_running_task_whose_priority_is_lowered_is_preempted_at_once() -> None:
    cluster = ClusterStory(policy="default", preemption_min_run_seconds=1.0)
    cluster.has_nodes(1, gpus_each=1)
    cluster.submits(task("runs", gpus=1, priority=50, preemption=Preemption.CHECKPOINT))
    cluster.submits(task("waits", gpus=1, priority=40))
    cluster.passes(10)
    assert cluster.is_running("runs")
    cluster.tells(command.ChangePriority(cluster.numbers["runs"], 10))
    cluster.passes(1)
    assert cluster.is_running("waits")


def test_a_task_at_the_quota_of_its_class_preempts_a_task_of_the_class_that_weakens() -> None:
    cluster = ClusterStory(policy="tiresias", tiresias_threshold_gpu_seconds=100.0, preemption_min_run_seconds=1.0)
    cluster.is_split(online=0.5, mode=QuotaMode.STRICT)
    cluster.has_nodes(1, gpus_each=2)
    cluster.submits(task("old", gpus=1, preemption=Preemption.CHECKPOINT))
    cluster.submits(task("new", gpus=1))
    cluster.passes(99)
    assert cluster.is_running("old")
    cluster.passes(2)
    assert cluster.is_running("new")


def test_nothing_is_stopped_on_a_closed_node() -> None:
    cluster = ClusterStory(policy="default", preemption_min_run_seconds=1.0)
    for name in ("closed", "open"):
        cluster.has_node(node(name, gpus=1, rack=name))
        cluster.submits(
            task(f"on-{name}", gpus=1, priority=10, preemption=Preemption.CHECKPOINT, labels=(("rack", name),))
        )
    cluster.cordons("closed")
    cluster.passes(10)
    cluster.submits(*(task(f"urgent-{number}", gpus=1, priority=90) for number in (1, 2)))
    cluster.passes(10)
    assert sorted(cluster.running()) == ["on-closed", "urgent-1"]


def test_without_backfill_a_task_whose_budget_is_spent_keeps_no_other_from_room() -> None:
    cluster = ClusterStory(policy="fifo", backfill="none")
    cluster.is_split(online=0.5, mode=QuotaMode.NONE)
    cluster.has_nodes(1, gpus_each=2)
    cluster.has_tenant("poor", budget=Budget(100 / 3600, 10_000.0))
    cluster.submits(task("spends", gpus=1, tenant="poor"))
    cluster.submits(task("large", gpus=2, tenant="poor"))
    cluster.submits(task("behind", gpus=1, tenant="rich"))
    cluster.passes(99)
    assert cluster.status("behind") is TaskStatus.PENDING
    cluster.passes(2)
    assert cluster.is_running("behind")


def test_a_reservation_of_a_task_whose_budget_is_spent_ends_when_it_is_spent() -> None:
    cluster = ClusterStory(policy="fifo", backfill="easy")
    cluster.is_split(online=0.5, mode=QuotaMode.NONE)
    cluster.has_nodes(1, gpus_each=2)
    cluster.has_tenant("poor", budget=Budget(100 / 3600, 10_000.0))
    cluster.submits(task("spends", gpus=1, tenant="poor", estimate=1000))
    cluster.submits(task("large", gpus=2, tenant="poor"))
    cluster.submits(task("long", gpus=1, tenant="rich", estimate=5000))
    cluster.passes(99)
    assert cluster.status("long") is TaskStatus.PENDING
    cluster.passes(2)
    assert cluster.is_running("long")
