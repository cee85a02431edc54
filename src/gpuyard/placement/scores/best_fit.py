"""Take the fullest node that still has room.

Promise: a node with many free GPUs is broken up only when no fuller one will do, so large tasks find room longer.
Choose it when in doubt. It can not know which sizes the yard's tasks have; `fragmentation` does.
"""

from collections.abc import Sequence


def order(wanted: int, most: int, demand: Sequence[int]) -> Sequence[int]:  # noqa: ARG001
    """From exactly enough to most."""
    return range(wanted, most + 1)
