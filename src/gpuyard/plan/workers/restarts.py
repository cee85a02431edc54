"""When a worker that ended begins again: at once, then after longer and longer pauses, and at some time no more."""

from time import monotonic

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.2, 30.0
TRIES = 8
"""A worker that ended so often in a row without having done anything is given up."""


class Restarts:
    """Of all workers of a pool, by GPU."""

    def __init__(self) -> None:
        self._at: dict[int, float] = {}
        self._in_vain: dict[int, int] = {}

    def ended(self, gpu: int) -> None:
        """A worker ended that nobody had told to."""
        count = self._in_vain[gpu] = self._in_vain.get(gpu, 0) + 1
        if count <= TRIES:
            self._at[gpu] = monotonic() + (
                0.0 if count == 1 else min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2 ** (count - 2))
            )

    def worked(self, gpu: int) -> None:
        """It has done something, so it is worth another try the next time."""
        self._in_vain.pop(gpu, None)

    def forget(self, gpu: int) -> None:
        """Whoever stops or begins a worker decides anew."""
        self._at.pop(gpu, None)

    def due(self) -> list[int]:
        """Those that are to begin now."""
        gpus = [gpu for gpu, at in self._at.items() if at <= monotonic()]
        for gpu in gpus:
            del self._at[gpu]
        return gpus

    def pause_s(self, longest: float) -> float:
        """Until the next one is due."""
        return max(0.0, min([longest, *(at - monotonic() for at in self._at.values())]))

    def __bool__(self) -> bool:
        return bool(self._at)
