"""How much GPU memory a task asks for after it ran out of it.

Half as much again as it had, and at the most what the largest card has that it may use: a task that had whole cards needs
larger ones, a task that had a share needs a larger share, up to a whole card. Who had all of the largest card is not tried
again: it would end in the same way.
"""

from math import ceil

from gpuyard.core.domain.placement import Placement
from gpuyard.core.domain.task import Resources
from gpuyard.core.engine.state import State
from gpuyard.core.placement.device_group_mask import without
from gpuyard.core.placement.shape import Shape

MORE = 1.5


def more_memory(state: State, ask: Resources, had: Placement) -> int | None:
    """What to ask for on each GPU next, in MiB; none: there is no more to be had."""
    before, largest = _had_mib(state, had), _largest_mib(state, ask)
    return min(ceil(MORE * before), largest) if 0 < before < largest else None


def _largest_mib(state: State, ask: Resources) -> int:
    """What the largest cards have that it may use, on as many nodes as it needs."""
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
    """What an attempt had on the smallest of its cards."""
    index = state.index
    cards = [
        part.gpu_memory_mib or index.hosts[part.node].device_group_of[gpu].gpu_memory_mib
        for part in had.slices
        for gpu in part.gpus
    ]
    return min(cards, default=0)
