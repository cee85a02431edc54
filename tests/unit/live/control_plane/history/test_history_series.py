"""The steps of an answer: bounded, aligned, and no finer than what is kept."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuyard.live.control_plane.history.layout import CLUSTER, GPUS, NODES, TIERS, Tier
from gpuyard.live.control_plane.history.series import (
    MOST_POINTS,
    USUAL_POINTS,
    TooManyPoints,
    highest_of,
    names_of,
    span_of,
    usual_names,
)

NOW = 1_790_000_000.5
instants = st.floats(0, 2 * NOW)


@given(since=instants, seconds=st.floats(0.001, NOW))
def test_without_a_step_any_range_has_at_most_500_values(since: float, seconds: float) -> None:
    span = span_of(TIERS, since, since + seconds, None, NOW)
    assert 0 <= span.points <= USUAL_POINTS
    if span.points:
        assert span.start % span.step == 0
        assert span.start <= max(since, NOW - TIERS[-1].keep)
        assert span.end >= min(since + seconds, NOW)
        assert span.times[-1] + span.step == span.end


@given(age=st.integers(1, int(TIERS[-1].keep) - 1), seconds=st.integers(1, 10**9), step=st.integers(1, 366 * 86_400))
def test_a_step_is_never_finer_than_the_rows_that_are_left(age: int, seconds: int, step: int) -> None:
    span = span_of(TIERS, NOW - age, NOW - age + seconds, step, NOW)
    least = next(tier.step for tier in TIERS if age <= tier.keep)
    assert step <= span.step < step + least
    assert span.step % least == 0
    assert span.points <= MOST_POINTS


@given(years=st.integers(2, 30), step=st.integers(1, 20_000))
def test_a_refused_step_comes_with_one_that_does(years: int, step: int) -> None:
    tiers = (*TIERS[:2], Tier(2, 3_600, 86_400, years * 365 * 86_400))
    if -(-step // 3_600) * 3_600 * MOST_POINTS > tiers[-1].keep + 7_200:
        assert span_of(tiers, 0, NOW, step, NOW).points <= MOST_POINTS
        return
    with pytest.raises(TooManyPoints) as many:
        span_of(tiers, 0, NOW, step, NOW)
    assert many.value.points > MOST_POINTS
    assert span_of(tiers, 0, NOW, many.value.step, NOW).points <= MOST_POINTS


@pytest.mark.parametrize(
    ("age", "step"), [(300, 1), (600, 2), (3_600, 10), (86_400, 300), (7 * 86_400, 1_800), (364 * 86_400, 86_400)]
)
def test_the_usual_step_of_a_range_until_now(age: int, step: int) -> None:
    assert span_of(TIERS, NOW - age, NOW, None, NOW).step == step


def test_the_series_of_each_kind() -> None:
    assert names_of(GPUS) == ["utilization", "memory_mb", "temperature", "power_watts", "allocated"]
    assert usual_names(NODES, 1) == ["cpu_percent", "memory_percent", "network_latency_ms"]
    assert usual_names(NODES, 60)[3:] == highest_of(NODES)
    assert "energy_joules_max" not in highest_of(CLUSTER)
