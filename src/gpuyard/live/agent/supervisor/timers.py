"""One timer for each attempt: when to look at it if no event comes first."""

import heapq

from gpuyard.live.agent.supervisor.messages import AttemptKey


class AttemptTimers:
    """A heap of times. Setting a timer again replaces it; the old entry stays in the heap until it is skipped."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, AttemptKey]] = []
        self._instants: dict[AttemptKey, float] = {}

    def set(self, key: AttemptKey, instant: float) -> None:
        """Set the timer of an attempt, replacing an earlier one."""
        if self._instants.get(key) == instant:
            return
        self._instants[key] = instant
        heapq.heappush(self._heap, (instant, key))
        if len(self._heap) > 64 + 4 * len(self._instants):
            self._heap = [(instant, key) for key, instant in self._instants.items()]
            heapq.heapify(self._heap)

    def drop(self, key: AttemptKey) -> None:
        """Remove the timer of an attempt."""
        self._instants.pop(key, None)

    def next(self) -> float | None:
        """Return the earliest time; None if no timer is set."""
        while self._heap and self._instants.get(self._heap[0][1]) != self._heap[0][0]:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def due(self, at: float) -> list[AttemptKey]:
        """Remove and return the attempts whose time has come."""
        keys = []
        while (instant := self.next()) is not None and instant <= at:
            _, key = heapq.heappop(self._heap)
            del self._instants[key]
            keys.append(key)
        return keys
