"""The clock of leases and time-outs.

It runs while the machine sleeps, never jumps, and is the same in every process.
"""

import time


def now() -> float:
    """Return the seconds since the machine started."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)
