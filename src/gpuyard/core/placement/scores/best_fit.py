"""Take the fullest node that still has room.

Promise: a node with many free GPUs is used only if no fuller node has room, so large tasks find room for longer.
Choose it when in doubt. It ignores what the open tasks request; `fragmentation` considers it.
"""

from gpuyard.core.domain.settings import Settings
from gpuyard.core.placement.demand import Demand
from gpuyard.core.placement.index import Index


def order(wanted: int, index: Index, demand: Demand, settings: Settings) -> range:  # noqa: ARG001
    """Return the numbers of free GPUs from exactly enough to the most."""
    return range(wanted, max(len(index.by_free), wanted + 1))
