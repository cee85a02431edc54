"""No task waits behind one that cannot start now."""

import pytest

from gpuyard.testing import ClusterStory, task


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
