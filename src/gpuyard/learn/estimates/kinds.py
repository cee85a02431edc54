"""What is remembered of kinds of tasks: of so many of them at the most, those that something was heard of last."""

from collections.abc import Callable
from typing import TypeAlias, TypeVar

SimilarityKey: TypeAlias = tuple[object, ...]
"""What tasks of a kind have in common."""
Known = TypeVar("Known")


class RecentKinds(dict[SimilarityKey, Known]):
    """What is known of each kind; the one that was heard of last is the last one."""

    def __init__(self, new: Callable[[], Known], most: int) -> None:
        """What is known of a kind that was never heard of, and how many are remembered."""
        super().__init__()
        self._new, self._most = new, most

    def touch(self, kind: SimilarityKey) -> Known:
        """What is known of a kind, to be added to."""
        known = self.pop(kind) if kind in self else self._new()
        self[kind] = known
        return known

    def forget(self) -> None:
        """Whatever nothing was heard of for longest, if there are too many."""
        while len(self) > self._most:
            del self[next(iter(self))]
