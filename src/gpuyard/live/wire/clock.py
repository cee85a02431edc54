"""The clocks of a machine, as a port: a scheduler and an agent read time only here, so a test can hand in another one.

Timers (`asyncio.sleep`, `call_later`) belong to the event loop and are not part of it.
"""

import time
from pathlib import Path
from typing import Protocol

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


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

    def machine_start(self) -> str:
        """Which start of which machine this is: the boot clock counts from there."""
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

    def machine_start(self) -> str:
        """The kernel draws it anew at every start; where it does not tell, the instant of the start stands in."""
        try:
            return _BOOT_ID.read_text(encoding="ascii").strip()
        except OSError:
            return f"{time.time() - self.boot():.0f}"


SYSTEM_CLOCK = SystemClock()
