"""Compute the memory request of a task that ran out of GPU memory.

The new request is one and a half times what the task had, at most the memory of the largest GPU it may use: a task that
had whole GPUs needs larger ones, a task that had a share needs a larger share, up to a whole GPU. A task that had all
of the largest GPU is not retried: it would fail again.
"""

from math import ceil

from gpuyard.core.domain.placement import Placement
from gpuyard.core.domain.task import Resources
from gpuyard.core.engine.state import State
from gpuyard.core.placement.device_group_mask import without
from gpuyard.core.placement.shape import Shape

MORE = 1.5


def more_memory(state: State, ask: Resources, had: Placement) -> int | None:
    """Return the GPU memory to request next on each GPU, in MiB; None: the task already had the maximum."""
    before, largest = _had_mib(state, had), _largest_mib(state, ask)
    return min(ceil(MORE * before), largest) if 0 < before < largest else None


def _largest_mib(state: State, ask: Resources) -> int:
    """Return the memory of the largest GPUs the task may use, available on as many nodes as it needs; 0: none."""
    index, shape = state.index, Shape(ask.with_gpu_memory(0))
    shape.refresh(index)
    among = shape.eligible
    while largest := index.by_gpu_memory.largest(among):
        with_largest = shape.eligible & index.by_gpu_memory.at_least(largest)
        if len(index.hosts_of(with_largest)) >= ask.nodes:
            return largest
        among = without(among, with_largest)
    return 0


def _had_mib(state: State, had: Placement) -> int:
    """Return the memory an attempt had on the smallest of its GPUs."""
    index = state.index
    sizes = [
        part.gpu_memory_mib or index.hosts[part.node].device_group_of[gpu].gpu_memory_mib
        for part in had.slices
        for gpu in part.gpus
    ]
    return min(sizes, default=0)
