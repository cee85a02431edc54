"""Which GPUs of a node: linked ones, without breaking up groups that others may need."""

from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from gpuyard.core.domain.node import Gpu
from gpuyard.core.domain.values import Link
from gpuyard.core.placement.topology import Topology, mask_of


def built(*groups: int, nvlink: bool = True) -> Topology:
    """GPUs in groups of these sizes."""
    cards = [
        Gpu("A100", 1, numa=group, nvlink=group if nvlink else None)
        for group, size in enumerate(groups)
        for _ in range(size)
    ]
    return Topology(tuple(enumerate(cards)))


def free(*cards: int) -> int:
    return mask_of(cards)


def test_the_smallest_group_that_holds_all_is_taken() -> None:
    assert built(4, 4).pick(free(1, 2, 3, 4, 5, 6, 7), 3, Link.NVLINK) == (1, 2, 3)
    assert built(4, 4).pick(free(0, 1, 2, 3, 6, 7), 2, Link.NVLINK) == (6, 7)


def test_a_complete_group_is_kept_if_a_broken_one_suffices() -> None:
    assert built(4, 4).pick(free(0, 4, 5, 6, 7), 1, Link.ANY) == (0,)


def test_requests_no_group_holds_are_split_into_few_pieces() -> None:
    topology = built(2, 4, 2)
    chosen = topology.pick(free(0, 1, 2, 3, 4, 5, 6, 7), 6, Link.NVLINK)
    assert chosen == (0, 1, 2, 3, 4, 5)
    assert topology.pieces(chosen, Link.NVLINK) == 2


def test_gpus_without_nvlink_are_grouped_by_numa() -> None:
    assert built(2, 2, nvlink=False).pick(free(1, 2, 3), 2, Link.NVLINK) == (2, 3)


def test_a_preference_for_one_numa_domain_uses_numa_and_not_nvlink() -> None:
    cards = tuple(enumerate(Gpu("A100", 1, numa=place // 2, nvlink=place % 2) for place in range(4)))
    assert Topology(cards).pick(free(0, 1, 2, 3), 2, Link.NUMA) == (0, 1)
    assert Topology(cards).pick(free(0, 1, 2, 3), 2, Link.NVLINK) == (0, 2)


@given(
    groups=st.lists(st.integers(1, 4), min_size=1, max_size=4),
    taken=st.integers(0, 2**16 - 1),
    link=st.sampled_from(list(Link)),
    data=st.data(),
)
def test_every_choice_is_of_free_gpus_in_the_fewest_pieces(
    groups: list[int], taken: int, link: Link, data: st.DataObject
) -> None:
    topology = built(*groups)
    cards = [card for card in range(sum(groups)) if not taken >> card & 1]
    if not cards:
        return
    count = data.draw(st.integers(1, len(cards)))
    chosen = topology.pick(free(*cards), count, link)
    assert len(set(chosen)) == count
    assert set(chosen) <= set(cards)
    fewest = min(topology.pieces(other, link) for other in combinations(cards, count))
    assert topology.pieces(chosen, link) == fewest
