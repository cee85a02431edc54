"""Lock files: one process holds a lock at a time; the kernel releases it when the process ends."""

import fcntl
import os
from pathlib import Path


def take_lock(path: Path) -> int:
    """Lock a file, which is created if necessary, and return its descriptor; closing that releases the lock.

    Raises BlockingIOError if another process holds the lock.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor
