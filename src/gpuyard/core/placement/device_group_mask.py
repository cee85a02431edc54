"""Sets of device groups as integers, and two indexes of device groups by an amount."""

from collections.abc import Iterator

DeviceGroupMask = int
"""Bit n stands for device group n. AND, OR and XOR are intersection, union and toggling."""


def members(device_groups: DeviceGroupMask) -> Iterator[int]:
    """Iterate over the device group numbers in a set, highest first: `bit_length` finds the highest bit directly."""
    while device_groups:
        top = device_groups.bit_length() - 1
        yield top
        device_groups ^= 1 << top


def without(device_groups: DeviceGroupMask, forbidden: DeviceGroupMask) -> DeviceGroupMask:
    """Return the set difference. `a & ~b` would create a negative integer first, which is slower."""
    return device_groups ^ (device_groups & forbidden)


class GroupsByValue:
    """Device groups by an amount that rarely changes and has few values: GPU memory, installed CPUs."""

    def __init__(self) -> None:
        self._device_groups: dict[int, DeviceGroupMask] = {}

    def toggle(self, value: int, device_group: DeviceGroupMask) -> None:
        """Add a device group, or remove it if it is present."""
        left = self._device_groups.get(value, 0) ^ device_group
        if left:
            self._device_groups[value] = left
        else:
            self._device_groups.pop(value, None)

    def at_least(self, value: int) -> DeviceGroupMask:
        """Return all device groups with this amount or more."""
        found = 0
        for amount, device_groups in self._device_groups.items():
            if amount >= value:
                found |= device_groups
        return found

    def largest(self, among: DeviceGroupMask) -> int:
        """Return the largest amount among these device groups; 0 if there are none."""
        return max(
            (amount for amount, device_groups in self._device_groups.items() if device_groups & among), default=0
        )

    def total(self, among: DeviceGroupMask) -> int:
        """Return the sum of the amounts of these device groups."""
        return sum(
            amount * (device_groups & among).bit_count() for amount, device_groups in self._device_groups.items()
        )


class GroupsByLevel:
    """Device groups by an amount that changes with every placement and has many values: free CPUs, free host memory.

    The level of an amount is its number of binary digits. A device group of a higher level than requested always has
    enough; one of the same level must be checked. `_reaches[n]` holds all device groups of level n or above.
    """

    def __init__(self) -> None:
        self._reaches: list[DeviceGroupMask] = [0] * 66

    def add(self, amount: int, device_group: DeviceGroupMask) -> None:
        """Add a device group that is not present."""
        for level in range(amount.bit_length() + 1):
            self._reaches[level] |= device_group

    def drop(self, amount: int, device_group: DeviceGroupMask) -> None:
        """Remove a device group that is present with this amount."""
        for level in range(amount.bit_length() + 1):
            self._reaches[level] ^= device_group

    def move(self, before: int, after: int, device_group: DeviceGroupMask) -> None:
        """Change the amount of a device group."""
        low, high = before.bit_length(), after.bit_length()
        if low != high:  # most changes stay within a level and cost nothing
            for level in range(min(low, high) + 1, max(low, high) + 1):
                self._reaches[level] ^= device_group

    def may_have(self, amount: int) -> DeviceGroupMask:
        """Return a superset of the device groups that have the amount; the caller must check each one."""
        return self._reaches[amount.bit_length()]
