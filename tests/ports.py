"""Free ports for servers of tests that are told their port before they start.

The kernel gives ports of its ephemeral range to every connection that is opened, so one that was free a moment ago may be
taken when the server binds it. These are below that range. Each process of pytest uses blocks of its own, which it locks: a
port is free again before its server binds it, so another process must not be given the same one meanwhile.
"""

import fcntl
import os
import socket
import tempfile
from collections.abc import Iterator
from itertools import cycle
from pathlib import Path
from typing import BinaryIO

FIRST, END = 20_000, 32_000
IN_A_BLOCK, BLOCKS_OF_A_PROCESS = 100, 3
_locks: list[BinaryIO] = []
"""Open files keep the blocks of this process until it ends."""


def _lock_blocks() -> Iterator[range]:
    folder = Path(tempfile.gettempdir()) / f"gpuyard-test-ports-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    for begin in range(FIRST, END, IN_A_BLOCK):
        if len(_locks) == BLOCKS_OF_A_PROCESS:
            return
        lock = (folder / str(begin)).open("wb")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            lock.close()
        else:
            _locks.append(lock)
            yield range(begin, begin + IN_A_BLOCK)


def _ports() -> Iterator[int]:
    blocks = list(_lock_blocks())
    assert blocks, f"all ports from {FIRST} to {END} are locked by other processes of pytest"
    return cycle(port for block in blocks for port in block)


_numbers: Iterator[int] | None = None


def free_port() -> int:
    """Return a port that is free, and that no test was given lately."""
    global _numbers  # noqa: PLW0603 - the blocks are locked at the first use
    _numbers = _numbers or _ports()
    for port in _numbers:
        with socket.socket() as tried:
            tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                tried.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise AssertionError("the ports never end")
