"""Endless streams (live view, events, followed output) by user, limited so that one user leaves connections to others."""

from collections import Counter

from gpuyard.core.domain.errors import GpuyardError

MOST_OF_ONE = 64


class TooManyStreams(GpuyardError):
    """You have 64 streams open, the maximum for one user. Close one, or ask at intervals instead."""


class OpenStreams:
    """The number of open streams of each user."""

    def __init__(self) -> None:
        self._count: Counter[str] = Counter()

    def opened(self, user: str) -> None:
        """Count a stream, or raise `TooManyStreams`."""
        if self._count[user] >= MOST_OF_ONE:
            raise TooManyStreams(
                f"{user} has {MOST_OF_ONE} streams open, the maximum for one user. Close one, or ask at intervals instead."
            )
        self._count[user] += 1

    def closed(self, user: str) -> None:
        """Remove a stream that has ended."""
        self._count[user] -= 1
        if not self._count[user]:
            del self._count[user]
