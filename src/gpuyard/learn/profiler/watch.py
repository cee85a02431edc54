"""What NVML says of a GPU while something runs on it: power, energy, use, clocks, memory.

The driver itself keeps samples with their times (power every 20 ms, use every 200 ms on an H200). They are asked for
afterwards, so nothing disturbs what is measured; the plain calls (`nvmlDeviceGetPowerUsage`) answer with means over the
last second, which belong to whatever ran before.
"""

import time
from dataclasses import dataclass
from statistics import fmean
from types import TracebackType
from typing import Any, Self


@dataclass(frozen=True, slots=True)
class GpuSamples:
    """Means over the time that was watched; None where it was too short for a sample."""

    power_w: float | None
    utilisation: float | None
    memory_utilisation: float | None
    sm_clock_mhz: float
    """At the end, as the memory's: an H200 keeps no samples of its clocks."""
    memory_clock_mhz: float
    temperature_c: float
    memory_mib: float
    """At the end."""


class GpuWatch:
    """`with Watch(0) as watch: …` and then `watch.seen`."""

    def __init__(self, gpu: int, nvml: Any = None) -> None:
        if nvml is None:
            import pynvml  # type: ignore[import-untyped]

            nvml = pynvml
        self._nvml: Any = nvml
        nvml.nvmlInit()
        self._gpu = nvml.nvmlDeviceGetHandleByIndex(gpu)
        self._began = 0.0
        self.seen: GpuSamples | None = None

    @property
    def driver(self) -> str:
        """Its version."""
        return str(self._nvml.nvmlSystemGetDriverVersion())

    def __enter__(self) -> Self:
        self._began = time.time()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        n = self._nvml
        ended, sm_clock_mhz = time.time(), n.nvmlDeviceGetClockInfo(self._gpu, n.NVML_CLOCK_SM)
        power = self._mean(n.NVML_TOTAL_POWER_SAMPLES, 0.02, ended)
        use, memory_use = (
            self._mean(kind, 0.2, ended) for kind in (n.NVML_GPU_UTILIZATION_SAMPLES, n.NVML_MEMORY_UTILIZATION_SAMPLES)
        )
        self.seen = GpuSamples(
            None if power is None else power / 1000,
            None if use is None else use / 100,
            None if memory_use is None else memory_use / 100,
            sm_clock_mhz,
            n.nvmlDeviceGetClockInfo(self._gpu, n.NVML_CLOCK_MEM),
            n.nvmlDeviceGetTemperature(self._gpu, n.NVML_TEMPERATURE_GPU),
            n.nvmlDeviceGetMemoryInfo(self._gpu).used / 2**20,
        )

    def memory_of(self, pids: set[int]) -> float:
        """MiB that these processes hold on it."""
        running = self._nvml.nvmlDeviceGetComputeRunningProcesses(self._gpu)
        return float(sum(p.usedGpuMemory or 0 for p in running if p.pid in pids)) / 2**20

    def _mean(self, kind: int, covers_s: float, ended: float) -> float | None:
        """Of the samples that lie wholly inside; each speaks of the time before its stamp."""
        n = self._nvml
        try:
            of, samples = n.nvmlDeviceGetSamples(self._gpu, kind, int(self._began * 1e6))
        except n.NVMLError:
            return None
        inside = [s for s in samples if self._began + covers_s <= s.timeStamp / 1e6 <= ended]
        values = [s.sampleValue.dVal if of == n.NVML_VALUE_TYPE_DOUBLE else s.sampleValue.uiVal for s in inside]
        return fmean(values) if values else None


def gpus_here() -> int:
    """How many GPUs NVML can watch."""
    import pynvml

    try:
        pynvml.nvmlInit()
        return int(pynvml.nvmlDeviceGetCount())
    except pynvml.NVMLError:
        return 0
