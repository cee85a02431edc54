"""A tenant's guarantee holds against every tenant above its own share, whatever changes while a task waits."""

from typing import Any

import pytest

from gpuyard.core.domain.tenant import QuotaMode
from gpuyard.core.domain.values import Preemption, TaskStatus
from gpuyard.testing import ClusterStory, task


def full_of_speech(**settings: Any) -> ClusterStory:
    """Twelve GPUs, all used by speech, which has no guarantee, with tasks that may be requeued."""
    cluster = ClusterStory(**settings)
    cluster.has_nodes(3, gpus_each=4)
    for number in range(12):
        cluster.submits(task(f"speech-{number}", gpus=1, tenant="speech", preemption=Preemption.REQUEUE))
    cluster.passes(120)
    return cluster


def test_a_guarantee_holds_against_a_tenant_without_one() -> None:
    cluster = full_of_speech()
    cluster.has_tenant("vision", guaranteed_gpus=4)
    cluster.submits(*(task(f"vision-{number}", gpus=1, tenant="vision") for number in range(6)))
    cluster.passes(5)
    running = [name for name in cluster.names.values() if cluster.status(name) is TaskStatus.RUNNING]
    assert sum(name.startswith("vision") for name in running) == 4
    assert sum(name.startswith("speech") for name in running) == 8


@pytest.mark.parametrize("given", ["the tenant that waits", "the tenant that runs"])
def test_a_guarantee_given_while_a_task_waits_applies_at_once(given: str) -> None:
    cluster = full_of_speech()
    if given == "the tenant that runs":
        cluster.has_tenant("speech", guaranteed_gpus=12)
        cluster.has_tenant("vision", guaranteed_gpus=4)
    cluster.submits(task("vision", gpus=1, tenant="vision"))
    cluster.passes(5)
    assert cluster.status("vision") is TaskStatus.PENDING
    if given == "the tenant that runs":
        cluster.has_tenant("speech", guaranteed_gpus=8)
    else:
        cluster.has_tenant("vision", guaranteed_gpus=4)
    cluster.passes(5)
    assert cluster.status("vision") is TaskStatus.RUNNING


def test_simultaneous_claims_bring_no_tenant_below_its_guarantee() -> None:
    cluster = ClusterStory()
    cluster.has_nodes(3, gpus_each=4)
    cluster.has_tenant("speech", guaranteed_gpus=9)
    for name in ("red", "blue"):
        cluster.has_tenant(name, guaranteed_gpus=2)
    cluster.submits_many(12, task("speech", gpus=1, tenant="speech", preemption=Preemption.REQUEUE))
    cluster.passes(120)
    cluster.submits(*(task(f"{name}-{number}", gpus=1, tenant=name) for name in ("red", "blue") for number in (1, 2)))
    cluster.passes(5)
    running = [name for name in cluster.names.values() if cluster.status(name) is TaskStatus.RUNNING]
    assert sum(name.startswith("speech") for name in running) == 9


def test_a_guaranteed_task_does_not_wait_behind_the_queue_of_others() -> None:
    cluster = full_of_speech()
    cluster.has_tenant("vision", guaranteed_gpus=4)
    cluster.submits_many(20, task("more", gpus=1, tenant="speech"))
    cluster.submits(task("vision", gpus=1, tenant="vision"))
    cluster.passes(5)
    assert cluster.status("vision") is TaskStatus.RUNNING


def test_a_tenant_below_its_guarantee_gets_the_next_free_gpu_if_nothing_is_preemptible() -> None:
    cluster = ClusterStory()
    cluster.has_nodes(1, gpus_each=2)
    cluster.has_tenant("vision", guaranteed_gpus=1)
    cluster.submits(
        *(task(f"speech-{number}", gpus=1, tenant="speech", runs_for=100 + 50 * number) for number in range(6))
    )
    cluster.submits(task("vision", gpus=1, tenant="vision", runs_for=10))
    cluster.passes(101)
    assert cluster.status("vision") is TaskStatus.RUNNING


def test_a_tenant_within_its_guarantee_is_not_preempted_by_priority() -> None:
    cluster = ClusterStory(policy="priority")
    cluster.has_nodes(1, gpus_each=4)
    cluster.has_tenant("vision", guaranteed_gpus=2)
    for name in ("vision", "speech"):
        cluster.submits_many(2, task(name, gpus=1, tenant=name, priority=10, preemption=Preemption.REQUEUE))
    cluster.passes(120)
    cluster.submits_many(4, task("urgent", gpus=1, tenant="speech", priority=90))
    cluster.passes(5)
    running = sorted(name for name in cluster.names.values() if cluster.status(name) is TaskStatus.RUNNING)
    assert running == ["urgent-1", "urgent-2", "vision-1", "vision-2"]


def test_a_tenant_above_its_share_elsewhere_gives_gpus_back_where_they_are_needed() -> None:
    cluster = ClusterStory()
    cluster.has_nodes(1, gpus_each=4, model="A100")
    cluster.has_nodes(1, gpus_each=4, model="H100")
    cluster.has_tenant("speech", guaranteed_gpus=4)
    cluster.has_tenant("vision", guaranteed_gpus=4)
    cluster.submits_many(4, task("speech", gpus=1, tenant="speech", models=("A100",), preemption=Preemption.REQUEUE))
    cluster.passes(120)
    cluster.submits(task("vision", gpus=1, tenant="vision", models=("A100",)))
    cluster.passes(5)
    assert cluster.status("vision") is TaskStatus.PENDING
    cluster.submits(task("fifth", gpus=1, tenant="speech", models=("H100",), preemption=Preemption.REQUEUE))
    cluster.passes(5)
    assert cluster.status("vision") is TaskStatus.RUNNING


def test_a_class_takes_its_share_back_when_the_split_changes_while_a_task_waits() -> None:
    cluster = ClusterStory()
    cluster.is_split(online=0.25, mode=QuotaMode.BORROW)
    cluster.has_nodes(1, gpus_each=4)
    cluster.submits_many(1, task("first", gpus=1, online=True))
    cluster.submits_many(3, task("batch", gpus=1, preemption=Preemption.REQUEUE))
    cluster.passes(120)
    cluster.submits(task("second", gpus=1, online=True))
    cluster.passes(5)
    assert cluster.status("second") is TaskStatus.PENDING
    cluster.is_split(online=0.5, mode=QuotaMode.BORROW)
    cluster.passes(5)
    assert cluster.status("second") is TaskStatus.RUNNING
