"""Committed facts, handed to whoever listens. One who can not keep up is let go, and may go on from where he was."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress

from gpuyard.core.journal.records import Record

MOST_WAITING = 50_000
"""Facts a listener may be behind: some 50 MB."""


class _Listener:
    """What waits for one who listens."""

    def __init__(self) -> None:
        self.batches: deque[Sequence[Record]] = deque()
        self.facts = 0
        self.let_go = False
        self.woken = asyncio.Event()


class EventStream:
    """The facts as they are committed."""

    def __init__(self) -> None:
        self._listeners: set[_Listener] = set()

    def publish(self, records: Sequence[Record]) -> None:
        """Hand facts to all listeners."""
        for listener in list(self._listeners):
            if listener.facts >= MOST_WAITING:
                listener.let_go = True
                self._listeners.discard(listener)
            else:
                listener.batches.append(records)
                listener.facts += len(records)
            listener.woken.set()

    async def listen(self, idle_seconds: float) -> AsyncIterator[Sequence[Record]]:
        """Facts from now on; an empty batch when nothing happened for a while; it ends for one who was too slow."""
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
                listener.facts -= len(records)
                yield records
        finally:
            self._listeners.discard(listener)
