"""Means of a few runs, against tables."""

from math import sqrt

import pytest

from gpuyard.simulator.confidence import difference, mean_of, t95


@pytest.mark.parametrize(
    ("freedom", "value"), [(1, 12.706), (4, 2.776), (5, 2.571), (9, 2.262), (29, 2.045), (999, 1.962)]
)
def test_the_quantile_is_that_of_the_tables(freedom: int, value: float) -> None:
    assert t95(freedom) == pytest.approx(value, abs=0.001)


def test_a_mean_comes_with_half_of_its_interval() -> None:
    found = mean_of([1.0, 2.0, 3.0])
    assert found.mean == 2.0
    assert found.ci95 == pytest.approx(4.303 / sqrt(3))


def test_common_variation_cancels_in_a_difference() -> None:
    found = difference([101.0, 1001.0, 11.0], [100.0, 1000.0, 10.0])
    assert (found.mean, found.ci95) == (1.0, 0.0)
