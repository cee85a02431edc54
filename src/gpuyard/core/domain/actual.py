"""An actual: the measurements of an attempt."""

from collections.abc import Iterable

from gpuyard.core.domain.values import Value


class Actual(Value, frozen=True):
    """The measured GPU usage of one attempt, or of its part on one node. None: not measured."""

    gpu_memory_peak_mib: int | None = None
    """The highest memory usage observed on any of its GPUs."""
    gpu_utilization: float | None = None
    """Average utilization of its GPUs, in percent; only for whole GPUs, because the usage of shares cannot be separated."""
    gpu_idle_fraction: float | None = None
    """Part of the readings in which its GPUs were idle (use below 5 percent), from 0 to 1; only for whole GPUs."""
    gpu_power_watts: float | None = None
    """Mean power of one of its GPUs; only for whole GPUs."""


def combined_actual(parts: Iterable[Actual | None]) -> Actual | None:
    """Combine the parts of a gang: the highest memory peak and means of the rest. None: no part was measured."""
    known = [part for part in parts if part is not None]
    if not known:
        return None
    peaks = [part.gpu_memory_peak_mib for part in known if part.gpu_memory_peak_mib is not None]
    return Actual(
        max(peaks, default=None),
        _mean(part.gpu_utilization for part in known),
        _mean(part.gpu_idle_fraction for part in known),
        _mean(part.gpu_power_watts for part in known),
    )


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None
