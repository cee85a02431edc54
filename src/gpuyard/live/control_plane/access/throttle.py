"""Slow down password guessing: after a few failures, each further failure doubles the wait.

Failures are counted per username and address, so that an attacker cannot lock out a user everywhere. The wait is
limited, so that a user who shares an address with an attacker (as on loopback) gets in within a minute.
"""

from collections.abc import Callable
from math import ceil
from threading import Lock

from gpuyard.live.control_plane.access.principal import Denied

FREE_FAILURES = 5
LONGEST_WAIT_SECONDS = 60.0
_FORGOTTEN_AFTER_SECONDS = 900.0
_MOST_KEPT = 10_000
"""Limits the memory that made-up names can use; the oldest entries are dropped first."""


class Throttle:
    """Failed logins, in memory only."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._lock = Lock()
        self._failures: dict[tuple[str, str], tuple[int, float]] = {}
        """Number of failures and time of the last one, ordered by that time."""

    def check(self, username: str, address: str) -> Denied | None:
        """Return the denial if the login has to wait, otherwise None."""
        count, last_at = self._failures.get(_key(username, address), (0, 0.0))
        if count < FREE_FAILURES:
            return None
        waited_seconds = self._clock() - last_at
        wait_seconds = min(2.0 ** (count - FREE_FAILURES), LONGEST_WAIT_SECONDS) - waited_seconds
        if waited_seconds < 0 or wait_seconds <= 0:  # negative: the clock was set back, which must not cause a wait
            return None
        seconds = ceil(wait_seconds)
        return Denied(
            429,
            "TooManyLogins",
            f"Too many failed logins of {username[:64]} from {address}. Try again in {seconds} s.",
            (("retry-after", str(seconds)),),
        )

    def failed(self, username: str, address: str) -> None:
        """Count a failed login."""
        key, now = _key(username, address), self._clock()
        with self._lock:
            count, last_at = self._failures.pop(key, (0, now))
            if now - last_at > _FORGOTTEN_AFTER_SECONDS:
                count = 0
            self._failures[key] = (min(count + 1, 64), now)
            while len(self._failures) > _MOST_KEPT:
                del self._failures[next(iter(self._failures))]

    def succeeded(self, username: str, address: str) -> None:
        """Forget the failures."""
        with self._lock:
            self._failures.pop(_key(username, address), None)


def _key(username: str, address: str) -> tuple[str, str]:
    return username[:64], address
