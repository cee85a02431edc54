"""An actual: what was measured while an attempt ran."""

from collections.abc import Iterable

from gpuyard.core.domain.values import Value


class Actual(Value, frozen=True):
    """What one attempt, or its part on one node, took of its GPUs. None: nobody could measure it."""

    gpu_memory_peak_mib: int | None = None
    """The most it was seen to have on any one of its GPUs."""
    gpu_utilization: float | None = None
    """How busy its GPUs were, in percent, on average; only of whole GPUs, since nobody can tell shares apart."""


def combined_actual(parts: Iterable[Actual | None]) -> Actual | None:
    """Of a gang: the most memory on any GPU, and how busy they were on average."""
    known = [part for part in parts if part is not None]
    if not known:
        return None
    peaks = [part.gpu_memory_peak_mib for part in known if part.gpu_memory_peak_mib is not None]
    busy = [part.gpu_utilization for part in known if part.gpu_utilization is not None]
    return Actual(max(peaks, default=None), sum(busy) / len(busy) if busy else None)
