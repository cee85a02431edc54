"""A selection of a node's GPUs: those that `gpu.devices` names, with the part of their memory that may be used.

The scheduler and the tasks of the node know only these. They are numbered from 0 in the order of the PCI bus, as if the
others did not exist; real GPUs are given to tasks by UUID, so the driver's numbers do not matter.
"""

from collections.abc import Sequence

from msgspec.structs import replace

from gpuyard.live.agent.inventory.port import GpuDevice, GpuUsage, Inventory, NoSuchInventory


class SelectedGpus:
    """An inventory that leaves GPUs out."""

    def __init__(self, every: Inventory, devices: Sequence[int | str] = (), memory_percent: float = 100.0) -> None:
        """`devices` are numbers or UUIDs; empty: all GPUs. Raise `NoSuchInventory` if none of those named exists."""
        found = every.devices()
        self._every = every
        self.missing = [device for device in devices if not any(_is(gpu, device) for gpu in found)]
        """Devices that are named and do not exist."""
        self.numbers = [gpu.index for gpu in found if not devices or any(_is(gpu, device) for device in devices)]
        """The number of each GPU among all that were found."""
        if devices and not self.numbers:
            named = ", ".join(map(str, devices))
            present = ", ".join(f"{gpu.index} ({gpu.uuid})" for gpu in found) or "none"
            raise NoSuchInventory(f"gpu.devices lists {named}, and this node has none of them. It has {present}.")
        self._devices = tuple(
            replace(found[number], index=place, memory_mib=int(found[number].memory_mib * memory_percent / 100))
            for place, number in enumerate(self.numbers)
        )

    def devices(self) -> tuple[GpuDevice, ...]:
        """Return the GPUs that may be used, by index from 0."""
        return self._devices

    def use(self) -> list[GpuUsage]:
        """Return their current use."""
        uses = self._every.use()
        return [replace(uses[number], index=place) for place, number in enumerate(self.numbers)]


def _is(gpu: GpuDevice, device: int | str) -> bool:
    return str(device).lower() in {str(gpu.index), gpu.uuid.lower()}
