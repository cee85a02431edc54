"""Sets of bays against the plain dictionary they stand for."""

from hypothesis import given, settings
from hypothesis import strategies as st

from gpuyard.core.placement.device_group_mask import GroupsByLevel, GroupsByValue, members, without

amounts = st.integers(0, 70_000)
moves = st.lists(st.tuples(st.integers(0, 12), st.one_of(st.none(), amounts)), max_size=40)
"""(bay, its amount from now on; none: it goes)"""


def bits(bays: list[int]) -> int:
    return sum(1 << bay for bay in bays)


@given(st.sets(st.integers(0, 300)))
def test_members_are_given_highest_first_and_each_once(bays: set[int]) -> None:
    assert list(members(bits(sorted(bays)))) == sorted(bays, reverse=True)


@given(st.sets(st.integers(0, 80)), st.sets(st.integers(0, 80)))
def test_without_is_the_difference_of_sets(bays: set[int], forbidden: set[int]) -> None:
    assert without(bits(sorted(bays)), bits(sorted(forbidden))) == bits(sorted(bays - forbidden))


@given(moves, amounts, st.sets(st.integers(0, 12)))
def test_by_value_knows_who_has_enough_and_how_much_is_most(
    steps: list[tuple[int, int | None]], asked: int, among: set[int]
) -> None:
    index, plain = GroupsByValue(), dict[int, int]()
    for bay, amount in steps:
        if bay in plain:
            index.toggle(plain.pop(bay), 1 << bay)
        if amount is not None:
            index.toggle(amount, 1 << bay)
            plain[bay] = amount
    assert index.at_least(asked) == bits([bay for bay, amount in plain.items() if amount >= asked])
    assert index.largest(bits(sorted(among))) == max((plain[bay] for bay in among if bay in plain), default=0)


@settings(max_examples=200)
@given(moves, amounts)
def test_by_level_misses_nobody_and_offers_nobody_with_less_than_half(
    steps: list[tuple[int, int | None]], asked: int
) -> None:
    index, plain = GroupsByLevel(), dict[int, int]()
    for bay, amount in steps:
        if bay not in plain and amount is not None:
            index.add(amount, 1 << bay)
        elif bay in plain and amount is None:
            index.drop(plain.pop(bay), 1 << bay)
        elif bay in plain and amount is not None:
            index.move(plain[bay], amount, 1 << bay)
        if amount is not None:
            plain[bay] = amount
    enough = {bay for bay, amount in plain.items() if amount >= asked}
    offered = set(members(index.may_have(asked)))
    assert enough <= offered
    assert all(plain[bay] * 2 > asked for bay in offered - enough)
