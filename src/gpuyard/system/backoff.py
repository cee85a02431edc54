"""Pauses between tries: each twice as long as the one before, up to a limit."""


class Backoff:
    """The pauses of one series of tries."""

    def __init__(self, first_seconds: float, longest_seconds: float) -> None:
        self._first, self._longest = first_seconds, longest_seconds
        self._next = first_seconds

    def next(self) -> float:
        """How long to wait before the next try."""
        pause = self._next
        self._next = min(pause * 2, self._longest)
        return pause

    def reset(self) -> None:
        """A try succeeded: the next pause is short again."""
        self._next = self._first
