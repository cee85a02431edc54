"""Take the node where the placement leaves the fewest GPUs that the yard's typical task could not use.

Promise: steepest descent on expected fragmentation, as in Weng et al., "Beware of Fragmentation", USENIX ATC 2023.
A free GPU on a node with n free ones is a fragment for every task that asks for more than n on one node; the sizes
asked for so far are the weights. Choose it when sizes are mixed and large tasks wait long. With nothing known it
is best fit. It counts whole GPUs only; shares and host CPUs do not enter.
"""

from collections.abc import Sequence


def order(wanted: int, most: int, demand: Sequence[int]) -> Sequence[int]:
    """By how much the expected number of fragments grows; ties as in best fit."""
    larger = [sum(demand[free + 1 :]) for free in range(most + 1)]
    fragments = [free * larger[free] for free in range(most + 1)]
    return sorted(range(wanted, most + 1), key=lambda free: (fragments[free - wanted] - fragments[free], free))
