"""Take the emptiest node.

Promise: tasks are spread out, so each has more of its node's CPUs, memory bandwidth and cooling.
Choose it for small clusters with single-GPU tasks. It leaves no room for large tasks.
"""

from gpuyard.core.domain.settings import Settings
from gpuyard.core.placement.demand import Demand
from gpuyard.core.placement.index import Index


def order(wanted: int, index: Index, demand: Demand, settings: Settings) -> range:  # noqa: ARG001
    """Return the numbers of free GPUs from the most to exactly enough."""
    return range(max(len(index.by_free) - 1, wanted), wanted - 1, -1)
