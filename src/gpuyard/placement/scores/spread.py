"""Take the emptiest node.

Promise: tasks are kept apart, so each has more of its node's CPUs, memory bandwidth and air for itself.
Choose it for small yards of single-GPU tasks. It leaves no room for large tasks.
"""

from collections.abc import Sequence


def order(wanted: int, most: int, demand: Sequence[int]) -> Sequence[int]:  # noqa: ARG001
    """From most to exactly enough."""
    return range(most, wanted - 1, -1)
