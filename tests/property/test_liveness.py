"""Liveness: under policies that guarantee it, everything that could run starts eventually.

Small tasks keep arriving; a large one, a gang and one of the lowest priority must start anyway.
"""

import pytest

from gpuyard.core.engine.policies import POLICIES
from gpuyard.testing import ClusterStory, gang, task

PROMISING = sorted(name for name, policy in POLICIES.items() if policy.starts_all)


@pytest.mark.parametrize("backfill", ["none", "easy", "conservative"])
@pytest.mark.parametrize("policy", PROMISING)
@pytest.mark.parametrize(("estimate", "strict"), [(None, True), (50.0, False)])
def test_a_stream_of_small_tasks_starves_no_task(
    policy: str, backfill: str, estimate: float | None, strict: bool
) -> None:
    cluster = ClusterStory(
        policy=policy, backfill=backfill, aging_seconds=1.0, level_seconds=10.0, reserve_after_seconds=200.0
    )
    if strict:
        cluster.is_split(online=0.5)
    cluster.has_nodes(3, gpus_each=4)
    for place in range(12):
        cluster.submits(task(f"early-{place}", runs_for=40.0 + place, estimate=estimate, online=place % 2 == 0))
    cluster.submits(
        task("large", gpus=4, runs_for=30, estimate=estimate, priority=0, tenant="large"),
        gang("gang", members=2, gpus_each=2, runs_for=30, estimate=estimate, priority=0, tenant="gang"),
        task("humble", runs_for=30, estimate=estimate, priority=0, tenant="humble"),
    )
    waiting = {"large", "gang", "humble"}
    for place in range(400):
        cluster.submits(task(f"small-{place}", runs_for=50.0, estimate=estimate, priority=100, online=place % 2 == 0))
        cluster.passes(4)
        waiting.difference_update(cluster.placements())
        if not waiting:  # nothing that comes later can take it back
            return
    pytest.fail(f"{sorted(waiting)} did not start while small tasks came")


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_without_new_submissions_everything_ends(policy: str) -> None:
    cluster = ClusterStory(policy=policy)
    cluster.has_nodes(2, gpus_each=4)
    for place in range(60):
        gpus = (1, 2, 4, 3)[place % 4]
        cluster.submits(
            task(f"t{place}", gpus=gpus, runs_for=10.0 + place, estimate=20.0 + place % 7, tenant=f"team-{place % 3}")
        )
    cluster.runs_out()
    assert not cluster.state.tasks
    assert len(cluster.state.ended) == 60
