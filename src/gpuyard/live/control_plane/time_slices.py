"""Do long work in the event loop in slices, so that heartbeats, reports and other requests run in between.

turns = TimeSlicer()
for item in many:
    ...
    if turns.due():
        await turns.give()
"""

import asyncio

SLICE_SECONDS = 0.004
"""How long one piece of work may hold the event loop."""


class TimeSlicer:
    """Measures the time since other work last ran."""

    __slots__ = ("_now", "_until")

    def __init__(self) -> None:
        self._now = asyncio.get_running_loop().time
        self._until = self._now() + SLICE_SECONDS

    def due(self) -> bool:
        """Whether other work should run now."""
        return self._now() > self._until

    async def give(self) -> None:
        """Let all ready work run."""
        await asyncio.sleep(0)
        self._until = self._now() + SLICE_SECONDS
