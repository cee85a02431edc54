"""What the kernel knows about a card by its place on the PCI bus."""

from pathlib import Path

_DEVICES = Path("/sys/bus/pci/devices")


def address(text: str) -> str:
    """As the kernel writes it: `0000:3b:00.0`. Drivers write the domain with eight digits and in capitals."""
    domain, _, rest = text.strip().lower().partition(":")
    return f"{domain[-4:].zfill(4)}:{rest}" if rest.count(":") == 1 else text.strip().lower()


def numa_of(pci: str) -> int:
    """The NUMA domain of a card. A machine with only one says -1, which is 0."""
    try:
        return max(0, int((_DEVICES / pci / "numa_node").read_text()))
    except (OSError, ValueError):
        return 0


def groups(count: int, linked: set[tuple[int, int]]) -> list[int | None]:
    """Number the groups of cards that are linked, also by way of others; none: it is linked to nobody."""
    group: list[int | None] = [None] * count
    for first in range(count):
        if group[first] is None:
            members, ahead = {first}, [first]
            while ahead:
                here = ahead.pop()
                new = {b if a == here else a for a, b in linked if here in {a, b}} - members
                members |= new
                ahead += new
            if len(members) > 1:
                for member in members:
                    group[member] = first
    return group
