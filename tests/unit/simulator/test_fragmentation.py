"""How much of the free capacity is unusable."""

from itertools import pairwise

import pytest
from msgspec.structs import replace

from gpuyard.core.domain.values import NodeId
from gpuyard.simulator.clusters import Cluster, parse_cluster
from gpuyard.simulator.policy_variants import policy_variant
from gpuyard.simulator.run import simulate_policy
from gpuyard.simulator.samples import Samples
from gpuyard.simulator.workloads.job import Job
from gpuyard.simulator.workloads.on_cluster import JobsOnCluster

TWO_NODES = parse_cluster("2x8")


def fragmentation(*jobs: Job, cluster: Cluster = TWO_NODES) -> float:
    return simulate_policy(JobsOnCluster(jobs, cluster), policy_variant("fifo")).further["fragmentation"]


def test_remainders_too_small_for_every_task_are_useless() -> None:
    assert fragmentation(Job(0, 100, 6), Job(0, 100, 6)) == 1.0


def test_remainders_one_gpu_short_are_useless() -> None:
    assert fragmentation(Job(0, 100, 5), cluster=parse_cluster("1x9")) == 1.0


def test_a_whole_free_node_is_useful_to_all() -> None:
    assert fragmentation(Job(0, 100, 6), Job(0, 100, 2)) == 0.0


def test_every_open_task_has_equal_weight() -> None:
    assert fragmentation(Job(0, 100, 6), Job(0, 100, 6), Job(0, 100, 1)) == pytest.approx(2 / 3)


def test_time_is_weighted_by_free_gpus() -> None:
    """First three GPUs are free, of which two of three tasks can use none; then two more, of use to none."""
    jobs = Job(0, 200, 6), Job(0, 200, 6), Job(0, 100, 1)
    assert fragmentation(*jobs) == pytest.approx((100 * 6 + 100 * 8) / (100 * 9 + 100 * 8))


def test_only_nodes_that_could_ever_hold_a_task_count() -> None:
    (large,), (small,) = parse_cluster("1x8").nodes, parse_cluster("1x2:T4").nodes
    kinds = Cluster((large, replace(small, id=NodeId("small"))))
    assert fragmentation(Job(0, 100, 4), cluster=kinds) == 0.0


def test_a_line_has_a_bounded_number_of_points_over_its_whole_time() -> None:
    line: Samples[int] = Samples(most=10)
    for at in range(1000):
        if line.wants(at):
            line.add(at, at)
    assert 10 <= len(line.points) <= 20
    assert line.points[0][0] == 0
    assert line.points[-1][0] > 900
    instants = [at for at, _ in line.points]
    assert max(after - before for before, after in pairwise(instants)) < 200


def test_at_one_instant_the_last_point_counts() -> None:
    line: Samples[str] = Samples()
    line.add(0.0, "first")
    line.add(0.0, "last")
    line.add(1.0, "next")
    assert line.points == [(0.0, "last"), (1.0, "next")]
