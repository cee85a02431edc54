"""How long calls will take, after some have ended."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuyard.plan.executor.estimates import LEAN, Estimates
from tests.unit.plan.executor.small_work import work

SECONDS = st.floats(0.0, 1e5, allow_nan=False)


def test_before_any_end_calls_take_the_planned_time() -> None:
    estimates = Estimates(work([(0, 5, []), (1, 7, [])]))
    assert [estimates.seconds(call) for call in (0, 1)] == [5, 7]


def test_one_end_changes_its_kind_most_its_model_less_and_others_not_at_all() -> None:
    calls = work([(0, 10, []), (0, 10, []), (0, 10, []), (1, 10, [])], kind=[0, 0, 1, 2])
    estimates = Estimates(calls)
    estimates.ended(0, 20.0)
    same_kind, same_model, other = (estimates.seconds(call) for call in (1, 2, 3))
    assert 10 < same_model < same_kind < 20
    assert other == 10


def test_the_first_end_is_weighted_against_the_prior_calls() -> None:
    estimates = Estimates(work([(0, 10, []), (0, 10, [])], kind=[0, 1]))
    estimates.ended(0, 20.0)
    assert estimates.seconds(1) == pytest.approx(10 * (LEAN * 10 + 20) / (LEAN * 10 + 10))


def test_many_ends_of_a_kind_outweigh_the_planned_time() -> None:
    count = 400
    estimates = Estimates(work([(0, 10, [])] * count, kind=[0] * count))
    for call in range(count - 1):
        estimates.ended(call, 30.0)
    assert estimates.seconds(count - 1) == pytest.approx(30, rel=0.01)


def test_calls_planned_with_no_duration_keep_it() -> None:
    estimates = Estimates(work([(0, 0.0, []), (0, 0.0, [])]))
    estimates.ended(0, 5.0)
    assert estimates.seconds(1) == 0.0


@given(st.lists(st.tuples(SECONDS, SECONDS), min_size=1, max_size=20))
@settings(deadline=None)
def test_estimates_lie_between_the_smallest_and_largest_observed_ratio(
    seen: list[tuple[float, float]],
) -> None:
    calls = [(0, max(planned, 0.001), list[int]()) for planned, _ in seen] + [(0, 1.0, list[int]())]
    estimates = Estimates(work(calls, kind=[0] * len(calls)))
    for call, (_, actual) in enumerate(seen):
        estimates.ended(call, actual)
    ratios = [1.0, *(actual / max(planned, 0.001) for planned, actual in seen)]
    assert min(ratios) * 0.999 <= estimates.seconds(len(seen)) <= max(ratios) * 1.001
