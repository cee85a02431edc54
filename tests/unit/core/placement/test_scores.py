"""Scores order nodes; each promise is compared with counting by hand."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuyard.core.domain.settings import Settings
from gpuyard.core.domain.task import Resources, Share
from gpuyard.core.placement.demand import Demand
from gpuyard.core.placement.index import Index
from gpuyard.core.placement.scores import SCORES
from gpuyard.core.placement.scores.fragmentation import FragmentationCosts
from gpuyard.core.placement.scores.weighted import WeightedCosts
from gpuyard.testing import node

sizes = st.tuples(st.integers(1, 9), st.integers(0, 7)).map(lambda pair: (pair[0], pair[0] + pair[1]))
"""(GPUs wanted, most any node has)"""
demands = st.lists(st.integers(0, 20), max_size=10)
"""Item n: how many tasks ask for n GPUs."""


def new_index(most: int) -> Index:
    index = Index()
    index.join(node("n", gpus=most))
    return index


def asked(*asks: Resources) -> Demand:
    demand = Demand()
    for ask in asks:
        demand.count(ask, 1)
    return demand


def counts(score: str, wanted: int, most: int, demand: list[int]) -> list[int]:
    asks = [Resources(gpus=gpus) for gpus, count in enumerate(demand) if gpus for _ in range(count)]
    order = SCORES[score](wanted, new_index(most), asked(*asks), Settings())
    return list(order.counts(wanted) if isinstance(order, FragmentationCosts | WeightedCosts) else order)


@pytest.mark.parametrize("score", sorted(SCORES))
@given(size=sizes, demand=demands)
def test_every_score_tries_every_node_with_enough_and_no_other(
    score: str, size: tuple[int, int], demand: list[int]
) -> None:
    wanted, most = size
    assert sorted(counts(score, wanted, most, demand)) == list(range(wanted, most + 1))


def test_best_fit_takes_the_fullest_and_spread_the_emptiest() -> None:
    assert counts("best_fit", 2, 5, []) == [2, 3, 4, 5]
    assert counts("spread", 2, 5, []) == [5, 4, 3, 2]


@given(size=sizes)
def test_fragmentation_without_demand_is_best_fit(size: tuple[int, int]) -> None:
    assert counts("fragmentation", *size, []) == counts("best_fit", *size, [])


@given(size=sizes, demand=demands)
def test_fragmentation_descends_the_gradient_steepest_first(size: tuple[int, int], demand: list[int]) -> None:
    wanted, most = size

    def fragments(free: int) -> int:
        """Free GPUs of a node, counted once for each task of the demand that could not use them."""
        return sum(free * count for gpus, count in enumerate(demand) if gpus > free)

    growth = [fragments(free - wanted) - fragments(free) for free in counts("fragmentation", wanted, most, demand)]
    assert growth == sorted(growth)


def test_fragmentation_keeps_room_for_the_size_requested_most() -> None:
    tried = counts("fragmentation", 1, 5, [0, 10, 0, 0, 90])  # most tasks want four
    assert tried[0] == 1
    assert tried.index(5) < tried.index(4)


def test_a_demand_reports_that_it_has_changed() -> None:
    demand = Demand()
    said = [demand.count(Resources(gpus=1), 1) for _ in range(200)]
    assert said[:16] == [False] * 16
    assert 5 < sum(said) < 12
    assert [demand.count(Resources(gpus=1), -1) for _ in range(200)].count(True) > 3
    assert list(demand.asks()) == []


def test_a_share_that_fits_into_enough_remainders_is_worth_little() -> None:
    worth = asked(*[Resources(share=Share(810))] * 20, Resources(share=Share(160))).worth(1000)
    assert worth[81] > 0.9
    assert worth[19] < 0.1


def test_three_thirds_are_a_gpu_and_the_remainder_beside_two_is_worth_a_third() -> None:
    worth = asked(Resources(share=Share(333))).worth(1000)
    assert (worth[32], worth[33], worth[66], worth[100]) == pytest.approx((0, 1 / 3, 2 / 3, 1))


def test_a_share_of_memory_counts_as_its_part_of_a_gpu() -> None:
    by_memory, by_compute = asked(Resources(share=Share(0, 8_000))), asked(Resources(share=Share(500)))
    assert by_memory.worth(16_000) == by_compute.worth(16_000)
    assert by_memory.worth(32_000) != by_compute.worth(32_000)


def test_gangs_count_once_for_each_node() -> None:
    demand = asked(Resources(gpus=8, nodes=3), Resources(gpus=1))
    assert dict(demand.asks()) == {Resources(gpus=8, nodes=3): 3, Resources(gpus=1): 1}
