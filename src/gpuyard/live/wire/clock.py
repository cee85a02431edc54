"""The clocks of a machine behind an interface: scheduler and agent read time only here, so a test can replace it.

Timers (`asyncio.sleep`, `call_later`) belong to the event loop and are not part of it.
"""

import time
from pathlib import Path
from typing import Protocol

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class Clock(Protocol):
    """The current time, in seconds."""

    def wall(self) -> float:
        """Since 1970, for display and for events. It can jump both ways."""
        ...

    def monotonic(self) -> float:
        """Since some point in this process. It never jumps, and may stop while the machine sleeps."""
        ...

    def boot(self) -> float:
        """Since the machine started.

        It never jumps, runs while the machine sleeps, and is the same in every process.
        """
        ...

    def machine_start(self) -> str:
        """Identifies this boot of this machine, from which the boot clock counts."""
        ...


class SystemClock:
    """The clocks of this machine."""

    def wall(self) -> float:
        """Since 1970."""
        return time.time()

    def monotonic(self) -> float:
        """Since some point in this process, with the highest precision."""
        return time.perf_counter()

    def boot(self) -> float:
        """Since the machine started."""
        return time.clock_gettime(time.CLOCK_BOOTTIME)

    def machine_start(self) -> str:
        """The kernel's boot id, drawn at every start; if it is not readable, the time of the start instead."""
        try:
            return _BOOT_ID.read_text(encoding="ascii").strip()
        except OSError:
            return f"{time.time() - self.boot():.0f}"


SYSTEM_CLOCK = SystemClock()
