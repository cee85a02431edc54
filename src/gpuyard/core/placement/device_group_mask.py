"""Sets of device groups as integers, and the two ways to look device groups up by an amount."""

from collections.abc import Iterator

DeviceGroupMask = int
"""Bit n stands for device group n. AND, OR and XOR are intersection, union and toggling."""


def members(device_groups: DeviceGroupMask) -> Iterator[int]:
    """The device group numbers in a set, highest first: the highest bit is the one Python finds at once."""
    while device_groups:
        top = device_groups.bit_length() - 1
        yield top
        device_groups ^= 1 << top


def without(device_groups: DeviceGroupMask, forbidden: DeviceGroupMask) -> DeviceGroupMask:
    """Set difference; `a & ~b` would make a negative number on the way, which is slower."""
    return device_groups ^ (device_groups & forbidden)


class GroupsByValue:
    """Device groups by an amount that seldom changes and takes few values: card memory, CPUs built in."""

    def __init__(self) -> None:
        self._device_groups: dict[int, DeviceGroupMask] = {}

    def toggle(self, value: int, device_group: DeviceGroupMask) -> None:
        """Put a device group in, or take it out."""
        left = self._device_groups.get(value, 0) ^ device_group
        if left:
            self._device_groups[value] = left
        else:
            self._device_groups.pop(value, None)

    def at_least(self, value: int) -> DeviceGroupMask:
        """All device groups with this amount or more."""
        found = 0
        for amount, device_groups in self._device_groups.items():
            if amount >= value:
                found |= device_groups
        return found

    def largest(self, among: DeviceGroupMask) -> int:
        """The greatest amount any of these device groups has."""
        return max(
            (amount for amount, device_groups in self._device_groups.items() if device_groups & among), default=0
        )

    def total(self, among: DeviceGroupMask) -> int:
        """The amounts of all these device groups together."""
        return sum(
            amount * (device_groups & among).bit_count() for amount, device_groups in self._device_groups.items()
        )


class GroupsByLevel:
    """Device groups by an amount that changes with every placement and takes many values: free CPUs, free host memory.

    The level of an amount is its number of binary digits. A device group of a higher level than asked for surely has enough;
    one of the same level has to be looked at. `reaches[n]` holds all device groups of level n or above.
    """

    def __init__(self) -> None:
        self._reaches: list[DeviceGroupMask] = [0] * 66

    def add(self, amount: int, device_group: DeviceGroupMask) -> None:
        """Put a device group in that was not there."""
        for level in range(amount.bit_length() + 1):
            self._reaches[level] |= device_group

    def drop(self, amount: int, device_group: DeviceGroupMask) -> None:
        """Take a device group out."""
        for level in range(amount.bit_length() + 1):
            self._reaches[level] ^= device_group

    def move(self, before: int, after: int, device_group: DeviceGroupMask) -> None:
        """A device group's amount changed."""
        low, high = before.bit_length(), after.bit_length()
        if low != high:
            for level in range(min(low, high) + 1, max(low, high) + 1):
                self._reaches[level] ^= device_group

    def may_have(self, amount: int) -> DeviceGroupMask:
        """All device groups that may have the amount: none that has it is missing."""
        return self._reaches[amount.bit_length()]
