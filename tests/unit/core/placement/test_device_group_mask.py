"""Sets of device groups, compared with the plain dictionary they represent."""

from hypothesis import given, settings
from hypothesis import strategies as st

from gpuyard.core.placement.device_group_mask import GroupsByLevel, GroupsByValue, members, without

amounts = st.integers(0, 70_000)
moves = st.lists(st.tuples(st.integers(0, 12), st.one_of(st.none(), amounts)), max_size=40)
"""(device group, its amount from now on; none: it goes)"""


def bits(device_groups: list[int]) -> int:
    return sum(1 << device_group for device_group in device_groups)


@given(st.sets(st.integers(0, 300)))
def test_members_are_listed_highest_first_and_each_once(device_groups: set[int]) -> None:
    assert list(members(bits(sorted(device_groups)))) == sorted(device_groups, reverse=True)


@given(st.sets(st.integers(0, 80)), st.sets(st.integers(0, 80)))
def test_without_is_the_difference_of_sets(device_groups: set[int], forbidden: set[int]) -> None:
    assert without(bits(sorted(device_groups)), bits(sorted(forbidden))) == bits(sorted(device_groups - forbidden))


@given(moves, amounts, st.sets(st.integers(0, 12)))
def test_by_value_finds_groups_with_enough_and_the_maximum(
    steps: list[tuple[int, int | None]], asked: int, among: set[int]
) -> None:
    index, plain = GroupsByValue(), dict[int, int]()
    for device_group, amount in steps:
        if device_group in plain:
            index.toggle(plain.pop(device_group), 1 << device_group)
        if amount is not None:
            index.toggle(amount, 1 << device_group)
            plain[device_group] = amount
    assert index.at_least(asked) == bits([device_group for device_group, amount in plain.items() if amount >= asked])
    assert index.largest(bits(sorted(among))) == max(
        (plain[device_group] for device_group in among if device_group in plain), default=0
    )


@settings(max_examples=200)
@given(moves, amounts)
def test_by_level_misses_no_group_and_offers_none_with_less_than_half(
    steps: list[tuple[int, int | None]], asked: int
) -> None:
    index, plain = GroupsByLevel(), dict[int, int]()
    for device_group, amount in steps:
        if device_group not in plain and amount is not None:
            index.add(amount, 1 << device_group)
        elif device_group in plain and amount is None:
            index.drop(plain.pop(device_group), 1 << device_group)
        elif device_group in plain and amount is not None:
            index.move(plain[device_group], amount, 1 << device_group)
        if amount is not None:
            plain[device_group] = amount
    enough = {device_group for device_group, amount in plain.items() if amount >= asked}
    offered = set(members(index.may_have(asked)))
    assert enough <= offered
    assert all(plain[device_group] * 2 > asked for device_group in offered - enough)
