"""Generated jobs: the same for the same seed, at the requested load, with users and hours as in the traces."""

import tracemalloc
from collections import Counter
from itertools import pairwise
from random import Random
from statistics import mean, median

import pytest

from gpuyard.simulator.clusters import Cluster, parse_cluster
from gpuyard.simulator.workloads.generated import DAYS, HOURS, GeneratedJobs, arrival_time, expected_arrivals
from gpuyard.simulator.workloads.job import Job
from gpuyard.simulator.workloads.on_cluster import fits

CLUSTER = parse_cluster("32x8")


def jobs(
    count: int = 20_000, seed: int = 1, load: float = 0.9, cluster: Cluster = CLUSTER, light: float = 0.0
) -> GeneratedJobs:
    return GeneratedJobs(count, cluster, lambda: Random(seed).random, load, light)


def test_a_seed_gives_the_same_jobs_whenever_they_are_iterated() -> None:
    found = jobs(500)
    assert list(found) == list(found) == list(jobs(500))
    assert list(found) != list(jobs(500, seed=2))
    assert len(found) == 500


@pytest.mark.parametrize("count", [1, 50, 20_000])
@pytest.mark.parametrize("load", [0.3, 1.5])
def test_the_load_is_the_requested_one(count: int, load: float) -> None:
    found = list(jobs(count, load=load, light=0.5))
    asked = sum(job.gpus * job.fraction_milli / 1000 * job.seconds for job in found)
    assert asked / (found[-1].submit * CLUSTER.gpus) == pytest.approx(load, rel=1e-3)


def test_jobs_arrive_in_order_and_fit_the_cluster() -> None:
    found = list(jobs(5_000))
    assert all(one.submit <= other.submit for one, other in pairwise(found))
    assert all(job.gpus.bit_count() == 1 and fits(job, CLUSTER) for job in found)
    assert max(job.gpus for job in found) == 64
    assert {job.gpus for job in jobs(500, cluster=parse_cluster("1x1"))} == {1}


def test_run_times_have_a_long_tail() -> None:
    seconds = [job.seconds for job in jobs()]
    assert mean(seconds) > 10 * median(seconds)
    assert min(seconds) >= 1.0
    assert max(seconds) <= 864_000.0


@pytest.mark.slow
def test_users_repeat_their_habits() -> None:
    last: dict[str, Job] = {}
    alike = 0
    found = list(jobs())
    for job in found:
        alike += job.user in last and last[job.user].gpus == job.gpus
        last[job.user] = job
    assert alike / len(found) > 0.8
    assert Counter(job.user for job in found).most_common(1)[0][1] > 3 * len(found) / len(last)


def test_more_jobs_arrive_by_day_than_by_night_and_on_weekdays_than_at_weekends() -> None:
    found = [job for job in jobs(60_000) if job.submit < 14 * 86_400]
    hours = Counter(int(job.submit // 3600 % 24) for job in found)
    days = Counter(int(job.submit // 86_400 % 7) for job in found)
    assert hours[15] > 3 * hours[5]
    assert days[2] > 1.5 * days[6]


def test_expected_arrivals_can_be_inverted() -> None:
    for at in (0.0, 1.0, 3600.0, 100_000.5, 86_400.0 * 7, 5e6):
        assert arrival_time(expected_arrivals(at)) == pytest.approx(at)
    assert len(DAYS) * len(HOURS) == 168


def test_light_jobs_request_a_part_of_one_gpu() -> None:
    found = list(jobs(5_000, light=0.5))
    assert {job.fraction_milli for job in found} == {250, 500, 1000}
    assert all(job.gpus == 1 for job in found if job.fraction_milli < 1000)
    alone = [job for job in found if job.gpus == 1]
    assert 0.3 < sum(job.fraction_milli < 1000 for job in alone) / len(alone) < 0.7


@pytest.mark.slow
def test_iterated_jobs_are_not_kept_in_memory() -> None:
    tracemalloc.start()
    for _ in jobs(20_000):
        pass
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 100_000
