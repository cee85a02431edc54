"""Quota accounting, compared with counting by hand."""

from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuyard.core.domain.tenant import Budget, QuotaMode, Split, Tenant
from gpuyard.core.domain.values import MILLI, TenantId
from gpuyard.core.engine.quota import BATCH, CLASSES, ONLINE, UNLIMITED, ClassUsage, TenantUsage, set_parts

LAB = TenantId("lab")
lives = st.lists(
    st.tuples(st.integers(1, 800).map(lambda half: half / 2), st.integers(0, 8000)), min_size=1, max_size=8
)
"""(so long, so many thousandths in use)"""


def lived(usage: TenantUsage, life: list[tuple[float, int]], half_life: float = 1000.0) -> float:
    """Let a tenant use so much for so long, one after the other; the instant at the end."""
    at = usage.since
    for seconds, milli in life:
        usage.settle(at, half_life)
        usage.used = milli
        at += seconds
    return at


@given(lives, st.floats(50.0, 5000.0))
def test_usage_is_the_integral_of_what_ran_decayed_by_age(life: list[tuple[float, int]], half_life: float) -> None:
    usage = TenantUsage(Tenant(LAB), 0.0)
    end = lived(usage, life, half_life)
    usage.settle(end, half_life)
    integral, began, pieces = 0.0, 0.0, 400
    for seconds, milli in life:
        for piece in range(pieces):
            middle = began + seconds * (piece + 0.5) / pieces
            integral += milli / MILLI * seconds / pieces * 2.0 ** ((middle - end) / half_life)
        began += seconds
    assert usage.decayed_gpu_seconds == pytest.approx(integral, rel=1e-4, abs=1e-6)


@given(lives)
def test_settling_more_often_changes_nothing(life: list[tuple[float, int]]) -> None:
    rarely, often = (TenantUsage(Tenant(LAB, budget=Budget(1.0, 700.0)), 0.0) for _ in range(2))
    end = lived(rarely, life)
    lived(often, [(seconds / 4, milli) for seconds, milli in life for _ in range(4)])
    for usage in (rarely, often):
        usage.settle(end, 1000.0)
    assert often.decayed_gpu_seconds == pytest.approx(rarely.decayed_gpu_seconds, rel=1e-9)
    assert often.spent_gpu_seconds == pytest.approx(rarely.spent_gpu_seconds, rel=1e-9, abs=1e-6)
    assert often.period_began == rarely.period_began


def test_a_half_life_later_usage_counts_half() -> None:
    usage = TenantUsage(Tenant(LAB), 0.0)
    usage.used = 1000
    usage.settle(1.0, 100.0)
    used, usage.used = usage.decayed_gpu_seconds, 0
    usage.settle(101.0, 100.0)
    assert usage.decayed_gpu_seconds == pytest.approx(used / 2)


def spent_in_period(life: list[tuple[float, int]], at: float, period: float) -> float:
    """GPU-seconds since the period under way began."""
    began, spent, since = at // period * period, 0.0, 0.0
    for seconds, milli in life:
        spent += milli / MILLI * max(0.0, min(since + seconds, at) - max(since, began))
        since += seconds
    return spent


@given(lives, st.integers(100, 900).map(float))
def test_a_budget_is_what_is_left_of_the_current_period(life: list[tuple[float, int]], period: float) -> None:
    usage = TenantUsage(Tenant(LAB, budget=Budget(2.0, period)), 0.0)
    end = lived(usage, life)
    usage.settle(end, 1000.0)
    assert usage.budget_left(end) == pytest.approx(7200.0 - spent_in_period(life, end, period), abs=1e-3)
    assert usage.renews_at(end) > end
    assert usage.renews_at(end) == pytest.approx((end // period + 1) * period)


def test_running_tasks_within_a_period_are_counted_before_they_are_settled() -> None:
    usage = TenantUsage(Tenant(LAB, budget=Budget(1.0, 10_000.0)), 0.0)
    usage.used = 2000
    assert usage.budget_left(600.0) == 3600.0 - 1200.0


def test_running_tasks_across_a_period_are_counted_before_they_are_settled() -> None:
    usage = TenantUsage(Tenant(LAB, budget=Budget(1.0, 1000.0)), 0.0)
    usage.used = 2000
    before = usage.budget_left(1600.0)
    usage.settle(1600.0, 1000.0)
    assert before == usage.budget_left(1600.0) == 3600.0 - 1200.0


def test_without_a_budget_there_is_always_enough() -> None:
    assert TenantUsage(Tenant(LAB), 0.0).budget_left(1e9) == inf


def test_limits_are_stored_in_thousandths_and_none_is_no_limit() -> None:
    usage = TenantUsage(Tenant(LAB, 4, (("H100", 2),), 1), 0.0)
    assert (usage.limit, usage.guarantee, usage.model_limits) == (4000, 1000, {"H100": 2000})
    usage.set(Tenant(LAB))
    assert (usage.limit, usage.guarantee, usage.model_limits) == (UNLIMITED, 0, {})


def test_without_a_split_neither_class_has_a_limit_or_a_claim() -> None:
    online, batch = (ClassUsage(CLASSES[place]) for place in (ONLINE, BATCH))
    set_parts(online, batch, Split(mode=QuotaMode.NONE), 4)
    for usage in (online, batch):
        assert (usage.limit, usage.guarantee) == (UNLIMITED, UNLIMITED)


@given(st.integers(0, 200_000), st.integers(0, 1000), st.sampled_from((QuotaMode.STRICT, QuotaMode.BORROW)))
def test_the_shares_always_add_up_to_all_gpus(total: int, online_milli: int, mode: QuotaMode) -> None:
    online, batch = (ClassUsage(CLASSES[place]) for place in (ONLINE, BATCH))
    split = Split(online_milli / 1000, 1 - online_milli / 1000, mode)
    set_parts(online, batch, split, total)
    assert online.guarantee + batch.guarantee == total * MILLI
    assert online.guarantee % MILLI == batch.guarantee % MILLI == 0
    assert abs(online.guarantee - total * online_milli) <= MILLI / 2 + 1e-6
    for usage in (online, batch):
        is_limited = mode is QuotaMode.STRICT and usage.guarantee < total * MILLI
        assert usage.limit == (usage.guarantee if is_limited else UNLIMITED)
