"""How long commits took in the last minute, for the rule `journal_slow`."""

from collections import deque
from collections.abc import Callable
from threading import Lock

WINDOW_SECONDS = 60.0
MOST = 10_000
"""At most this many commits of the window are kept: the newest."""


class CommitTimes:
    """The durations of recent commits."""

    def __init__(self, stopwatch: Callable[[], float]) -> None:
        self._stopwatch = stopwatch
        self._recent: deque[tuple[float, float]] = deque(maxlen=MOST)
        self._lock = Lock()
        """Needed because slow commits are measured in another thread."""

    def observe(self, seconds: float) -> None:
        """Add a commit that has just ended."""
        with self._lock:
            self._recent.append((self._stopwatch(), seconds))

    def mean(self) -> float:
        """Return the mean duration in the window; 0 if there was no commit."""
        recent, since = self._recent, self._stopwatch() - WINDOW_SECONDS
        with self._lock:
            while recent and recent[0][0] < since:
                recent.popleft()
            return sum(seconds for _, seconds in recent) / len(recent) if recent else 0.0
