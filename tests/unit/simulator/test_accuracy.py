"""The accuracy of a few predictions, computed by hand."""

import pytest

from gpuyard.simulator.accuracy import DAY, RuntimeForecast, accuracy, by_day
from gpuyard.simulator.clusters import parse_cluster
from gpuyard.simulator.policy_variants import policy_variant
from gpuyard.simulator.run import Result, simulate_policy
from gpuyard.simulator.workloads.job import Job
from gpuyard.simulator.workloads.on_cluster import JobsOnCluster


def forecast(seconds: float, told: float, at: float = 0.0) -> RuntimeForecast:
    return RuntimeForecast(at, told, told / 2, told * 2, seconds)


def played(*jobs: Job, oracle: bool = False) -> Result:
    return simulate_policy(JobsOnCluster(jobs, parse_cluster("1x8")), policy_variant("sjf"), oracle=oracle)


def test_twice_too_long_and_twice_too_short_are_equally_wrong() -> None:
    found = accuracy([forecast(100, 200), forecast(100, 50)])
    assert found is not None
    assert found.typical_factor == pytest.approx(2.0)
    assert found.median_error == pytest.approx(0.75)


def test_rank_correlation_distinguishes_right_from_wrong_order() -> None:
    right = accuracy([forecast(1, 10), forecast(2, 20), forecast(3, 1_000)])
    wrong = accuracy([forecast(1, 30), forecast(2, 20), forecast(3, 10)])
    same = accuracy([forecast(1, 10), forecast(2, 10)])
    assert right is not None
    assert wrong is not None
    assert same is not None
    assert (right.rank_correlation, wrong.rank_correlation, same.rank_correlation) == pytest.approx((1.0, -1.0, 0.0))


def test_a_job_ends_below_within_or_above_its_range() -> None:
    found = accuracy([forecast(10, 100), forecast(100, 100), forecast(150, 100), forecast(1_000, 100)])
    assert found is not None
    assert (found.predicted, found.within_band, found.below_high) == (4, 0.5, 0.75)


def test_predictions_are_grouped_by_the_day_they_were_made() -> None:
    made = [forecast(1, 1, at) for at in (5 * DAY, 3.5 * DAY, 3 * DAY)]
    assert [(day, len(of_day)) for day, of_day in by_day(made)] == [(0, 2), (2, 1)]


def test_predictions_are_scored_and_known_run_times_are_not() -> None:
    jobs = [Job(place * 100, 50, 1, "ann") for place in range(10)]
    predicted = played(*jobs).forecasts
    assert [(it.at, it.seconds) for it in predicted] == [(place * 100, 50) for place in range(3, 10)]
    assert all(it.told == pytest.approx(50) for it in predicted)
    assert len(played(*jobs, oracle=True).forecasts) == 0
    assert accuracy([]) is None
