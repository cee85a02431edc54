"""The benchmark of ranges: how sure a coverage is, and what is called beyond chance."""

import numpy as np
import pytest

from benchmarks.bands import PUBLISHED, beyond_chance, interval, published_cards, wilson


def test_rows_of_one_family_count_less_than_independent_ones() -> None:
    luck = np.random.default_rng(1)
    by_family = np.repeat(luck.random(20) < 0.8, 50)
    family = np.repeat(np.arange(20), 50)
    _, low, high = interval(by_family, family, seed=1)
    alone_low, alone_high = wilson(float(by_family.mean()), len(by_family))
    assert high - low > 3.0 * (alone_high - alone_low)


def test_few_families_have_the_interval_of_independent_rows() -> None:
    inside = np.array([True, True, True, False, False])
    assert interval(inside, np.full(5, "gpt"), seed=1) == (1, *wilson(0.6, 5))
    assert wilson(0.6, 5) == pytest.approx((0.231, 0.882), abs=0.001)


@pytest.mark.parametrize(
    ("low", "high", "word"), [(0.5, 0.74, "too few"), (0.6, 0.8, ""), (0.85, 0.95, ""), (0.91, 0.99, "too many")]
)
def test_a_coverage_is_outside_only_if_its_interval_is(low: float, high: float, word: str) -> None:
    assert beyond_chance({"coverage_low": low, "coverage_high": high}) == word


@pytest.mark.parametrize("source", PUBLISHED)
def test_published_throughputs_are_rows_of_known_cards_and_models(source: str) -> None:
    rows = published_cards(source)
    assert len(rows) >= 11
    assert (rows.measured > 1.0).all()
