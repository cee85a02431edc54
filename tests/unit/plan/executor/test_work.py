"""The work: which groups could hold a model, the order of calls, and the speed of a group."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.plan.executor.small_work import CallSpec, work


def test_a_group_has_neighboring_gpus_of_one_machine() -> None:
    small = work([(0, 1, [])], gpus=5, width=(2,), host=[0, 0, 1, 1, 1])
    assert small.firsts == [{0, 2, 3}]
    assert list(small.group(0, 3)) == [3, 4]


def test_a_group_has_room_on_each_of_its_gpus() -> None:
    small = work([(0, 1, [])], gpus=4, width=(2,), memory_gb=[8.0], gpu_memory_gb=[8.0, 7.9, 8.0, 80.0])
    assert small.firsts == [{2}]


@pytest.mark.parametrize(("width", "firsts"), [(1, {0, 1}), (2, {0}), (3, set()), (100, set())])
def test_a_model_wider_than_the_machine_fits_nowhere(width: int, firsts: set[int]) -> None:
    assert work([(0, 1, [])], gpus=2, width=(width,)).firsts == [firsts]


def test_a_group_is_as_fast_as_its_slowest_gpu() -> None:
    small = work([(0, 1, [])], gpus=3, width=(1, 2), speed=[1.0, 0.5, 2.0])
    assert [small.pace(0, gpu) for gpu in range(3)] == [1.0, 0.5, 2.0]
    assert [small.pace(1, gpu) for gpu in range(2)] == [0.5, 0.5]


def test_empty_work_is_valid() -> None:
    nothing = work([])
    assert (len(nothing), nothing.rank) == (0, [])


@st.composite
def graphs(draw: st.DrawFn) -> list[CallSpec]:
    """Calls in any order: what a call waits for may have a higher number."""
    count = draw(st.integers(1, 12))
    order = draw(st.permutations(range(count)))
    before: list[list[int]] = [[] for _ in range(count)]
    for turn, call in enumerate(order):
        before[call] = sorted(draw(st.sets(st.sampled_from(order[:turn])))) if turn else []
    return [(0, 1.0, some) for some in before]


@pytest.mark.slow
@given(graphs())
@settings(deadline=None)
def test_the_rank_of_a_call_is_above_those_of_its_dependencies(calls: list[CallSpec]) -> None:
    rank = work(calls).rank
    assert sorted(rank) == list(range(len(calls)))
    assert all(rank[earlier] < rank[call] for call, (_, _, before) in enumerate(calls) for earlier in before)
