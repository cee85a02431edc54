"""Limits an output file to its newest end while a task keeps writing to it.

A hole is punched at the beginning of the file: its blocks are freed, and the offset of every later byte stays the same,
so concurrent readers are not disturbed. On a file system without hole punching the file is truncated, with a line that
says so.
"""

import ctypes
import errno
import os

_KEEP_SIZE, _PUNCH_HOLE = 0x01, 0x02
_BLOCK_BYTES = 4096
_libc = ctypes.CDLL(None, use_errno=True)
_libc.fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]


def trim(path: str, limit_bytes: int) -> None:
    """Cut the file from the front to about its limit. Ignore a file that is missing or small enough."""
    try:
        found = os.stat(path)  # noqa: PTH116 - done at every end: a path object would double its time
    except OSError:
        return
    slack_bytes = max(_BLOCK_BYTES, limit_bytes // 8)
    if found.st_size <= limit_bytes + slack_bytes or found.st_blocks * 512 <= limit_bytes + slack_bytes:
        return
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return
    try:
        end = (found.st_size - limit_bytes) // _BLOCK_BYTES * _BLOCK_BYTES
        if _libc.fallocate(descriptor, _PUNCH_HOLE | _KEEP_SIZE, 0, end) == 0:
            return
        if ctypes.get_errno() in {errno.EOPNOTSUPP, errno.ENOSYS}:
            os.ftruncate(descriptor, 0)
            note = f"[gpuyard: {found.st_size} bytes of output were dropped here]\n"
            os.pwrite(descriptor, note.encode(), 0)
    except OSError:
        return  # the disk is full or broken; ending the task would not help
    finally:
        os.close(descriptor)
