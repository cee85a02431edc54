"""A process that gives a lease back if the command that asked for it is killed.

A lease has no process of its own, so a request whose asker is gone would wait, be granted and hold GPUs without a user.
A signal that can be caught is handled by the asker itself; against SIGKILL it forks this guard, which waits for one byte:

    asker  ── "the lease was handed over, or given back" ──►  guard ends
    asker killed: the pipe closes without it             ──►  guard gives the lease back, and tries for two minutes

The guard has its own session, so that a closed terminal does not end it, and no standard output, so that a pipe behind
the asker ends with the asker.
"""

import os
import signal
import time
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpuyard.sdk import Client

SETTLED = b"."
PAUSE_SECONDS = 0.5


class Guard:
    """Watches over one lease. Fork it before any thread is started."""

    def __init__(self, connect: "Callable[[], Client]", lease: str) -> None:
        """`connect` makes the guard a client of its own: a connection must not be shared by two processes."""
        watched, self._open = os.pipe()
        if os.fork() == 0:
            os.close(self._open)
            try:
                _watch(watched, connect, lease)
            finally:
                os._exit(0)
        os.close(watched)

    def settle(self) -> None:
        """The lease was handed over or given back: nothing is left to do."""
        with suppress(BrokenPipeError):
            os.write(self._open, SETTLED)
        os.close(self._open)


def _watch(pipe: int, connect: "Callable[[], Client]", lease: str) -> None:
    os.setsid()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    nothing = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1, 2):
        os.dup2(nothing, standard)
    if os.read(pipe, 1) == SETTLED:
        return
    from gpuyard.sdk.waiting import AWAY, RESTART_SECONDS

    yard = connect().without_waiting()
    give_up_at = time.monotonic() + RESTART_SECONDS
    while time.monotonic() < give_up_at:
        try:
            yard.release_lease(lease)
        except AWAY:
            time.sleep(PAUSE_SECONDS)
        else:
            return
