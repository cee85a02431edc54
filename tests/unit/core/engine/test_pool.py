"""When an elastic pool grows and shrinks."""

import pytest

from gpuyard.core.domain.commands import RemoveNode
from gpuyard.core.domain.node import NodeSpec
from gpuyard.core.domain.pool import PoolActions, PoolNode, PoolNodeState, PoolSettings
from gpuyard.core.domain.tenant import Budget
from gpuyard.core.domain.values import NodeId
from gpuyard.core.engine.pool import pool_orders
from gpuyard.testing import ClusterStory, cpu_task, gang, node, share, task

KIND = node("pool", gpus=8)
IDLE = 600.0


class Pool:
    """A cluster with a pool of at most four nodes of eight GPUs."""

    def __init__(self, *ready: str, booting: int = 0, kind: NodeSpec = KIND, **settings: float) -> None:
        self.cluster = ClusterStory()
        self.kind = kind
        self.settings = PoolSettings(**{"max_nodes": 4, "idle_seconds": IDLE, **settings})  # type: ignore[arg-type]
        self.provisioned = [PoolNode(NodeId(name), PoolNodeState.READY, 0.0) for name in ready]
        self.provisioned += [PoolNode(NodeId(f"new-{place}"), PoolNodeState.BOOTING, 0.0) for place in range(booting)]
        self.idle_since: dict[NodeId, float] = {}
        for name in ready:
            self.cluster.has_node(node(name, gpus=8))

    def orders(self) -> PoolActions:
        cluster = self.cluster
        return pool_orders(cluster.state, cluster.now, self.settings, self.kind, self.provisioned, self.idle_since)

    def booted(self) -> int:
        return len(self.orders().boot)


def test_an_empty_pool_grows_for_the_first_task() -> None:
    pool = Pool()
    pool.cluster.submits(task("first"))
    assert pool.orders().boot == ("pool-0001",)


def test_without_waiting_tasks_nothing_grows() -> None:
    assert Pool().orders() == PoolActions()


@pytest.mark.parametrize(("tasks", "nodes"), [(8, 1), (9, 2), (16, 2), (100, 4)])
def test_a_pool_grows_by_as_many_nodes_as_the_waiting_tasks_fill_up_to_the_maximum(tasks: int, nodes: int) -> None:
    pool = Pool()
    pool.cluster.submits_many(tasks, task("one"))
    assert pool.booted() == nodes


def test_large_tasks_leave_room_for_small_ones() -> None:
    pool = Pool()
    pool.cluster.submits(task("six", gpus=6), task("five", gpus=5), task("two", gpus=2), task("three", gpus=3))
    assert pool.booted() == 2


def test_nodes_that_are_booting_are_counted() -> None:
    pool = Pool(booting=1)
    pool.cluster.submits_many(9, task("one"))
    assert pool.booted() == 1


def test_names_in_use_are_skipped() -> None:
    pool = Pool("pool-0001", "pool-0003")
    pool.cluster.submits_many(3, task("eight", gpus=8))
    pool.cluster.submits(task("more", gpus=8))
    assert pool.orders().boot == ("pool-0002", "pool-0004")


def test_parts_of_a_gang_get_nodes_of_their_own() -> None:
    pool = Pool()
    pool.cluster.submits(gang("train", members=3, gpus_each=2))
    assert pool.booted() == 3


def test_a_gang_uses_free_nodes_first() -> None:
    pool = Pool("pool-0001")
    pool.cluster.submits(gang("train", members=3, gpus_each=8))
    assert pool.booted() == 2


def test_no_node_is_requested_for_a_gang_that_pool_and_cluster_together_could_not_hold() -> None:
    pool = Pool()
    pool.cluster.submits(gang("huge", members=6, gpus_each=8))
    assert pool.booted() == 0
    pool.cluster.has_nodes(2, gpus_each=8)
    assert pool.booted() == 4


def test_no_node_is_requested_for_a_task_its_kind_could_not_hold() -> None:
    pool = Pool()
    pool.cluster.submits(
        task("other", models=("H100",)), task("large", gpus=9), task("labelled", labels=(("rack", "a"),))
    )
    assert pool.booted() == 0


def test_shares_are_counted_by_what_they_use() -> None:
    pool = Pool()
    pool.cluster.submits_many(33, share("quarter", fraction=0.25))
    assert pool.booted() == 2


def test_cpus_and_memory_count_too() -> None:
    pool = Pool(kind=node("pool", gpus=8, cpus=32, memory_mib=1000))
    pool.cluster.submits_many(2, task("thirsty", cpus=20))
    pool.cluster.submits_many(3, cpu_task("wide", cpus=2, memory_mib=600))
    assert pool.booted() == 3


def test_tasks_that_wait_for_something_else_request_nothing() -> None:
    pool = Pool(max_nodes=8)
    pool.cluster.submits(task("first"), task("second", gpus=8, after=("first",)))
    pool.cluster.submits(task("held", gpus=8))
    pool.cluster.holds("held")
    assert pool.booted() == 1


@pytest.mark.parametrize("nodes", [(), ("pool-0001",)])
def test_a_tenant_requests_no_more_than_its_limit(nodes: tuple[str, ...]) -> None:
    pool = Pool(*nodes, max_nodes=8)
    pool.cluster.has_tenant("poor", max_gpus=16)
    pool.cluster.submits_many(5, task("over", gpus=8, tenant="poor"))
    assert pool.booted() + len(nodes) == 2


def test_a_tenant_at_its_limit_on_a_model_requests_nothing() -> None:
    pool = Pool("pool-0001")
    pool.cluster.has_tenant("poor", max_gpus_by_model=((KIND.gpus[0].model, 8),))
    pool.cluster.submits_many(2, task("over", gpus=8, tenant="poor"))
    assert pool.booted() == 0


def test_a_tenant_whose_budget_is_spent_requests_nothing() -> None:
    pool = Pool("pool-0001")
    pool.cluster.has_tenant("poor", budget=Budget(1.0, 86400.0))
    pool.cluster.submits(task("first", gpus=8, tenant="poor", runs_for=3600))
    pool.cluster.passes(3600)
    pool.cluster.tells(RemoveNode(NodeId("pool-0001")))
    pool.provisioned = []
    pool.cluster.submits(task("second", gpus=8, tenant="poor"))
    assert pool.booted() == 0


def test_a_task_that_has_room_and_waits_for_its_turn_requests_nothing() -> None:
    pool = Pool("pool-0001")
    pool.cluster.decides_by(policy="fifo", backfill="none")
    pool.cluster.submits(task("six", gpus=6), task("eight", gpus=8), task("behind"))
    assert pool.cluster.running() == ["six"]
    assert pool.booted() == 1


@pytest.mark.parametrize("nodes", [(), ("pool-0001",)])
def test_a_class_gets_so_many_nodes_that_its_share_holds_the_task(nodes: tuple[str, ...]) -> None:
    """Of 8 GPUs the part is 2, of 16 it is 4."""
    pool = Pool(*nodes)
    pool.cluster.is_split(online=0.75)
    pool.cluster.submits(task("four", gpus=4))
    assert pool.booted() + len(nodes) == 2


def test_a_task_above_its_class_share_of_the_largest_pool_requests_nothing() -> None:
    pool = Pool()
    pool.cluster.is_split(online=0.9)
    pool.cluster.submits(task("four", gpus=4))
    assert pool.booted() == 0


def test_a_task_that_waits_for_others_of_its_class_requests_nothing() -> None:
    pool = Pool("pool-0001")
    pool.cluster.is_split(online=0.75)
    pool.cluster.submits(task("first", gpus=2), task("second", gpus=2))
    assert pool.cluster.running() == ["first"]
    assert pool.booted() == 0


def test_the_usage_of_the_class_counts_when_there_is_no_room_either() -> None:
    pool = Pool("pool-0001")
    pool.cluster.is_split(online=0.75)
    pool.cluster.submits(task("online", gpus=6, online=True), task("first", gpus=2), task("second", gpus=6))
    assert pool.booted() == 3


def test_a_class_at_its_share_grows_with_the_pool() -> None:
    pool = Pool("pool-0001")
    pool.cluster.is_split(online=0.0)
    pool.cluster.submits(task("first", gpus=8), task("second", gpus=8))
    assert pool.booted() == 1


def test_a_task_must_wait_long_enough() -> None:
    pool = Pool(pressure_seconds=30.0)
    pool.cluster.submits(task("first"))
    assert pool.orders() == PoolActions(again_at=30.0)
    pool.cluster.passes(30)
    assert pool.booted() == 1


def test_the_minimum_is_kept_whether_needed_or_not() -> None:
    assert Pool("pool-0001", min_nodes=2).booted() == 1


def test_an_idle_node_is_released_after_a_while() -> None:
    pool = Pool("pool-0001")
    assert pool.orders() == PoolActions(again_at=IDLE)
    pool.cluster.passes(IDLE - 1)
    assert pool.orders().give_back == ()
    pool.cluster.passes(1)
    assert pool.orders() == PoolActions(give_back=(NodeId("pool-0001"),))


def test_work_in_between_restarts_the_idle_time() -> None:
    pool = Pool("pool-0001")
    pool.orders()
    pool.cluster.submits(task("short", runs_for=10))
    assert pool.orders() == PoolActions()
    pool.cluster.passes(IDLE - 1)
    assert pool.orders().again_at == pool.cluster.now + IDLE


def test_the_minimum_stays_and_the_longest_idle_node_goes_first() -> None:
    pool = Pool("pool-0001", "pool-0002", min_nodes=1)
    pool.cluster.submits(task("short", runs_for=10))
    (busy,) = pool.cluster.nodes_of("short")
    pool.orders()
    pool.cluster.passes(10)
    pool.orders()
    pool.cluster.passes(IDLE)
    (leaves,) = pool.orders().give_back
    assert leaves != busy


def test_no_node_is_released_while_a_waiting_task_could_use_it() -> None:
    pool = Pool("pool-0001", max_nodes=2)
    pool.orders()
    pool.cluster.submits(gang("pair", members=2, gpus_each=8))
    pool.cluster.passes(IDLE)
    assert pool.orders().give_back == ()


def test_a_task_that_no_node_could_hold_keeps_none() -> None:
    pool = Pool("pool-0001")
    pool.orders()
    pool.cluster.submits(gang("huge", members=9, gpus_each=8))
    pool.cluster.passes(IDLE)
    assert pool.orders().give_back == ("pool-0001",)


def test_a_cordoned_node_is_idle_regardless_of_waiting_tasks() -> None:
    pool = Pool("pool-0001", max_nodes=1)
    pool.cluster.cordons("pool-0001")
    pool.cluster.submits(task("first"))
    pool.orders()
    pool.cluster.passes(IDLE)
    assert pool.orders().give_back == ("pool-0001",)


def test_a_lost_node_is_not_idle() -> None:
    pool = Pool("pool-0001")
    pool.cluster.loses("pool-0001")
    pool.orders()
    pool.cluster.passes(IDLE)
    assert pool.orders() == PoolActions()


def test_after_a_failed_boot_another_is_requested_a_little_later() -> None:
    pool = Pool(max_nodes=1)
    pool.provisioned = [PoolNode(NodeId("pool-0001"), PoolNodeState.FAILED, 0.0)]
    pool.cluster.submits(task("first"))
    assert pool.orders() == PoolActions(again_at=60.0)
    pool.cluster.passes(60)
    assert pool.orders() == PoolActions(boot=(NodeId("pool-0002"),), release=(NodeId("pool-0001"),))


def test_a_node_that_does_not_join_in_time_has_failed() -> None:
    pool = Pool(booting=1, max_nodes=1)
    pool.cluster.submits(task("first"))
    assert pool.orders() == PoolActions(again_at=900.0)
    pool.cluster.passes(900)
    assert pool.orders() == PoolActions(again_at=960.0)
    pool.cluster.passes(60)
    assert pool.orders() == PoolActions(boot=(NodeId("pool-0001"),), release=(NodeId("new-0"),))


def test_a_leaving_node_counts_until_it_is_down() -> None:
    pool = Pool(max_nodes=1)
    pool.cluster.submits(task("first"))
    pool.provisioned = [PoolNode(NodeId("pool-0001"), PoolNodeState.LEAVING, 0.0)]
    assert pool.booted() == 0
    pool.provisioned = [PoolNode(NodeId("pool-0001"), PoolNodeState.GONE, 0.0)]
    assert pool.booted() == 1


def test_a_node_that_is_down_is_removed_from_the_cluster_and_forgotten() -> None:
    pool = Pool("pool-0001")
    pool.provisioned = [
        PoolNode(NodeId("pool-0001"), PoolNodeState.GONE, 0.0),
        PoolNode(NodeId("pool-0002"), PoolNodeState.GONE, 0.0),
    ]
    assert pool.orders() == PoolActions(remove=(NodeId("pool-0001"),), release=(NodeId("pool-0002"),))


# --- several pools ------------------------------------------------------------------------------------------------------


def boots_of_two(cluster: ClusterStory, cheap: PoolSettings, dear: PoolSettings, booting: int = 0) -> tuple[int, int]:
    """How many nodes two pools of different prices boot."""
    covered: dict[int, int] = {}
    coming = [PoolNode(NodeId(f"cheap-{place}"), PoolNodeState.BOOTING, cluster.now) for place in range(booting)]
    first = pool_orders(cluster.state, cluster.now, cheap, node("cheap", gpus=4), coming, {}, covered)
    second = pool_orders(cluster.state, cluster.now, dear, node("dear", gpus=8), [], {}, covered)
    return len(first.boot), len(second.boot)


def test_tasks_for_which_a_cheaper_pool_boots_are_no_pressure_on_the_next() -> None:
    cluster = ClusterStory()
    cluster.submits_many(8, task("small", gpus=2))
    assert boots_of_two(cluster, PoolSettings(max_nodes=4), PoolSettings(max_nodes=4)) == (4, 0)


def test_what_a_cheaper_pool_has_no_space_for_goes_to_the_next() -> None:
    cluster = ClusterStory()
    cluster.submits_many(8, task("small", gpus=2))
    assert boots_of_two(cluster, PoolSettings(max_nodes=1), PoolSettings(max_nodes=4)) == (1, 2)
    cluster.submits(task("large", gpus=8))
    assert boots_of_two(cluster, PoolSettings(max_nodes=4), PoolSettings(max_nodes=4)) == (4, 1)


def test_nodes_on_their_way_cover_tasks_even_if_the_pool_is_at_its_maximum() -> None:
    cluster = ClusterStory()
    cluster.submits_many(2, task("small", gpus=4))
    assert boots_of_two(cluster, PoolSettings(max_nodes=2), PoolSettings(max_nodes=4), booting=2) == (0, 0)
    cluster.submits(task("third", gpus=4))
    assert boots_of_two(cluster, PoolSettings(max_nodes=2), PoolSettings(max_nodes=4), booting=2) == (0, 1)


def test_a_gang_that_a_cheaper_pool_cannot_hold_goes_to_the_next() -> None:
    cluster = ClusterStory()
    cluster.submits(gang("four", members=4, gpus_each=4))
    assert boots_of_two(cluster, PoolSettings(max_nodes=2), PoolSettings(max_nodes=4)) == (0, 4)


# --- nodes that were taken away -----------------------------------------------------------------------------------------


def test_a_node_that_stays_lost_is_removed_and_makes_room_for_another() -> None:
    pool = Pool("pool-0001", max_nodes=1, lost_seconds=300.0)
    pool.cluster.submits(task("long", gpus=8))
    pool.cluster.loses("pool-0001")
    lost_since: dict[NodeId, float] = {}

    def orders() -> PoolActions:
        cluster = pool.cluster
        return pool_orders(
            cluster.state, cluster.now, pool.settings, KIND, pool.provisioned, pool.idle_since, None, lost_since
        )

    assert (orders().remove, orders().boot, orders().again_at) == ((), (), 300.0)
    pool.cluster.passes(299)
    assert orders().remove == ()
    pool.cluster.passes(1)
    assert (orders().remove, orders().boot) == (("pool-0001",), ("pool-0002",))


def test_a_node_that_returns_in_time_stays() -> None:
    pool = Pool("pool-0001", lost_seconds=300.0)
    lost_since: dict[NodeId, float] = {}
    for lost in (True, False, True):
        if lost:
            pool.cluster.loses("pool-0001")
        else:
            pool.cluster.gets_back("pool-0001")
        cluster = pool.cluster
        found = pool_orders(
            cluster.state, cluster.now, pool.settings, KIND, pool.provisioned, pool.idle_since, None, lost_since
        )
        assert found.remove == ()
        pool.cluster.passes(200)
