"""No task waits behind one that cannot start now."""

import pytest

from gpuyard.core.domain.commands import CancelTask, ChangePriority, CordonNode
from gpuyard.core.domain.refusals import NoRoom, TenantModelQuotaFull, TenantQuotaFull
from gpuyard.core.domain.tenant import QuotaMode
from gpuyard.testing import ClusterStory, gang, node, task


@pytest.fixture
def cluster() -> ClusterStory:
    """Eight GPUs, four of them for batch work."""
    cluster = ClusterStory()
    cluster.is_split(online=0.5)
    cluster.has_nodes(1, gpus_each=8)
    return cluster


def test_a_task_larger_than_its_class_blocks_no_other(cluster: ClusterStory) -> None:
    cluster.submits(task("never", gpus=8, priority=90))
    cluster.submits(task("small", priority=0))
    assert cluster.running() == ["small"]


def test_a_second_one_that_joins_its_line_and_goes_first_blocks_no_other(cluster: ClusterStory) -> None:
    cluster.submits(task("never", gpus=8, priority=10))
    cluster.submits(task("never2", gpus=8, priority=90))
    cluster.submits(task("small", priority=0))
    assert cluster.running() == ["small"]


def test_a_task_no_open_node_could_hold_blocks_no_other(cluster: ClusterStory) -> None:
    cluster.has_nodes(1, gpus_each=2, model="T4")
    cluster.cordons("node-2")
    cluster.submits(task("closed", gpus=2, models=("T4",), priority=90))
    cluster.submits(task("small", gpus=4, priority=0))
    assert cluster.running() == ["small"]


def test_a_task_larger_than_its_tenants_limit_blocks_no_other(cluster: ClusterStory) -> None:
    cluster.submits(task("busy", gpus=4, tenant="lab"))
    cluster.submits(task("large", gpus=4, tenant="lab", priority=90))
    cluster.has_tenant("lab", max_gpus=2)
    cluster.finishes("busy")
    cluster.submits(task("small", gpus=2, tenant="lab", priority=0))
    assert cluster.running() == ["small"]


def test_tasks_for_one_model_queue_at_its_limit(cluster: ClusterStory) -> None:
    cluster.has_tenant("lab", max_gpus_by_model=(("A100", 3),))
    cluster.submits(task("first", gpus=2, tenant="lab", models=("A100",)))
    cluster.submits(task("large", gpus=2, tenant="lab", models=("A100",)))
    cluster.submits(task("small", tenant="lab", models=("A100",)))
    assert cluster.running() == ["first"]
    cluster.finishes("first")
    assert cluster.running() == ["large", "small"]


def test_a_task_first_at_its_class_and_above_its_tenants_limit_blocks_no_other(
    cluster: ClusterStory,
) -> None:
    cluster.submits(task("busy", gpus=2, tenant="other"))
    cluster.submits(task("large", gpus=3, tenant="lab", priority=90))
    cluster.has_tenant("lab", max_gpus=2)
    cluster.submits(task("small", tenant="other", priority=0))
    assert cluster.running() == ["busy", "small"]


def test_a_task_whose_priority_falls_goes_behind_the_others_of_its_group(cluster: ClusterStory) -> None:
    cluster.submits(task("busy", gpus=4))
    cluster.submits(task("first", gpus=4, priority=90))
    cluster.submits(task("second", gpus=4, priority=50))
    cluster.tells(ChangePriority(cluster.numbers["first"], 10))
    cluster.finishes("busy")
    assert cluster.running() == ["second"]


def entries(cluster: ClusterStory) -> int:
    """Number of entries in the index of the queue, valid or not."""
    queue = cluster.state.queue
    groups = [group for line in queue.lines.values() for group in line.groups.values()]
    return (
        len(groups)
        + sum(len(group.heap) for group in groups)
        + sum(len(heads) for line in queue.lines.values() for heads in line.heads)
        + sum(len(waiting) for waiting in queue.for_class)
        + sum(len(waiting) for limits in queue.for_tenant.values() for waiting in limits.values())
    )


@pytest.mark.parametrize("of", ["class", "tenant", "many tenants"])
def test_tasks_that_came_and_went_leave_a_bounded_number_of_entries(cluster: ClusterStory, of: str) -> None:
    if of == "tenant":
        cluster.is_split(online=0.0)
        cluster.has_tenant("team", max_gpus=4)
    cluster.submits(task("busy", gpus=3, tenant="team"))
    cluster.submits(task("first", gpus=4, priority=100, tenant="team"))
    for number in range(500):
        tenant = f"tenant-{number}" if of == "many tenants" else "team"
        cluster.submits(task(f"t{number}", gpus=2, priority=number % 99, tenant=tenant))
        cluster.tells(CancelTask(cluster.numbers[f"t{number}"]))
    assert entries(cluster) < 300
    cluster.finishes("busy")
    assert cluster.running() == ["first"]


@pytest.mark.parametrize("limit", [(("A100", 2),), (("A100", 0), ("H100", 4))])
def test_without_backfill_a_task_stopped_by_a_limit_on_models_blocks_no_other(
    limit: tuple[tuple[str, int], ...],
) -> None:
    cluster = ClusterStory(policy="priority", backfill="none")
    cluster.is_split(online=0.0, mode=QuotaMode.NONE)
    cluster.has_node(node("n", gpus=4))
    cluster.has_tenant("limited", max_gpus_by_model=limit)
    cluster.submits(task("runs"))
    cluster.submits(task("big", gpus=4, priority=0))
    cluster.submits(task("never", gpus=4, tenant="limited", priority=100))
    cluster.submits(task("small", priority=50))
    assert cluster.running() == ["runs", "small"]
    assert isinstance(cluster.why("never"), TenantModelQuotaFull | TenantQuotaFull | NoRoom)


def test_a_task_whose_nodes_are_closed_gets_no_reservation() -> None:
    cluster = ClusterStory(policy="fifo", backfill="easy")
    cluster.is_split(online=0.0, mode=QuotaMode.NONE)
    cluster.has_nodes(2, gpus_each=4)
    cluster.submits(task("a", gpus=4), task("b", gpus=4))
    cluster.submits(gang("both", members=2, gpus_each=4))
    (busy,) = cluster.state.tasks[cluster.numbers["a"]].active.placement.nodes
    cluster.tells(CordonNode(busy))
    cluster.finishes("b")
    assert not cluster.state.reservations
    cluster.submits(task("small"))
    assert cluster.is_running("small")
