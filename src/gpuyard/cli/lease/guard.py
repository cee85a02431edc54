"""A process that gives a lease back if the command that asked for it is killed.

A lease has no process of its own, so a request whose asker is gone would wait, be granted and hold GPUs without a user.
A signal that can be caught is handled by the asker itself; against SIGKILL it forks this guard before it asks, and the
guard reads what the asker writes into a pipe:

    asker  ── the answer: which lease it is              ──►  guard knows the lease
    asker  ── "the lease was handed over, or given back" ──►  guard ends
    asker killed: the pipe closes without it             ──►  guard gives the lease back, and tries for two minutes

If the asker is killed before its answer came, the guard sends the same request with the same key. The scheduler answers
with the lease that the first request made; if that one never arrived, a lease is made now, and given back at once.

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

    from gpuyard.live.sdk import Client
    from gpuyard.live.wire.answers import LeaseAnswer

SETTLED = b"."
"""After the answer or in its place; JSON does not end so."""
PAUSE_SECONDS = 0.5


class LeaseGuard:
    """Watches over one lease. Fork it before the lease is asked for and before any thread is started."""

    def __init__(self, connect: "Callable[[], Client]", ask: "Callable[[Client], LeaseAnswer]") -> None:
        """`connect` makes the guard a client of its own: a connection must not be shared by two processes.

        `ask` sends the request for the lease, with the key that the asker sends it with.
        """
        watched, self._open = os.pipe()
        if os.fork() == 0:
            os.close(self._open)
            try:
                _watch(watched, connect, ask)
            finally:
                os._exit(0)
        os.close(watched)

    def answered(self, lease: "LeaseAnswer") -> None:
        """This is the lease."""
        from msgspec import json

        self._say(json.encode(lease))

    def settle(self) -> None:
        """The lease was refused, handed over or given back: nothing is left to do."""
        self._say(SETTLED)
        os.close(self._open)

    def _say(self, words: bytes) -> None:
        with suppress(BrokenPipeError):
            os.write(self._open, words)


def _watch(pipe: int, connect: "Callable[[], Client]", ask: "Callable[[Client], LeaseAnswer]") -> None:
    os.setsid()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    nothing = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1, 2):
        os.dup2(nothing, standard)
    said = b""
    while part := os.read(pipe, 65536):
        said += part
        if said.endswith(SETTLED):
            return
    from gpuyard.live.sdk.waiting import AWAY, RESTART_SECONDS

    lease = _lease_in(said)
    cluster = connect().without_waiting()
    give_up_at = time.monotonic() + RESTART_SECONDS
    while time.monotonic() < give_up_at:
        try:
            lease = lease or ask(cluster)
            cluster.release_lease(lease)
        except AWAY:
            time.sleep(PAUSE_SECONDS)
        else:
            return


def _lease_in(said: bytes) -> "LeaseAnswer | None":
    """What the asker was answered; none: it was killed before it could pass that on."""
    from msgspec import MsgspecError, json

    from gpuyard.live.wire.answers import LeaseAnswer

    try:
        return json.decode(said, type=LeaseAnswer)
    except MsgspecError:
        return None
