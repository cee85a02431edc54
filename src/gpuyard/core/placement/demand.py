"""The demand: what all open tasks of the cluster request. Waiting and running tasks count, ended tasks do not.

The engine uses it as a forecast of future requests. It follows from the events alone, so a snapshot need not store it,
and it adapts as the workload changes.
"""

from collections.abc import Iterator

from gpuyard.core.domain.task import Resources
from gpuyard.core.domain.values import MILLI
from gpuyard.core.placement.fragmentation_cost import remainder_values

LITTLE = 16
"""Values derived from the demand are recomputed after more changes than this, and than a quarter of all open tasks."""


class Demand:
    """The number of open tasks by their requested resources."""

    def __init__(self) -> None:
        self._counts: dict[Resources, int] = {}
        self._tasks = 0
        self._changes = 0
        self._worth: tuple[float, ...] = ()
        self._gpu_mib = 0

    def count(self, ask: Resources, by: int) -> bool:
        """Count a submitted (1) or an ended (-1) task. Return whether derived values must be recomputed."""
        left = self._counts.get(ask, 0) + by
        if left:
            self._counts[ask] = left
        else:
            del self._counts[ask]
        self._tasks += by
        self._changes += 1
        if self._changes <= LITTLE or self._changes * 4 <= self._tasks:
            return False
        self._changes = 0
        self._worth = ()
        return True

    def asks(self) -> Iterator[tuple[Resources, int]]:
        """Iterate over the distinct requests, each with the number of nodes its tasks request in total."""
        for ask, count in self._counts.items():
            yield ask, count * ask.nodes

    def worth(self, gpu_mib: int) -> tuple[float, ...]:
        """Return the value of a GPU's remainder for the requested shares; see `remainder_values`."""
        if not self._worth or self._gpu_mib != gpu_mib:
            shares: dict[int, int] = {}
            for ask, count in self.asks():
                if ask.share is not None and (milli := milli_of(ask, gpu_mib)) < MILLI:
                    shares[milli] = shares.get(milli, 0) + count
            self._worth, self._gpu_mib = remainder_values(shares), gpu_mib
        return self._worth


def milli_of(ask: Resources, gpu_mib: int) -> int:
    """Return the GPUs a task requests per node, in thousandths; a memory share counts as its part of `gpu_mib`."""
    if ask.share is None:
        return ask.gpus * MILLI
    return min(max(ask.share.fraction_milli, ask.share.memory_mib * MILLI // max(gpu_mib, 1)), MILLI)
