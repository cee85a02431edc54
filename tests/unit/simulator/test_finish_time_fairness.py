"""Finish-time fairness: ends in a fair cluster, computed by hand."""

from collections.abc import Sequence

import pytest

import gpuyard
from gpuyard.simulator import generated_jobs
from gpuyard.simulator.clusters import Cluster, parse_cluster, read_nodes
from gpuyard.simulator.comparison import JobSet
from gpuyard.simulator.finish_time_fairness import fair_jcts
from gpuyard.simulator.workloads.job import Job
from gpuyard.simulator.workloads.on_cluster import JobsOnCluster


def fair(*jobs: Job, cluster: str = "1x4") -> list[float]:
    return [round(seconds, 6) for seconds in fair_jcts(jobs, parse_cluster(cluster))]


def figures(policy: str, jobs: Sequence[Job], cluster: Cluster) -> dict[str, float]:
    (run,) = gpuyard.simulate(JobSet(JobsOnCluster(jobs, cluster), "by hand"), policy)
    return run.figures


def test_jobs_that_fit_together_are_not_slowed() -> None:
    assert fair(Job(0, 100, 2), Job(0, 100, 2)) == [100, 100]


def test_two_jobs_that_request_everything_have_half_each() -> None:
    assert fair(Job(0, 100, 4), Job(0, 100, 4)) == [200, 200]


def test_a_job_that_comes_later_has_its_part_from_then_on() -> None:
    assert fair(Job(0, 100, 4), Job(50, 100, 4)) == [150, 150]


def test_what_a_small_job_does_not_need_is_divided_among_the_others() -> None:
    assert fair(Job(0, 150, 1), Job(0, 150, 4), cluster="1x4") == [150, 187.5]


def test_a_share_of_a_gpu_counts_as_a_share() -> None:
    assert fair(Job(0, 100, 1, fraction_milli=500), Job(0, 100, 1, fraction_milli=500), cluster="1x1") == [100, 100]


def test_a_job_runs_at_the_average_of_its_speeds() -> None:
    assert fair(Job(0, 90, 1, speeds=(("A", 2.0), ("B", 1.0))), cluster="1x1:A+1x1:B") == [120]


def test_pools_are_divided_apart(tmp_path: pytest.TempPathFactory) -> None:
    file = tmp_path / "nodes.csv"  # type: ignore[operator]
    file.write_text("vc,nodes,gpus_per_node\nleft,1,4\nright,1,4\n")
    jobs = Job(0, 100, 4, pool="left"), Job(0, 100, 4, pool="right"), Job(0, 100, 4, pool="right")
    assert list(fair_jcts(jobs, read_nodes(file, "vc"))) == [100, 200, 200]


def test_first_come_first_served_is_unfair_to_the_short_job_behind_the_long_one() -> None:
    jobs, cluster = (Job(0, 1000, 8), Job(0, 10, 8)), parse_cluster("1x8")
    found = figures("fifo", jobs, cluster)
    assert found["worst_ftf"] == pytest.approx(1010 / 20)
    assert found["p95_ftf"] == pytest.approx(1000 / 1010 + 0.95 * (1010 / 20 - 1000 / 1010), abs=0.001)
    assert figures("sjf", jobs, cluster)["worst_ftf"] == pytest.approx(1010 / 20)
    (run,) = gpuyard.simulate(JobSet(JobsOnCluster(jobs, cluster), "by hand"), "sjf", oracle=True)
    assert run.figures["worst_ftf"] == 1.0


def test_ends_in_the_fair_cluster_do_not_depend_on_the_policy_and_no_work_is_lost() -> None:
    jobs = generated_jobs(300, "2x8", seed=5).workload
    assert isinstance(jobs, JobsOnCluster)
    found = fair_jcts(jobs.jobs, jobs.cluster)
    assert all(seconds >= job.seconds - 1e-6 for job, seconds in zip(jobs.jobs, found, strict=True))
