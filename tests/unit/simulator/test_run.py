"""Simulating a workload: a few jobs whose ends are computed by hand."""

import pytest

from gpuyard.core.domain.remaining_time import levels_of_run
from gpuyard.simulator.clusters import Cluster, parse_cluster
from gpuyard.simulator.measures import SimulationMeasures, jain_index, percentile
from gpuyard.simulator.policy_variants import POLICY_VARIANTS, NoSuchPolicy, policy_variant
from gpuyard.simulator.run import NothingEnded, simulate_policy
from gpuyard.simulator.workloads.checkpoints import RESTART_SECONDS
from gpuyard.simulator.workloads.job import Job
from gpuyard.simulator.workloads.on_cluster import JobsOnCluster, fits, resources

ONE_NODE = parse_cluster("1x8")


def played(policy: str, *jobs: Job, cluster: Cluster = ONE_NODE, oracle: bool = True) -> SimulationMeasures:
    return simulate_policy(JobsOnCluster(jobs, cluster), policy_variant(policy), oracle=oracle).measures


def starts(policy: str, *jobs: Job) -> list[float | None]:
    lives = simulate_policy(JobsOnCluster(jobs, ONE_NODE), policy_variant(policy), oracle=True).recorder.lives
    return [life.started for life in lives.values()]


def test_fifo_stops_at_the_first_job_that_does_not_fit() -> None:
    jobs = Job(0, 100, 6), Job(1, 10, 8), Job(2, 10, 1)
    assert played("fifo", *jobs).avg_jct_s == pytest.approx((100 + 109 + 118) / 3)
    assert played("fifo+backfill", *jobs).avg_jct_s == pytest.approx((100 + 109 + 10) / 3)


def test_qssf_goes_by_run_time_times_gpus_and_stops_at_the_first_job_that_does_not_fit() -> None:
    jobs = Job(0, 100, 8), Job(1, 30, 8), Job(2, 100, 2), Job(3, 50, 3), Job(4, 300, 1)
    assert starts("sjf", *jobs) == [0, 100, 130, 130, 130]
    assert starts("qssf", *jobs) == [0, 200, 100, 100, 230]
    assert starts("qssf+backfill", *jobs) == [0, 400, 100, 100, 100]


def test_all_arrivals_of_one_instant_are_known_before_any_is_placed() -> None:
    jobs = Job(0, 50, 8), Job(1, 100, 8), Job(50, 10, 8)
    assert played("sjf", *jobs).avg_jct_s == pytest.approx((50 + 159 + 10) / 3)


def test_a_preempted_job_pays_the_restart_and_keeps_its_work() -> None:
    found = played("srtf", Job(0, 1000, 8), Job(100, 10, 8))
    assert found.preemptions == 1
    assert found.avg_jct_s == pytest.approx((1000 + 10 + RESTART_SECONDS + 10) / 2)


def test_a_job_larger_than_a_node_takes_equal_parts_of_several() -> None:
    assert (resources(Job(0, 1, 16), 8).nodes, resources(Job(0, 1, 16), 8).gpus) == (2, 8)
    assert (resources(Job(0, 1, 14), 8).nodes, resources(Job(0, 1, 14), 8).gpus) == (2, 7)
    assert fits(Job(0, 1, 16), parse_cluster("2x8"))
    assert not fits(Job(0, 1, 17), parse_cluster("2x8"))


def test_without_an_oracle_a_job_is_predicted_from_ended_ones() -> None:
    past = [Job(place, 10, 1, "quick") for place in range(5)] + [Job(place, 500, 1, "slow") for place in range(5)]
    now = Job(2000, 100, 8), Job(2001, 500, 8, "slow"), Job(2002, 10, 8, "quick")
    found = played("sjf", *past, *now, oracle=False)
    assert found.makespan_s == 2000 + 100 + 10 + 500


def test_measures_of_one_run_add_up() -> None:
    found = played("fifo", Job(0, 100, 8, "ann"), Job(0, 100, 8, "bob"))
    assert (found.jobs, found.avg_jct_s, found.avg_queue_s, found.makespan_s) == (2, 150.0, 50.0, 200.0)
    assert found.utilization == pytest.approx(1.0)
    assert (found.avg_slowdown, found.worst_slowdown) == (1.5, 2.0)
    assert found.user_fairness == pytest.approx((1 + 2) ** 2 / (2 * (1 + 4)))


def test_a_gang_needs_enough_nodes_that_are_large_enough() -> None:
    nodes = (*parse_cluster("1x8").nodes, *parse_cluster("9x4:A100").nodes[1:])
    assert not fits(Job(0, 1, 16), Cluster(nodes))
    assert fits(Job(0, 1, 8), Cluster(nodes))


def test_a_run_in_which_nothing_ends_is_reported() -> None:
    with pytest.raises(NothingEnded, match=r"Under fifo no task ends: needed nodes are gone, a quota"):
        played("fifo", Job(0, 100, 16))


def test_percentiles_lie_between_neighbors() -> None:
    assert percentile([1.0, 2.0, 3.0], 0.5) == 2.0
    assert percentile([1.0, 2.0], 0.75) == 1.75
    assert percentile([7.0], 0.999) == 7.0


def test_one_of_four_with_all_the_wait_is_a_fairness_of_a_quarter() -> None:
    assert jain_index([0.0, 0.0, 0.0, 5.0]) == 0.25


def test_an_unknown_policy_is_named_with_the_existing_ones() -> None:
    with pytest.raises(NoSuchPolicy, match="Unknown policy 'lifo'; available policies: fifo"):
        policy_variant("lifo+backfill")


@pytest.mark.parametrize("name", POLICY_VARIANTS)
def test_every_policy_variant_runs_to_the_end(name: str) -> None:
    jobs = [Job(place * 7 % 50, 10 + place * 37 % 200, 1 << place % 5, f"user{place % 3}") for place in range(60)]
    jobs.sort(key=lambda job: job.submit)
    assert played(name, *jobs, cluster=parse_cluster("2x8"), oracle=False).jobs == 60


def test_with_an_oracle_default_knows_the_remaining_time() -> None:
    long, short = Job(0.0, 50_000.0, 8), Job(100.0, 300.0, 8)
    later = Job(49_000.0, 3_000.0, 8)
    learned = played("default", long, short, later, oracle=False)
    known = played("default", long, short, later)
    assert known.avg_jct_s < learned.avg_jct_s
    assert levels_of_run(700.0) == (1, 1, 1, 1, 0, 0, 0)
