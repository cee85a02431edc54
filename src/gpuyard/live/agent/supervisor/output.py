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


def trim(path: str, limit_bytes: int) -> int:
    """Cut the file from the front to about its limit; 0: none. Return its length before, with what was cut.

    A file that is missing or small enough is ignored.
    """
    try:
        found = os.stat(path)  # noqa: PTH116 - done at every end: a path object would double its time
    except OSError:
        return 0
    slack_bytes = max(_BLOCK_BYTES, limit_bytes // 8)
    if limit_bytes > 0 and min(found.st_size, found.st_blocks * 512) > limit_bytes + slack_bytes:
        _cut(path, found.st_size, limit_bytes)
    return found.st_size


def _cut(path: str, size: int, limit_bytes: int) -> None:
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return
    try:
        end = (size - limit_bytes) // _BLOCK_BYTES * _BLOCK_BYTES
        if _libc.fallocate(descriptor, _PUNCH_HOLE | _KEEP_SIZE, 0, end) == 0:
            return
        if ctypes.get_errno() in {errno.EOPNOTSUPP, errno.ENOSYS}:
            os.ftruncate(descriptor, 0)
            note = f"[gpuyard: {size} bytes of output were dropped here]\n"
            os.pwrite(descriptor, note.encode(), 0)
    except OSError:
        return  # the disk is full or broken; ending the task would not help
    finally:
        os.close(descriptor)
