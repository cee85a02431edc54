"""Sets of bays as integers, and the two ways to look bays up by an amount."""

from collections.abc import Iterator

BaySet = int
"""Bit n stands for bay n. AND, OR and XOR are intersection, union and toggling."""


def members(bays: BaySet) -> Iterator[int]:
    """The bay numbers in a set, highest first: the highest bit is the one Python finds at once."""
    while bays:
        top = bays.bit_length() - 1
        yield top
        bays ^= 1 << top


def without(bays: BaySet, forbidden: BaySet) -> BaySet:
    """Set difference; `a & ~b` would make a negative number on the way, which is slower."""
    return bays ^ (bays & forbidden)


class ByValue:
    """Bays by an amount that seldom changes and takes few values: card memory, CPUs built in."""

    def __init__(self) -> None:
        self._bays: dict[int, BaySet] = {}

    def toggle(self, value: int, bay: BaySet) -> None:
        """Put a bay in, or take it out."""
        left = self._bays.get(value, 0) ^ bay
        if left:
            self._bays[value] = left
        else:
            self._bays.pop(value, None)

    def at_least(self, value: int) -> BaySet:
        """All bays with this amount or more."""
        found = 0
        for amount, bays in self._bays.items():
            if amount >= value:
                found |= bays
        return found

    def largest(self, among: BaySet) -> int:
        """The greatest amount any of these bays has."""
        return max((amount for amount, bays in self._bays.items() if bays & among), default=0)

    def total(self, among: BaySet) -> int:
        """The amounts of all these bays together."""
        return sum(amount * (bays & among).bit_count() for amount, bays in self._bays.items())


class ByLevel:
    """Bays by an amount that changes with every placement and takes many values: free CPUs, free host memory.

    The level of an amount is its number of binary digits. A bay of a higher level than asked for surely has enough;
    one of the same level has to be looked at. `reaches[n]` holds all bays of level n or above.
    """

    def __init__(self) -> None:
        self._reaches: list[BaySet] = [0] * 66

    def add(self, amount: int, bay: BaySet) -> None:
        """Put a bay in that was not there."""
        for level in range(amount.bit_length() + 1):
            self._reaches[level] |= bay

    def drop(self, amount: int, bay: BaySet) -> None:
        """Take a bay out."""
        for level in range(amount.bit_length() + 1):
            self._reaches[level] ^= bay

    def move(self, before: int, after: int, bay: BaySet) -> None:
        """A bay's amount changed."""
        low, high = before.bit_length(), after.bit_length()
        if low != high:
            for level in range(min(low, high) + 1, max(low, high) + 1):
                self._reaches[level] ^= bay

    def maybe(self, amount: int) -> BaySet:
        """All bays that may have the amount: none that has it is missing."""
        return self._reaches[amount.bit_length()]
