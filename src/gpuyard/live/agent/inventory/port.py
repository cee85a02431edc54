"""What a way of finding GPUs promises. Every one passes tests/contract/test_inventory.py."""

from typing import Protocol

from gpuyard.core.domain.errors import GpuyardError
from gpuyard.core.domain.values import Value


class NoSuchInventory(GpuyardError):
    """GPUs can not be found in the way that was asked for. Choose another one in gpu.detection_method."""


class GpuDevice(Value, frozen=True):
    """One GPU: what does not change while the machine runs."""

    index: int
    """Its place, in the order of the PCI bus: what CUDA counts by with CUDA_DEVICE_ORDER=PCI_BUS_ID."""
    uuid: str
    model: str
    memory_mib: int
    pci: str = ""
    numa: int = 0
    nvlink: int | None = None
    """Cards with the same number reach each other over NVLink; none: it has no such link."""
    driver: str = ""
    virtual: bool = False


class GpuProcess(Value, frozen=True):
    """A process that uses a GPU."""

    pid: int
    memory_mib: int
    """0: the driver does not say."""
    display: bool
    """It draws, and does not compute."""


class GpuUsage(Value, frozen=True):
    """What a GPU does at the moment. None: the card or its driver does not say."""

    index: int
    utilization_percent: float | None = None
    memory_used_mib: int | None = None
    temperature_c: float | None = None
    power_watts: float | None = None
    power_limit_watts: float | None = None
    fan_percent: float | None = None
    processes: tuple[GpuProcess, ...] = ()
    broken: str = ""
    """A sentence, where the card does not answer any more."""


class Inventory(Protocol):
    """A way of finding GPUs."""

    def cards(self) -> tuple[GpuDevice, ...]:
        """All of them, by index from 0 on."""
        ...

    def use(self) -> list[GpuUsage]:
        """What they do now, one for each card and in the same order. Broken cards are in it too."""
        ...
