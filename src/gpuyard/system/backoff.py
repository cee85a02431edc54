"""Exponential backoff: each pause between tries is twice as long as the one before, up to a limit."""


class Backoff:
    """The pauses of one series of tries."""

    def __init__(self, first_seconds: float, longest_seconds: float) -> None:
        self._first, self._longest = first_seconds, longest_seconds
        self._next = first_seconds

    def next(self) -> float:
        """Return the seconds to wait before the next try, and double the pause after it."""
        pause = self._next
        self._next = min(pause * 2, self._longest)
        return pause

    def reset(self) -> None:
        """Start again with the first pause, after a try has succeeded."""
        self._next = self._first
