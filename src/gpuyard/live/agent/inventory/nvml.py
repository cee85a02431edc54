"""Finds GPUs with NVML, the library of NVIDIA's driver: exact, complete, and without a process for each query."""

from collections.abc import Callable
from contextlib import suppress
from typing import Any

from gpuyard.live.agent.inventory.pci import address, groups, numa_of
from gpuyard.live.agent.inventory.port import GpuDevice, GpuProcess, GpuUsage, NoSuchInventory

_MIB = 1024 * 1024


class Nvml:
    """The library is opened once and stays open."""

    def __init__(self) -> None:
        try:
            import pynvml  # type: ignore[import-untyped]

            self._nvml: Any = pynvml
            self._nvml.nvmlInit()
        except Exception as error:  # the module raises errors of several kinds if something is missing
            raise NoSuchInventory(f"NVML cannot be used on this node: {error}. Check the NVIDIA driver.") from error
        self._devices = self._find()

    def devices(self) -> tuple[GpuDevice, ...]:
        """Return the GPUs found when the library was opened. NVML itself does not see GPUs added later."""
        return self._devices

    def use(self) -> list[GpuUsage]:
        """Query each GPU. One that fell off the bus is reported as broken, and the others still answer."""
        return [self._use_of(device.index) for device in self._devices]

    def _find(self) -> tuple[GpuDevice, ...]:
        nvml = self._nvml
        handles = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())]
        linked = {
            (a, b)
            for a in range(len(handles))
            for b in range(a + 1, len(handles))
            if self._ask(nvml.nvmlDeviceGetP2PStatus, handles[a], handles[b], nvml.NVML_P2P_CAPS_INDEX_NVLINK)
            == nvml.NVML_P2P_STATUS_OK
        }
        driver = _text(nvml.nvmlSystemGetDriverVersion())
        nvlink = groups(len(handles), linked)
        devices = []
        for index, handle in enumerate(handles):
            pci = address(_text(nvml.nvmlDeviceGetPciInfo(handle).busId))
            memory = nvml.nvmlDeviceGetMemoryInfo(handle).total // _MIB
            model, uuid = _text(nvml.nvmlDeviceGetName(handle)), _text(nvml.nvmlDeviceGetUUID(handle))
            devices.append(GpuDevice(index, uuid, model, memory, pci, numa_of(pci), nvlink[index], driver))
        return tuple(devices)

    def _use_of(self, index: int) -> GpuUsage:
        nvml = self._nvml
        try:
            handle = nvml.nvmlDeviceGetHandleByIndex(index)
            memory = self._used_bytes(handle) // _MIB
        except nvml.NVMLError as error:
            return GpuUsage(index, broken=f"GPU {index} does not answer: {error}.")
        ask = self._ask
        rates = ask(nvml.nvmlDeviceGetUtilizationRates, handle)
        return GpuUsage(
            index,
            utilization_percent=_float(rates and rates.gpu),
            memory_used_mib=memory,
            temperature_c=_float(ask(nvml.nvmlDeviceGetTemperature, handle, nvml.NVML_TEMPERATURE_GPU)),
            power_watts=_watts(ask(nvml.nvmlDeviceGetPowerUsage, handle)),
            power_limit_watts=_watts(ask(nvml.nvmlDeviceGetEnforcedPowerLimit, handle)),
            fan_percent=_float(ask(nvml.nvmlDeviceGetFanSpeed, handle)),
            processes=self._processes(handle),
        )

    def _used_bytes(self, handle: Any) -> int:
        """Return the memory in use without the driver's reserve, which only newer drivers report separately."""
        memory = self._ask(self._nvml.nvmlDeviceGetMemoryInfo, handle, self._nvml.nvmlMemory_v2)
        return int((memory or self._nvml.nvmlDeviceGetMemoryInfo(handle)).used)

    def _processes(self, handle: Any) -> tuple[GpuProcess, ...]:
        """Return the compute and graphics processes. One that does both counts as compute."""
        computing = self._ask(self._nvml.nvmlDeviceGetComputeRunningProcesses, handle) or []
        drawing = self._ask(self._nvml.nvmlDeviceGetGraphicsRunningProcesses, handle) or []
        found = {process.pid: (process, True) for process in drawing}
        found |= {process.pid: (process, False) for process in computing}
        return tuple(
            GpuProcess(pid, (process.usedGpuMemory or 0) // _MIB, display)
            for pid, (process, display) in sorted(found.items())
        )

    def _ask(self, question: Callable[..., Any], *arguments: Any) -> Any:
        """Return an answer; None if this GPU or driver does not support the query."""
        with suppress(self._nvml.NVMLError):
            return question(*arguments)
        return None


def _text(value: "str | bytes") -> str:
    return value.decode() if isinstance(value, bytes) else value


def _float(figure: int | None) -> float | None:
    return None if figure is None else float(figure)


def _watts(milliwatts: int | None) -> float | None:
    return None if milliwatts is None else milliwatts / 1000
