"""One timer for each attempt: when to look at it although nothing happens."""

import heapq

from gpuyard.live.agent.supervisor.messages import AttemptKey


class AttemptTimers:
    """The instants, the next one first. Setting a timer again replaces it; the old entry stays in the heap for a while."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, AttemptKey]] = []
        self._instants: dict[AttemptKey, float] = {}

    def set(self, key: AttemptKey, instant: float) -> None:
        """Look at this one then, and not when it was said before."""
        if self._instants.get(key) == instant:
            return
        self._instants[key] = instant
        heapq.heappush(self._heap, (instant, key))
        if len(self._heap) > 64 + 4 * len(self._instants):
            self._heap = [(instant, key) for key, instant in self._instants.items()]
            heapq.heapify(self._heap)

    def drop(self, key: AttemptKey) -> None:
        """There is nothing more to look at."""
        self._instants.pop(key, None)

    def next(self) -> float | None:
        """The next instant; none: there is none."""
        while self._heap and self._instants.get(self._heap[0][1]) != self._heap[0][0]:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def due(self, at: float) -> list[AttemptKey]:
        """Take out those whose instant has come."""
        keys = []
        while (instant := self.next()) is not None and instant <= at:
            _, key = heapq.heappop(self._heap)
            del self._instants[key]
            keys.append(key)
        return keys
