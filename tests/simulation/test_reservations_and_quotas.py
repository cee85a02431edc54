"""Stories of reservations and quotas in edge cases: restarts, failing GPUs, heads that cannot start, changed limits."""

import pytest

from gpuyard.core.domain import commands as command
from gpuyard.core.domain.events import AttemptStopping, ReservationMade
from gpuyard.core.domain.refusals import TenantQuotaTooSmall
from gpuyard.core.domain.tenant import QuotaMode
from gpuyard.core.domain.values import GpuHealth, NodeId, Preemption, TenantId
from gpuyard.core.engine import snapshot
from gpuyard.core.engine.engine import Engine
from gpuyard.testing import ClusterStory, gang, node, share, task


@pytest.fixture
def cluster() -> ClusterStory:
    return ClusterStory()


def stopped(cluster: ClusterStory) -> list[str]:
    return [cluster.names[event.task] for _, event in cluster.events if isinstance(event, AttemptStopping)]


def restarted(cluster: ClusterStory) -> Engine:
    return Engine(snapshot.load(snapshot.dump(cluster.state)))


# --- claims -----------------------------------------------------------------------------------------------------------


def test_a_claim_whose_rank_changes_still_knows_its_victims(cluster: ClusterStory) -> None:
    cluster.world.stop_seconds = 30.0
    cluster.is_split(online=0.25, mode=QuotaMode.BORROW)
    for name in "abc":
        cluster.has_node(node(name, gpus=4))
    cluster.submits(task("web", gpus=3, online=True))
    for name in ("one", "two"):
        cluster.submits(task(name, gpus=4, preemption=Preemption.REQUEUE, priority=0))
    cluster.submits(task("small", priority=0))
    cluster.passes(100)
    cluster.submits(task("urgent", gpus=4, priority=90))
    cluster.finishes("small")
    cluster.submits(task("late", priority=0))
    cluster.passes(1)
    assert len(stopped(cluster)) == 1
    cluster.passes(30)
    assert cluster.is_running("urgent")


def test_a_claim_survives_the_failure_of_a_neighboring_gpu(cluster: ClusterStory) -> None:
    cluster.is_split(online=0.0)
    cluster.world.stop_seconds = 60.0
    for name in "ab":
        cluster.has_node(node(name, gpus=5))
        cluster.submits(task(f"long-{name}", gpus=4, preemption=Preemption.REQUEUE, priority=0))
    cluster.passes(100)
    cluster.submits(task("urgent", gpus=4, priority=90))
    (hold,) = cluster.state.reservations.values()
    spare = cluster.state.index.hosts[hold.nodes[0]].device_groups[0].free_mask.bit_length() - 1
    cluster.gpu_becomes(hold.nodes[0], spare, GpuHealth.EXTERNAL)
    assert len(stopped(cluster)) == 1
    cluster.gpu_becomes(hold.nodes[0], 0 if spare else 1, GpuHealth.OFFLINE)
    cluster.passes(1)
    assert len(stopped(cluster)) == 2, "now the room is not enough, and others are asked"


def test_a_restarted_scheduler_remembers_a_victim_that_its_user_cancelled(cluster: ClusterStory) -> None:
    cluster.is_split(online=0.0)
    cluster.world.stop_seconds = 60.0
    cluster.has_nodes(2, gpus_each=4)
    for name in ("one", "two"):
        cluster.submits(task(name, gpus=4, preemption=Preemption.REQUEUE, priority=0))
    cluster.passes(100)
    cluster.submits(task("urgent", gpus=4, priority=90))
    (victim,) = stopped(cluster)
    cluster.cancels(victim)
    assert restarted(cluster).decide(cluster.now) == []


def test_a_restarted_scheduler_keeps_its_reservation_and_its_start(cluster: ClusterStory) -> None:
    cluster.is_split(online=0.0)
    cluster.has_node(node("others", gpus=8, model="T4"))
    for name in "ab":
        cluster.has_node(node(name, gpus=4))
        cluster.submits(task(f"runs-{name}", gpus=3, estimate=100, models=("A100",)))
    cluster.submits(task("first", gpus=4, priority=90, estimate=50, models=("A100",)))
    cluster.submits(task("second", gpus=2, priority=80, estimate=1000, models=("A100",)))
    assert len(cluster.state.reservations) == 1
    engine = restarted(cluster)
    assert engine.decide(cluster.now) == []
    (again,) = engine.decide(100.0)
    assert isinstance(again, ReservationMade)
    assert again.starts_at == 160.0


# --- reservations -----------------------------------------------------------------------------------------------------


def test_a_task_now_ahead_of_a_reserved_one_is_tried_at_once(cluster: ClusterStory) -> None:
    cluster.is_split(online=0.0)
    for name in "ab":
        cluster.has_node(node(name, gpus=4))
    cluster.has_node(node("others", gpus=8, model="T4"))
    cluster.submits(task("three", gpus=3, models=("A100",)), task("four", gpus=4, models=("A100",)))
    cluster.submits(task("promised", gpus=4, priority=90, models=("A100",)))
    cluster.submits(task("behind", gpus=1, priority=50, cpus=1, models=("A100",)))
    assert not cluster.is_running("behind")
    cluster.tells(command.ChangePriority(cluster.numbers["promised"], 0))
    assert cluster.is_running("behind")


@pytest.mark.parametrize("start_seconds", [0.0, 5.0])
def test_a_slow_start_does_not_make_a_task_younger_than_a_reservation(start_seconds: float) -> None:
    cluster = ClusterStory()
    cluster.is_split(online=0.0)
    cluster.world.start_seconds = start_seconds
    cluster.has_node(node("a", gpus=4))
    cluster.has_node(node("others", gpus=8, model="T4"))
    cluster.submits(task("two", gpus=2, models=("A100",)), task("one", models=("A100",)))
    cluster.submits(task("large", gpus=2, priority=90, models=("A100",)))
    cluster.passes(10)
    cluster.submits(task("small", models=("A100",)))
    cluster.passes(10)
    assert cluster.is_running("small")
    assert cluster.reserved_for("large") is not None


# --- heads of a quota -------------------------------------------------------------------------------------------------


def test_no_task_waits_at_a_quota_behind_a_gang_whose_second_node_is_cordoned(cluster: ClusterStory) -> None:
    cluster.is_split(online=0.0)
    cluster.has_nodes(2, gpus_each=4)
    cluster.submits(task("lease", command=None))
    (here,) = cluster.nodes_of("lease")
    cluster.cordons("node-1" if here == "node-2" else "node-2")
    cluster.submits(gang("gang", members=2, gpus_each=4, priority=90))
    cluster.submits_many(3, task("small", priority=10))
    assert cluster.running() == ["lease", "small-1", "small-2", "small-3"]


def test_no_task_waits_at_a_quota_behind_a_task_for_an_externally_used_gpu(cluster: ClusterStory) -> None:
    cluster.is_split(online=0.0)
    cluster.has_node(node("a", gpus=4))
    cluster.submits(task("lease", command=None))
    cluster.gpu_becomes("a", 3, GpuHealth.EXTERNAL)
    cluster.submits(task("whole", gpus=4, priority=90))
    cluster.submits_many(2, task("small", priority=10))
    assert cluster.running() == ["lease", "small-1", "small-2"]


# --- what counts differently from node to node ------------------------------------------------------------------------


def test_a_whole_node_is_taken_where_the_quota_allows_it(cluster: ClusterStory) -> None:
    cluster.has_tenant("team", max_gpus=4)
    cluster.has_node(node("large", gpus=8))
    cluster.submits(task("whole", gpus=1, whole_nodes=True))
    assert cluster.why("whole") == TenantQuotaTooSmall(TenantId("team"), 4, 8.0, 8)
    cluster.has_node(node("small", gpus=2))
    assert cluster.nodes_of("whole") == ("small",)


def test_a_whole_node_waits_for_quota_and_is_not_starved_by_small_tasks(cluster: ClusterStory) -> None:
    cluster.is_split(online=0.0)
    cluster.has_tenant("team", max_gpus=6)
    cluster.has_node(node("large", gpus=8))
    cluster.has_node(node("small", gpus=2))
    cluster.submits(task("busy", gpus=1, labels=(), runs_for=100, estimate=100, tenant="other"))
    cluster.submits(task("whole", gpus=1, whole_nodes=True, priority=90))
    for place in range(20):
        cluster.submits(task(f"stream-{place}", runs_for=60, estimate=60, tenant="other"))
        cluster.passes(20)
    assert cluster.nodes_of("whole") == ("small",)


def test_a_share_by_memory_is_placed_on_the_gpu_where_the_quota_has_room(cluster: ClusterStory) -> None:
    cluster.has_tenant("team", max_gpus=1)
    cluster.has_node(node("little", gpus=1, gpu_memory_mib=20_000))
    cluster.has_node(node("big", gpus=1, gpu_memory_mib=80_000))
    cluster.submits(share("half", fraction=0.5))
    cluster.submits(share("memory", memory_mib=20_000))
    assert [cluster.is_running(name) for name in ("half", "memory")] == [True, True]
    assert cluster.nodes_of("memory") == ("big",)


def test_gpus_of_unknown_memory_can_be_shared(cluster: ClusterStory) -> None:
    cluster.has_node(node("a", gpus=1, gpu_memory_mib=0))
    cluster.submits(share("one", fraction=0.25), share("two", fraction=0.75))
    assert cluster.running() == ["one", "two"]


# --- tenants ----------------------------------------------------------------------------------------------------------


def test_tenants_without_settings_follow_the_default_when_it_changes(cluster: ClusterStory) -> None:
    cluster.has_nodes(1, gpus_each=8)
    cluster.submits(task("early", tenant="guest"))
    cluster.has_tenant("known", max_gpus=3)
    cluster.has_tenant("default", max_gpus=1, max_gpus_by_model=(("A100", 1),))
    cluster.submits(*(task(f"{name}-{place}", tenant=name) for name in ("guest", "new", "known") for place in (1, 2)))
    assert cluster.running() == ["early", "new-1", "known-1", "known-2"]
    cluster.has_tenant("default", max_gpus=2)
    assert {"guest-1", "new-2"} <= set(cluster.running())
    assert not cluster.is_running("guest-2")


def test_unconfigured_tenants_without_tasks_are_forgotten(cluster: ClusterStory) -> None:
    cluster.has_nodes(1, gpus_each=8)
    cluster.has_tenant("known", max_gpus=3)
    cluster.submits(task("runs", tenant="busy"))
    for place in range(100):
        cluster.submits(task(f"t{place}", tenant=f"guest-{place}"))
        cluster.cancels(f"t{place}")
    assert len(cluster.state.tenants) < 10
    assert {"known", "busy"} <= set(cluster.state.tenants)
    assert restarted(cluster).state.tenants.keys() == cluster.state.tenants.keys()


def test_labels_of_nodes_that_left_are_forgotten(cluster: ClusterStory) -> None:
    for place in range(20):
        cluster.has_node(node("elastic", gpus=1, instance=f"i-{place}"))
        cluster.tells(command.RemoveNode(NodeId("elastic")))
    assert not cluster.state.index.by_label
    assert not cluster.state.index.by_model
