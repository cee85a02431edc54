"""PCI addresses of GPUs, and the kernel's data about them."""

from pathlib import Path

_DEVICES = Path("/sys/bus/pci/devices")


def address(text: str) -> str:
    """Return a PCI address as the kernel writes it: `0000:3b:00.0`.

    Drivers use eight digits for the domain, and capitals.
    """
    domain, _, rest = text.strip().lower().partition(":")
    return f"{domain[-4:].zfill(4)}:{rest}" if rest.count(":") == 1 else text.strip().lower()


def numa_of(pci: str) -> int:
    """Return the NUMA domain of a GPU. A machine with only one reports -1, which becomes 0."""
    try:
        return max(0, int((_DEVICES / pci / "numa_node").read_text()))
    except (OSError, ValueError):
        return 0


def groups(count: int, linked: set[tuple[int, int]]) -> list[int | None]:
    """Number the groups of GPUs that are linked, directly or through others; None for a GPU without links."""
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
