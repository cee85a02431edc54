"""The interface for finding GPUs. Every implementation passes tests/contract/test_inventory.py."""

from typing import Protocol

from gpuyard.core.domain.errors import GpuyardError
from gpuyard.core.domain.values import Value


class NoSuchInventory(GpuyardError):
    """GPUs cannot be found in the way that was asked for. Choose another one in gpu.detection_method."""


class GpuDevice(Value, frozen=True):
    """The properties of a GPU that do not change while the machine runs."""

    index: int
    """Its position in the order of the PCI bus, which CUDA uses with CUDA_DEVICE_ORDER=PCI_BUS_ID."""
    uuid: str
    model: str
    memory_mib: int
    pci: str = ""
    numa: int = 0
    nvlink: int | None = None
    """GPUs with the same number reach each other over NVLink; None: it has no such link."""
    driver: str = ""
    virtual: bool = False


class GpuProcess(Value, frozen=True):
    """A process that uses a GPU."""

    pid: int
    memory_mib: int
    """0: the driver does not report it."""
    display: bool
    """It draws, and does not compute."""


class GpuUsage(Value, frozen=True):
    """The current use of a GPU. None: the GPU or its driver does not report it."""

    index: int
    utilization_percent: float | None = None
    memory_used_mib: int | None = None
    temperature_c: float | None = None
    power_watts: float | None = None
    power_limit_watts: float | None = None
    fan_percent: float | None = None
    processes: tuple[GpuProcess, ...] = ()
    broken: str = ""
    """A sentence if the GPU does not answer any more; empty otherwise."""


class Inventory(Protocol):
    """A way of finding GPUs."""

    def devices(self) -> tuple[GpuDevice, ...]:
        """Return all GPUs, by index from 0."""
        ...

    def use(self) -> list[GpuUsage]:
        """Return the current use, one entry for each GPU in the same order, broken ones included."""
        ...
