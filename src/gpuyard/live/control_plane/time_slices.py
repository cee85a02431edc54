"""Long work in the event loop, done in slices: heartbeats, reports and other requests get their turn between two slices.

turns = Turns()
for item in many:
    ...
    if turns.due():
        await turns.give()
"""

import asyncio

SLICE_SECONDS = 0.004
"""How long one piece of work may hold the event loop."""


class TimeSlicer:
    """Counts the time since the last turn of others."""

    __slots__ = ("_now", "_until")

    def __init__(self) -> None:
        self._now = asyncio.get_running_loop().time
        self._until = self._now() + SLICE_SECONDS

    def due(self) -> bool:
        """Whether others should get their turn now."""
        return self._now() > self._until

    async def give(self) -> None:
        """Let everything run that is ready."""
        await asyncio.sleep(0)
        self._until = self._now() + SLICE_SECONDS
