"""Committed facts, handed to whoever listens. One who can not keep up is let go, and may go on from where he was."""

import asyncio
from collections.abc import AsyncIterator, Sequence

from gpuyard.journal.records import Record

MOST_WAITING = 10_000
"""Facts a listener may be behind."""


class Stream:
    """The facts as they are committed."""

    def __init__(self) -> None:
        self._listeners: dict[int, asyncio.Queue[Sequence[Record] | None]] = {}
        self._count = 0

    def publish(self, records: Sequence[Record]) -> None:
        """Hand facts to all listeners."""
        for number, queue in list(self._listeners.items()):
            if queue.qsize() >= MOST_WAITING:
                del self._listeners[number]
                queue.get_nowait()
                queue.put_nowait(None)
            else:
                queue.put_nowait(records)

    async def listen(self, idle_seconds: float) -> AsyncIterator[Sequence[Record]]:
        """Facts from now on; an empty batch when nothing happened for a while; it ends for one who was too slow."""
        self._count += 1
        number = self._count
        queue: asyncio.Queue[Sequence[Record] | None] = asyncio.Queue()
        self._listeners[number] = queue
        try:
            while True:
                try:
                    async with asyncio.timeout(idle_seconds):
                        records = await queue.get()
                except TimeoutError:
                    records = ()
                if records is None:
                    return
                yield records
        finally:
            self._listeners.pop(number, None)
