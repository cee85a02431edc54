"""Restart times of workers that ended: at once, then after increasing pauses, then never."""

from time import monotonic

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.2, 30.0
TRIES = 8
"""The most restarts in a row of a worker that does no work in between."""


class Restarts:
    """The pending restarts of a pool's workers, by GPU."""

    def __init__(self) -> None:
        self._at: dict[int, float] = {}
        self._in_vain: dict[int, int] = {}

    def ended(self, gpu: int) -> None:
        """Schedule a restart for a worker that ended unexpectedly."""
        count = self._in_vain[gpu] = self._in_vain.get(gpu, 0) + 1
        if count <= TRIES:
            self._at[gpu] = monotonic() + (
                0.0 if count == 1 else min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2 ** (count - 2))
            )

    def worked(self, gpu: int) -> None:
        """Reset the count of restarts, because the worker has done some work."""
        self._in_vain.pop(gpu, None)

    def forget(self, gpu: int) -> None:
        """Cancel a pending restart, because the pool stops or starts the worker itself."""
        self._at.pop(gpu, None)

    def due(self) -> list[int]:
        """Return the workers to restart now."""
        gpus = [gpu for gpu, at in self._at.items() if at <= monotonic()]
        for gpu in gpus:
            del self._at[gpu]
        return gpus

    def pause_s(self, longest: float) -> float:
        """Seconds until the next restart is due, at most `longest`."""
        return max(0.0, min([longest, *(at - monotonic() for at in self._at.values())]))

    def __bool__(self) -> bool:
        return bool(self._at)
