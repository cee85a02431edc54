"""Measures the energy of the GPUs of this machine during a run, with the counters of NVML."""

from collections.abc import Sequence
from typing import Any

from gpuyard.system.clock_guard import handle_of


class EnergyMeter:
    """Counts the joules of some GPUs, given by their CUDA device names, from its creation on."""

    def __init__(self, nvml: Any, devices: Sequence[str]) -> None:
        self._nvml, self._devices = nvml, list(devices)
        self._began = self._read()

    def joules(self) -> float | None:
        """Return the energy so far; None if a GPU has no counter or cannot be read."""
        now = self._read()
        return None if now is None or self._began is None else now - self._began

    def _read(self) -> float | None:
        try:
            handles = [handle_of(self._nvml, gpu) for gpu in self._devices]
            return float(sum(self._nvml.nvmlDeviceGetTotalEnergyConsumption(handle) for handle in handles)) / 1000
        except self._nvml.NVMLError:
            return None


def meter_here(devices: Sequence[str]) -> EnergyMeter | None:
    """Return a meter for GPUs of this machine; None without NVML."""
    import pynvml  # type: ignore[import-untyped]

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return None
    return EnergyMeter(pynvml, devices)
