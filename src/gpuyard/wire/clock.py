"""The clocks of a machine, as a port: a scheduler and an agent read time only here, so a test can hand in another one.

Timers (`asyncio.sleep`, `call_later`) belong to the event loop and are not part of it.
"""

import time
from typing import Protocol


class Clock(Protocol):
    """What time it is, in seconds."""

    def wall(self) -> float:
        """Since 1970, for people and for facts. It can jump both ways."""
        ...

    def monotonic(self) -> float:
        """Since some instant of this process; it never jumps, and may stand still while the machine sleeps."""
        ...

    def boot(self) -> float:
        """Since the machine started: it never jumps, runs while the machine sleeps, and is the same in every process."""
        ...


class SystemClock:
    """The clocks of this machine."""

    def wall(self) -> float:
        """Since 1970."""
        return time.time()

    def monotonic(self) -> float:
        """Since some instant of this process, as precise as there is."""
        return time.perf_counter()

    def boot(self) -> float:
        """Since the machine started."""
        return time.clock_gettime(time.CLOCK_BOOTTIME)


SYSTEM_CLOCK = SystemClock()
