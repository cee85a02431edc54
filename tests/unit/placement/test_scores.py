"""Scores order numbers of free GPUs; each promise is held against counting by hand."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuyard.placement.scores import SCORES

demands = st.lists(st.integers(0, 50), max_size=10)
sizes = st.tuples(st.integers(1, 9), st.integers(0, 7)).map(lambda pair: (pair[0], pair[0] + pair[1]))
"""(GPUs wanted, most any node has)"""


@pytest.mark.parametrize("score", sorted(SCORES))
@given(size=sizes, demand=demands)
def test_every_score_tries_every_node_with_enough_and_no_other(
    score: str, size: tuple[int, int], demand: list[int]
) -> None:
    wanted, most = size
    assert sorted(SCORES[score](wanted, most, demand)) == list(range(wanted, most + 1))


def test_best_fit_takes_the_fullest_and_spread_the_emptiest() -> None:
    assert list(SCORES["best_fit"](2, 5, [])) == [2, 3, 4, 5]
    assert list(SCORES["spread"](2, 5, [])) == [5, 4, 3, 2]


@given(size=sizes)
def test_fragmentation_with_nothing_known_is_best_fit(size: tuple[int, int]) -> None:
    assert list(SCORES["fragmentation"](*size, [])) == list(SCORES["best_fit"](*size, []))


@given(size=sizes, demand=demands)
def test_fragmentation_descends_the_gradient_steepest_first(size: tuple[int, int], demand: list[int]) -> None:
    wanted, most = size

    def fragments(free: int) -> int:
        """Free GPUs of a node, counted once for each task of the demand that could not use them."""
        tasks = [gpus for gpus, count in enumerate(demand) for _ in range(count)]
        return sum(free for gpus in tasks if gpus > free)

    growth = [fragments(free - wanted) - fragments(free) for free in SCORES["fragmentation"](wanted, most, demand)]
    assert growth == sorted(growth)


def test_fragmentation_keeps_room_for_the_size_that_is_asked_for_most() -> None:
    demand = [0, 10, 0, 0, 90]  # most tasks want four
    assert next(iter(SCORES["fragmentation"](1, 8, demand))) == 1
    assert list(SCORES["fragmentation"](1, 5, demand)).index(5) < list(SCORES["fragmentation"](1, 5, demand)).index(4)
