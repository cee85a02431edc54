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
        self._began = False
        """Whether there was a commit: without one, nothing is known about the journal."""
        self._lock = Lock()
        """Needed because slow commits are measured in another thread."""

    def observe(self, seconds: float) -> None:
        """Add a commit that has just ended."""
        with self._lock:
            self._began = True
            self._recent.append((self._stopwatch(), seconds))

    def resume(self, mean: float, count: int) -> None:
        """Begin with the commits that the last scheduler has seen in its window, as if they had just ended."""
        for _ in range(min(count, MOST)):
            self.observe(mean)

    def count(self) -> int:
        """Return the number of commits that `mean` was made of."""
        return len(self._recent)

    def mean(self) -> float | None:
        """Return the mean duration in the window, 0 if there was no commit in it; None before the first commit."""
        recent, since = self._recent, self._stopwatch() - WINDOW_SECONDS
        with self._lock:
            if not self._began:
                return None
            while recent and recent[0][0] < since:
                recent.popleft()
            return sum(seconds for _, seconds in recent) / len(recent) if recent else 0.0
