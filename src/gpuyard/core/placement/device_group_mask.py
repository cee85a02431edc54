"""Sets of bays as integers, and the two ways to look bays up by an amount."""

from collections.abc import Iterator

DeviceGroupMask = int
"""Bit n stands for bay n. AND, OR and XOR are intersection, union and toggling."""


def members(bays: DeviceGroupMask) -> Iterator[int]:
    """The bay numbers in a set, highest first: the highest bit is the one Python finds at once."""
    while bays:
        top = bays.bit_length() - 1
        yield top
        bays ^= 1 << top


def without(bays: DeviceGroupMask, forbidden: DeviceGroupMask) -> DeviceGroupMask:
    """Set difference; `a & ~b` would make a negative number on the way, which is slower."""
    return bays ^ (bays & forbidden)


class GroupsByValue:
    """Bays by an amount that seldom changes and takes few values: card memory, CPUs built in."""

    def __init__(self) -> None:
        self._bays: dict[int, DeviceGroupMask] = {}

    def toggle(self, value: int, bay: DeviceGroupMask) -> None:
        """Put a bay in, or take it out."""
        left = self._bays.get(value, 0) ^ bay
        if left:
            self._bays[value] = left
        else:
            self._bays.pop(value, None)

    def at_least(self, value: int) -> DeviceGroupMask:
        """All bays with this amount or more."""
        found = 0
        for amount, bays in self._bays.items():
            if amount >= value:
                found |= bays
        return found

    def largest(self, among: DeviceGroupMask) -> int:
        """The greatest amount any of these bays has."""
        return max((amount for amount, bays in self._bays.items() if bays & among), default=0)

    def total(self, among: DeviceGroupMask) -> int:
        """The amounts of all these bays together."""
        return sum(amount * (bays & among).bit_count() for amount, bays in self._bays.items())


class GroupsByLevel:
    """Bays by an amount that changes with every placement and takes many values: free CPUs, free host memory.

    The level of an amount is its number of binary digits. A bay of a higher level than asked for surely has enough;
    one of the same level has to be looked at. `reaches[n]` holds all bays of level n or above.
    """

    def __init__(self) -> None:
        self._reaches: list[DeviceGroupMask] = [0] * 66

    def add(self, amount: int, bay: DeviceGroupMask) -> None:
        """Put a bay in that was not there."""
        for level in range(amount.bit_length() + 1):
            self._reaches[level] |= bay

    def drop(self, amount: int, bay: DeviceGroupMask) -> None:
        """Take a bay out."""
        for level in range(amount.bit_length() + 1):
            self._reaches[level] ^= bay

    def move(self, before: int, after: int, bay: DeviceGroupMask) -> None:
        """A bay's amount changed."""
        low, high = before.bit_length(), after.bit_length()
        if low != high:
            for level in range(min(low, high) + 1, max(low, high) + 1):
                self._reaches[level] ^= bay

    def may_have(self, amount: int) -> DeviceGroupMask:
        """All bays that may have the amount: none that has it is missing."""
        return self._reaches[amount.bit_length()]
