"""An actual: the measurements of an attempt."""

from collections.abc import Iterable

from gpuyard.core.domain.values import Value


class Actual(Value, frozen=True):
    """The measured GPU usage of one attempt, or of its part on one node. None: not measured."""

    gpu_memory_peak_mib: int | None = None
    """The highest memory usage observed on any of its GPUs."""
    gpu_utilization: float | None = None
    """Average utilization of its GPUs, in percent; only for whole GPUs, because the usage of shares cannot be separated."""


def combined_actual(parts: Iterable[Actual | None]) -> Actual | None:
    """Combine the parts of a gang: the highest memory peak and the mean utilization. None: no part was measured."""
    known = [part for part in parts if part is not None]
    if not known:
        return None
    peaks = [part.gpu_memory_peak_mib for part in known if part.gpu_memory_peak_mib is not None]
    busy = [part.gpu_utilization for part in known if part.gpu_utilization is not None]
    return Actual(max(peaks, default=None), sum(busy) / len(busy) if busy else None)
