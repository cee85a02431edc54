"""A bounded store of what is known about kinds of tasks; the least recently updated kinds are dropped."""

from collections.abc import Callable
from typing import TypeAlias, TypeVar

SimilarityKey: TypeAlias = tuple[object, ...]
"""The features that the tasks of a kind have in common."""
Known = TypeVar("Known")


class RecentKinds(dict[SimilarityKey, Known]):
    """What is known about each kind, in the order of the last update."""

    def __init__(self, new: Callable[[], Known], most: int) -> None:
        """`new` creates the entry of an unknown kind; `most` is the maximum number of kinds."""
        super().__init__()
        self._new, self._most = new, most

    def touch(self, kind: SimilarityKey) -> Known:
        """Return the entry of a kind for an update, and make it the most recent."""
        known = self.pop(kind) if kind in self else self._new()
        self[kind] = known
        return known

    def forget(self) -> None:
        """Drop the least recently updated kind if there are too many."""
        while len(self) > self._most:
            del self[next(iter(self))]
