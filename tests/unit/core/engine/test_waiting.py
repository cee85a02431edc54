"""What a task waits for: the refusal is stored with the wake-ups that can change it, told by explain, and acted upon."""

import pytest

from gpuyard.core.domain import commands as command
from gpuyard.core.domain.causes import Cause, CauseKind
from gpuyard.core.domain.events import AttemptResuming, AttemptStopping, ReservationMade, TaskPlaced
from gpuyard.core.domain.refusals import (
    ClassQuotaFull,
    ClassQuotaTooSmall,
    NoRoom,
    QuotaReservedFor,
    Refusal,
    TenantQuotaFull,
    TenantQuotaTooSmall,
)
from gpuyard.core.domain.tenant import Budget, QuotaMode
from gpuyard.core.domain.values import Preemption, TaskClass, TenantId
from gpuyard.core.engine.waiting.wakeups import (
    At,
    Blocked,
    ClassLimit,
    ClassQuota,
    ReservationEnded,
    RoomOn,
    TenantQuota,
    Wakeup,
)
from gpuyard.testing import ClusterStory, gang, node, task


@pytest.fixture
def cluster() -> ClusterStory:
    """Two nodes of four GPUs, and no quota in the way."""
    cluster = ClusterStory(policy="fifo", backfill="easy")
    cluster.is_split(online=0.5, mode=QuotaMode.NONE)
    cluster.has_nodes(2, gpus_each=4)
    return cluster


def blocked(cluster: ClusterStory, name: str) -> Blocked:
    """What the queue has stored for a task."""
    group = cluster.state.tasks[cluster.numbers[name]].group
    assert group is not None, f"{name} is not queued"
    found = group.blocked or group.line.class_blocked[group.class_index] or group.line.blocked
    assert found is not None, f"{name} is not blocked"
    return found


def waits_for(cluster: ClusterStory, name: str) -> tuple[type[Refusal], list[type[Wakeup]]]:
    """The refusal that is stored for a task, and the kinds of wake-ups it waits for."""
    found = blocked(cluster, name)
    return found.refusal, [type(wakeup) for wakeup in found.wakeups]


def told(cluster: ClusterStory, name: str) -> str:
    """The sentence that explain prints."""
    return cluster.explains(name).sentence()


def cause_of(cluster: ClusterStory, name: str) -> Cause | None:
    """Why a task was placed, resumed or given a reservation the last time."""
    decisions = [
        event for event in cluster.events_of(name) if isinstance(event, TaskPlaced | AttemptResuming | ReservationMade)
    ]
    return decisions[-1].because


# --- what is told, and what wakes ---------------------------------------------------------------------------------


def test_a_task_without_room_waits_for_room(cluster: ClusterStory) -> None:
    cluster.submits(task("left", gpus=4), task("right", gpus=3))
    cluster.submits(task("waits", gpus=2))
    assert (
        told(cluster, "waits")
        == "The task needs 2 GPUs on one node; the emptiest of 2 suitable nodes has 1 free. It starts when enough are free."
    )
    assert waits_for(cluster, "waits")[1] == [RoomOn]
    cluster.finishes("right")
    assert cluster.is_running("waits")
    assert cause_of(cluster, "waits") == Cause(CauseKind.GPUS_FREED, task=cluster.numbers["right"])


def test_a_task_whose_class_is_full_waits_for_the_quota_of_the_class(cluster: ClusterStory) -> None:
    cluster.is_split(online=0.5)
    cluster.submits(task("busy", gpus=3))
    cluster.submits(task("waits", gpus=2))
    assert (
        told(cluster, "waits")
        == "The quota of batch tasks is 4 GPUs; 3 are in use and the task needs 2. It starts when batch tasks end or the quota is raised (gpuyard quota)."
    )
    assert waits_for(cluster, "waits")[1] == [ClassQuota]
    cluster.finishes("busy")
    assert cluster.is_running("waits")
    assert cause_of(cluster, "waits") == Cause(CauseKind.GPUS_FREED, task=cluster.numbers["busy"])


def test_a_task_above_the_share_of_its_class_waits_for_that_share_to_change(cluster: ClusterStory) -> None:
    cluster.is_split(online=0.9)
    cluster.submits(task("waits", gpus=4))
    assert "It can only start if the quota changes" in told(cluster, "waits")
    assert waits_for(cluster, "waits")[1] == [ClassLimit]
    cluster.is_split(online=0.5)
    assert cluster.is_running("waits")
    assert cause_of(cluster, "waits") == Cause(CauseKind.LIMITS_CHANGED)


def test_a_task_whose_tenant_is_at_its_limit_waits_for_the_quota_of_the_tenant(cluster: ClusterStory) -> None:
    cluster.has_tenant("lab", max_gpus=2)
    cluster.submits(task("busy", gpus=2, tenant="lab"))
    cluster.submits(task("waits", tenant="lab"))
    assert (
        told(cluster, "waits")
        == "The limit of tenant lab is 2 GPUs; 2 are in use and the task needs 1. It starts when tasks of the tenant end or an administrator raises the limit."
    )
    assert waits_for(cluster, "waits")[1] == [TenantQuota]
    cluster.finishes("busy")
    assert cluster.is_running("waits")
    assert cause_of(cluster, "waits") == Cause(CauseKind.GPUS_FREED, task=cluster.numbers["busy"])


def test_a_task_behind_another_at_the_same_quota_names_it(cluster: ClusterStory) -> None:
    cluster.has_tenant("lab", max_gpus=3)
    cluster.submits(task("busy", gpus=2, tenant="lab"))
    cluster.submits(task("first", gpus=2, tenant="lab"))
    cluster.submits(task("waits", tenant="lab"))
    assert (
        told(cluster, "waits")
        == "The quota that the task needs is reserved for task-2, which is ahead of it and needs more."
    )
    assert blocked(cluster, "waits").ahead == cluster.numbers["first"]


@pytest.mark.parametrize("backfill", ["none", "greedy", "easy", "conservative"])
@pytest.mark.parametrize("of", ["class", "tenant"])
def test_a_task_behind_another_at_a_quota_that_has_room_for_it_again_names_the_other(of: str, backfill: str) -> None:
    cluster = ClusterStory(policy="fifo", backfill=backfill)
    cluster.has_nodes(1, gpus_each=4)
    if of == "class":
        cluster.is_split(online=0.5)
    else:
        cluster.is_split(online=0.0)
        cluster.has_tenant("team", max_gpus=2)
    cluster.submits(task("one", tenant="team"), task("other", tenant="team"))
    cluster.submits(task("large", gpus=2, tenant="team"), task("small", tenant="team"))
    cluster.finishes("one")
    assert cluster.running() == ["other"]
    assert cluster.why("small") == QuotaReservedFor(cluster.numbers["large"])
    cluster.finishes("other")
    assert cluster.running() == ["large"]
    full = (
        ClassQuotaFull(TaskClass.BATCH, 2, 2.0, 1.0)
        if of == "class"
        else TenantQuotaFull(TenantId("team"), 2, 2.0, 1.0)
    )
    assert cluster.why("small") == full


def test_a_reservation_is_caused_by_what_made_its_task_the_next_one(cluster: ClusterStory) -> None:
    cluster.submits(task("a", gpus=4, runs_for=100), task("b", gpus=4, runs_for=200))
    cluster.submits(gang("first", members=2, gpus_each=4, estimate=50.0))
    cluster.passes(50)
    cluster.submits(gang("second", members=2, gpus_each=4, estimate=50.0))
    cluster.tells(command.CancelTask(cluster.numbers["first"]))
    made = [event for _, event in cluster.events if isinstance(event, ReservationMade)]
    assert [event.task for event in made] == [cluster.numbers["first"], cluster.numbers["second"]]
    assert made[1].because == Cause(CauseKind.RESERVATION_ENDED, task=cluster.numbers["first"])


def test_where_usage_sets_the_order_it_is_the_cause_of_a_placement() -> None:
    cluster = ClusterStory(policy="fair_share")
    cluster.has_nodes(1, gpus_each=1)
    cluster.submits(task("a", tenant="red"))
    cluster.submits(task("b", tenant="red"), task("c", tenant="blue"))
    cluster.finishes("a")
    causes = [event.because for _, event in cluster.events if isinstance(event, TaskPlaced)]
    assert all(cause is not None and "None" not in cause.sentence() for cause in causes)
    assert causes[-1] in (Cause(CauseKind.USAGE_CHANGED), Cause(CauseKind.GPUS_FREED, task=cluster.numbers["a"]))


def test_a_task_whose_tenant_has_spent_its_budget_waits_for_the_next_period(cluster: ClusterStory) -> None:
    cluster.has_tenant("lab", budget=Budget(gpu_hours=1.0, period_seconds=7200.0))
    cluster.submits(task("busy", gpus=4, tenant="lab", runs_for=1800))
    cluster.passes(1800)
    cluster.submits(task("waits", tenant="lab"))
    assert (
        told(cluster, "waits")
        == "Tenant lab has used its 1 GPU-hours of this period. The task waits for the next period."
    )
    assert waits_for(cluster, "waits")[1] == [TenantQuota, At]
    cluster.passes(5400)
    assert cluster.is_running("waits")
    assert cause_of(cluster, "waits") == Cause(CauseKind.TIME_CAME)


def test_a_task_that_would_delay_a_reservation_names_its_task_and_waits_for_its_end(cluster: ClusterStory) -> None:
    cluster.submits(gang("both", members=2, gpus_each=2, estimate=60))
    cluster.submits(gang("large", members=2, gpus_each=4, estimate=60))
    cluster.submits(task("waits", gpus=2, estimate=600))
    assert told(cluster, "waits") == "The GPUs that the task could use are reserved for task-2, which is ahead of it."
    assert waits_for(cluster, "waits")[1] == [RoomOn, ReservationEnded]
    cluster.cancels("large")
    assert cluster.is_running("waits")
    assert cause_of(cluster, "waits") == Cause(CauseKind.RESERVATION_ENDED, task=cluster.numbers["large"])


def test_a_task_that_fits_before_a_reserved_start_that_moved_is_tried(cluster: ClusterStory) -> None:
    cluster.submits(gang("both", members=2, gpus_each=2, estimate=100))
    cluster.submits(gang("large", members=2, gpus_each=4, estimate=60))
    cluster.submits(task("waits", gpus=2, estimate=55))
    assert cluster.is_running("waits")
    cluster.finishes("waits")
    cluster.passes(60)
    cluster.submits(task("short", gpus=2, estimate=55))
    assert told(cluster, "short") == "The GPUs that the task could use are reserved for task-2, which is ahead of it."
    cluster.passes(40)
    assert cluster.reserved_for("large") == (("node-2", "node-1"), 160.0)
    assert cluster.is_running("short")
    assert cause_of(cluster, "short") == Cause(CauseKind.RESERVATION_MOVED, task=cluster.numbers["large"])


def test_a_gang_says_how_many_of_its_nodes_are_free(cluster: ClusterStory) -> None:
    cluster.submits(task("busy", gpus=2))
    cluster.submits(gang("waits", members=2, gpus_each=4))
    assert told(cluster, "waits") == "The gang needs 2 nodes at the same time; nodes with enough free GPUs now: 1."
    assert waits_for(cluster, "waits")[1] == [RoomOn]


def test_a_task_kept_out_by_fragmentation_says_what_the_emptiest_node_has(cluster: ClusterStory) -> None:
    cluster.submits(task("left", gpus=3), task("right", gpus=3))
    cluster.submits(task("waits", gpus=2))
    assert (
        told(cluster, "waits")
        == "The task needs 2 GPUs on one node; the emptiest of 2 suitable nodes has 1 free. It starts when enough are free."
    )
    assert sum(device_group.free for device_group in cluster.state.index.all_device_groups()) == 2


def test_a_task_that_depends_on_another_says_on_which(cluster: ClusterStory) -> None:
    cluster.submits(task("first"), task("waits", after=("first",)))
    assert told(cluster, "waits") == "The task waits for task-1 to end (see gpuyard explain task-1)."
    cluster.finishes("first")
    assert cause_of(cluster, "waits") == Cause(CauseKind.QUEUED, task=cluster.numbers["waits"])


def test_a_task_on_hold_says_so(cluster: ClusterStory) -> None:
    cluster.submits(task("busy", gpus=4), task("other", gpus=4), task("waits"))
    cluster.holds("waits")
    assert told(cluster, "waits") == "The task is on hold. Release it with `gpuyard release task-3`."


def test_a_task_that_failed_waits_for_an_instant(cluster: ClusterStory) -> None:
    cluster.submits(task("waits", retries=1))
    cluster.fails("waits")
    assert told(cluster, "waits") == "The task waits for its retry delay before the next attempt."
    cluster.passes(cluster.state.settings.retry_delay_seconds)
    assert cluster.is_running("waits")


def test_the_figures_shown_are_current(cluster: ClusterStory) -> None:
    cluster.has_tenant("lab", max_gpus=4)
    cluster.submits(task("a", gpus=2, tenant="lab"), task("b", tenant="lab"), task("waits", gpus=4, tenant="lab"))
    assert "3 are in use" in told(cluster, "waits")
    cluster.finishes("b")
    assert "2 are in use" in told(cluster, "waits")


def test_a_task_that_weighs_too_much_where_there_is_room_names_the_quota() -> None:
    cluster = ClusterStory(policy="fifo")
    cluster.is_split(online=0.5, mode=QuotaMode.NONE)
    cluster.has_nodes(1, gpus_each=4)
    cluster.has_nodes(1, gpus_each=8)
    cluster.has_tenant("lab", max_gpus=4)
    cluster.submits(task("busy", gpus=4))
    cluster.submits(task("waits", gpus=1, whole_nodes=True, tenant="lab"))
    assert (
        told(cluster, "waits")
        == "The limit of tenant lab is 4 GPUs; 0 are in use and the task needs 8. It starts when tasks of the tenant end or an administrator raises the limit."
    )
    cluster.finishes("busy")
    assert cluster.nodes_of("waits") == ("node-1",)


def test_a_task_placed_by_preemption_says_that_its_victims_have_ended() -> None:
    cluster = ClusterStory(preemption_min_run_seconds=0.0)
    cluster.is_split(online=0.0, mode=QuotaMode.BORROW)
    cluster.has_nodes(1, gpus_each=4)
    cluster.submits(task("weak", gpus=4, priority=10, preemption=Preemption.REQUEUE))
    cluster.submits(task("urgent", gpus=4, priority=90))
    assert cause_of(cluster, "urgent") == Cause(CauseKind.VICTIMS_GONE)


def test_a_task_placed_at_once_was_placed_because_it_was_submitted(cluster: ClusterStory) -> None:
    cluster.submits(task("a"))
    assert cause_of(cluster, "a") == Cause(CauseKind.QUEUED, task=cluster.numbers["a"])


def test_a_task_that_is_not_tried_yet_shows_the_reason_it_would_get(cluster: ClusterStory) -> None:
    cluster.submits(task("left", gpus=4), task("right", gpus=4), task("waits", gpus=4))
    cluster.world.handle(command.ChangePriority(cluster.numbers["waits"], 90))
    assert (
        told(cluster, "waits")
        == "The task needs 4 GPUs on one node; the emptiest of 2 suitable nodes has 0 free. It starts when enough are free."
    )


def test_a_tenant_at_its_limit_on_a_model_stops_nobody_on_it() -> None:
    cluster = ClusterStory(policy="priority", backfill="greedy", preemption_min_run_seconds=0.0)
    cluster.is_split(online=0.0, mode=QuotaMode.NONE)
    cluster.has_node(node("a", gpus=2, model="A100"))
    cluster.has_node(node("h", gpus=1, model="H100"))
    cluster.has_tenant("red", max_gpus_by_model=(("A100", 1),))
    cluster.submits(task("mine", tenant="red", models=("A100",), priority=100))
    cluster.submits(task("weak", tenant="blue", models=("A100",), preemption=Preemption.REQUEUE, priority=0))
    cluster.submits(task("other", tenant="blue", models=("H100",), priority=100))
    cluster.passes(1000)
    cluster.submits(task("waits", tenant="red", models=("A100", "H100"), priority=90))
    assert not [event for _, event in cluster.events if isinstance(event, AttemptStopping)]


def test_a_limit_that_was_lowered_is_the_reason_of_tasks_that_waited_for_room(cluster: ClusterStory) -> None:
    cluster.submits(task("a", gpus=4, tenant="other"), task("b", gpus=4, tenant="other"))
    cluster.submits(task("waits", tenant="lab"))
    assert isinstance(cluster.why("waits"), NoRoom)
    cluster.has_tenant("lab", max_gpus=0)
    assert cluster.why("waits") == TenantQuotaTooSmall(TenantId("lab"), 0, 1.0, 1)
    cluster.has_tenant("lab", budget=Budget(gpu_hours=1.0, period_seconds=7200.0))
    assert isinstance(cluster.why("waits"), NoRoom)
    cluster.is_split(online=1.0)
    assert isinstance(cluster.why("waits"), ClassQuotaTooSmall)


def test_a_task_ahead_that_can_never_start_is_not_named(cluster: ClusterStory) -> None:
    cluster.has_tenant("lab", max_gpus=3)
    cluster.submits(task("busy", gpus=2, tenant="lab"))
    cluster.submits(task("first", gpus=2, tenant="lab"))
    cluster.submits(task("waits", gpus=2, tenant="lab", priority=0), task("small", tenant="lab", priority=0))
    cluster.has_tenant("lab", max_gpus=1)
    assert cluster.why("small") == TenantQuotaFull(TenantId("lab"), 1, 2.0, 1.0)


@pytest.mark.parametrize(("preemption", "timers"), [(Preemption.NEVER, 0), (Preemption.CHECKPOINT, 1)])
def test_a_timer_watches_the_rank_of_a_running_task_only_if_it_may_be_preempted(
    preemption: Preemption, timers: int
) -> None:
    cluster = ClusterStory(policy="default")
    cluster.has_nodes(1, gpus_each=4)
    cluster.submits(task("train", gpus=4, preemption=preemption))
    assert len(cluster.state.timers) == timers
