"""What the open tasks of the yard ask for: every waiting and every running one counts, ended ones no longer do.

This is how the engine guesses what will be asked for next. It follows from the facts alone, needs no memory of its own
in a snapshot, and changes as the yard's work changes.
"""

from collections.abc import Iterator

from gpuyard.core.domain.task import Resources
from gpuyard.core.domain.values import MILLI
from gpuyard.core.placement.fragmentation_cost import remainder_values

LITTLE = 16
"""So many tasks may come or go before anything that was worked out from the demand is worked out again; then, a
quarter of all."""


class Demand:
    """How many open tasks ask for what."""

    def __init__(self) -> None:
        self._counts: dict[Resources, int] = {}
        self._tasks = 0
        self._changes = 0
        self._worth: tuple[float, ...] = ()
        self._card_mib = 0

    def count(self, ask: Resources, by: int) -> bool:
        """A task came (1) or ended (-1). Says whether the demand has become another since it last said so."""
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
        """Every kind of request, with the number of nodes that tasks of it want."""
        for ask, count in self._counts.items():
            yield ask, count * ask.nodes

    def worth(self, card_mib: int) -> tuple[float, ...]:
        """What the rest of a card is worth to the shares that are asked for; see `remainder_values`."""
        if not self._worth or self._card_mib != card_mib:
            shares: dict[int, int] = {}
            for ask, count in self.asks():
                if ask.share is not None and (milli := milli_of(ask, card_mib)) < MILLI:
                    shares[milli] = shares.get(milli, 0) + count
            self._worth, self._card_mib = remainder_values(shares), card_mib
        return self._worth


def milli_of(ask: Resources, card_mib: int) -> int:
    """How much of GPUs a task asks for on a node, in thousandths of one; memory is counted as a part of such a card."""
    if ask.share is None:
        return ask.gpus * MILLI
    return min(max(ask.share.fraction_milli, ask.share.memory_mib * MILLI // max(card_mib, 1)), MILLI)
