"""Lock files: one process at a time, released by the kernel when the process ends."""

import fcntl
import os
from pathlib import Path


def take_lock(path: Path) -> int:
    """Lock a file, which is created if need be; closing the descriptor releases it.

    Raises BlockingIOError where another process has it.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor
