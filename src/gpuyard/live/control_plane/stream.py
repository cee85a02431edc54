"""Pass committed events to listeners. A listener that cannot keep up is disconnected and may resume where it was."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress

from gpuyard.core.journal.records import Record

MOST_WAITING = 50_000
"""Number of events by which a listener may be behind: about 50 MB."""


class _Listener:
    """The queue of one listener."""

    def __init__(self) -> None:
        self.batches: deque[Sequence[Record]] = deque()
        self.events = 0
        self.let_go = False
        self.woken = asyncio.Event()


class EventStream:
    """The events as they are committed."""

    def __init__(self) -> None:
        self._listeners: set[_Listener] = set()

    def publish(self, records: Sequence[Record]) -> None:
        """Pass events to all listeners."""
        for listener in list(self._listeners):
            if listener.events >= MOST_WAITING:
                listener.let_go = True
                self._listeners.discard(listener)
            else:
                listener.batches.append(records)
                listener.events += len(records)
            listener.woken.set()

    async def listen(self, idle_seconds: float) -> AsyncIterator[Sequence[Record]]:
        """Yield events from now on, and an empty batch after `idle_seconds` without any; end for a slow reader."""
        listener = _Listener()
        self._listeners.add(listener)
        try:
            while not listener.let_go:
                if not listener.batches:
                    listener.woken.clear()
                    with suppress(TimeoutError):
                        async with asyncio.timeout(idle_seconds):
                            await listener.woken.wait()
                records = listener.batches.popleft() if listener.batches else ()
                listener.events -= len(records)
                yield records
        finally:
            self._listeners.discard(listener)
