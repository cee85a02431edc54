"""Groups of variables that may refer to a common object (union-find)."""

from collections.abc import Hashable, Iterable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)


class Groups(Generic[K]):
    """Keys that were joined, directly or through others, are in one group."""

    def __init__(self, pairs: Iterable[tuple[K, K]]) -> None:
        self._above: dict[K, K] = {}
        for pair in pairs:
            one, other = map(self.group, pair)
            if one != other:
                self._above[other] = one

    def group(self, key: K) -> K:
        """Return the representative of the group of a key."""
        while key in self._above:
            key = self._above[key]
        return key
