"""Take the fullest node that still has room.

Promise: a node with many free GPUs is broken up only when no fuller one will do, so large tasks find room longer.
Choose it when in doubt. It can not know what the yard's tasks ask for; `fragmentation` does.
"""

from collections.abc import Sequence

from gpuyard.core.placement.demand import Demand
from gpuyard.core.placement.index import Index


def order(wanted: int, index: Index, demand: Demand) -> Sequence[int]:  # noqa: ARG001
    """From exactly enough to most."""
    return range(wanted, max(len(index.by_free), wanted + 1))
