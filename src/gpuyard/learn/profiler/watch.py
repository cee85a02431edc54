"""Reads from NVML what a GPU does while something runs on it: power, energy, utilization, clocks, memory.

The driver itself keeps samples with their times (power every 20 ms, utilization every 200 ms on an H200). They are read
afterwards, so the measurement is not disturbed; the plain calls (`nvmlDeviceGetPowerUsage`) return means over the last
second, which include earlier work.
"""

import time
from dataclasses import dataclass
from statistics import fmean
from types import TracebackType
from typing import Any, Self


@dataclass(frozen=True, slots=True)
class GpuSamples:
    """Means over the watched time; None if it was too short for a sample."""

    power_w: float | None
    energy_j: float | None
    """By the driver's counter of energy; None if the GPU has none."""
    utilization: float | None
    memory_utilization: float | None
    sm_clock_mhz: float
    """Clock at the end, likewise for the memory: an H200 keeps no samples of its clocks."""
    memory_clock_mhz: float
    temperature_c: float
    memory_mib: float
    """Memory in use at the end."""


class GpuWatch:
    """Use as `with GpuWatch(0) as watch: …`, then read `watch.seen`."""

    def __init__(self, gpu: int, nvml: Any = None) -> None:
        if nvml is None:
            import pynvml  # type: ignore[import-untyped]

            nvml = pynvml
        self._nvml: Any = nvml
        nvml.nvmlInit()
        self._gpu = nvml.nvmlDeviceGetHandleByIndex(gpu)
        self._began = 0.0
        self._energy_j: float | None = None
        self.seen: GpuSamples | None = None

    @property
    def driver(self) -> str:
        """Version of the driver."""
        return str(self._nvml.nvmlSystemGetDriverVersion())

    def __enter__(self) -> Self:
        self._energy_j = self.energy_j()
        self._began = time.time()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        n = self._nvml
        energy_j = self.energy_j()
        ended, sm_clock_mhz = time.time(), n.nvmlDeviceGetClockInfo(self._gpu, n.NVML_CLOCK_SM)
        power = self._mean(n.NVML_TOTAL_POWER_SAMPLES, 0.02, ended)
        use, memory_use = (
            self._mean(kind, 0.2, ended) for kind in (n.NVML_GPU_UTILIZATION_SAMPLES, n.NVML_MEMORY_UTILIZATION_SAMPLES)
        )
        self.seen = GpuSamples(
            None if power is None else power / 1000,
            None if energy_j is None or self._energy_j is None else energy_j - self._energy_j,
            None if use is None else use / 100,
            None if memory_use is None else memory_use / 100,
            sm_clock_mhz,
            n.nvmlDeviceGetClockInfo(self._gpu, n.NVML_CLOCK_MEM),
            n.nvmlDeviceGetTemperature(self._gpu, n.NVML_TEMPERATURE_GPU),
            n.nvmlDeviceGetMemoryInfo(self._gpu).used / 2**20,
        )

    def energy_j(self) -> float | None:
        """Return the joules since the driver was loaded; None if the GPU does not count them."""
        try:
            return float(self._nvml.nvmlDeviceGetTotalEnergyConsumption(self._gpu)) / 1000
        except self._nvml.NVMLError:
            return None

    def memory_of(self, pids: set[int]) -> float:
        """Return the MiB that these processes hold on the GPU."""
        running = self._nvml.nvmlDeviceGetComputeRunningProcesses(self._gpu)
        return float(sum(p.usedGpuMemory or 0 for p in running if p.pid in pids)) / 2**20

    def _mean(self, kind: int, covers_s: float, ended: float) -> float | None:
        """Return the mean of samples entirely inside the interval; each covers the time before its timestamp."""
        n = self._nvml
        try:
            of, samples = n.nvmlDeviceGetSamples(self._gpu, kind, int(self._began * 1e6))
        except n.NVMLError:
            return None
        inside = [s for s in samples if self._began + covers_s <= s.timeStamp / 1e6 <= ended]
        values = [s.sampleValue.dVal if of == n.NVML_VALUE_TYPE_DOUBLE else s.sampleValue.uiVal for s in inside]
        return fmean(values) if values else None


def gpus_here() -> int:
    """Return the number of GPUs that NVML can watch."""
    import pynvml

    try:
        pynvml.nvmlInit()
        return int(pynvml.nvmlDeviceGetCount())
    except pynvml.NVMLError:
        return 0
