"""Free ports for servers of tests that are told their port before they start.

The kernel gives ports of its ephemeral range to every connection that is opened, so one that was free a moment ago may be
taken when the server binds it. These are below that range; each process of pytest takes the next one of its own part.
"""

import os
import socket
from itertools import count

FIRST, END = 20_000, 32_000
_numbers = count(os.getpid() * 37)


def free_port() -> int:
    """Return a port that is free and that no other test of this process was given lately."""
    for number in _numbers:
        port = FIRST + number % (END - FIRST)
        with socket.socket() as tried:
            tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                tried.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise AssertionError("count ends never")
