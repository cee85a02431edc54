"""A process that releases a lease if the command that requested it is killed.

A lease has no process of its own. If the requesting command is gone, its request would wait, be granted and hold GPUs
without a user. The command handles signals that can be caught itself; against SIGKILL it forks this guard before it
sends the request, and the guard reads from a pipe what the command writes:

    command  ── the answer with the lease                 ──►  guard knows the lease
    command  ── "the lease was handed over, or released"  ──►  guard ends
    command killed: the pipe closes without that          ──►  guard releases the lease, and retries for two minutes

If the command is killed before the answer arrived, the guard sends the same request with the same idempotency key. The
scheduler answers with the lease of the first request; if that never arrived, a lease is created and released at once.

The guard has its own session, so that a closed terminal does not end it, and no standard output, so that a pipe that
reads the command's output ends with the command.
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
"""Written after the answer or instead of it; JSON never ends with this byte."""
PAUSE_SECONDS = 0.5


class LeaseGuard:
    """Guards one lease. Create it (it forks) before the lease is requested and before any thread is started."""

    def __init__(self, connect: "Callable[[], Client]", ask: "Callable[[Client], LeaseAnswer]") -> None:
        """`connect` creates the guard's own client: a connection must not be shared by two processes.

        `ask` sends the request for the lease, with the same idempotency key as the command.
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
        """Tell the guard which lease was granted."""
        from msgspec import json

        self._say(json.encode(lease))

    def settle(self) -> None:
        """Tell the guard that the lease was refused, handed over or released: it ends."""
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
    """Return the lease that the command received; None if it was killed before it could pass it on."""
    from msgspec import MsgspecError, json

    from gpuyard.live.wire.answers import LeaseAnswer

    try:
        return json.decode(said, type=LeaseAnswer)
    except MsgspecError:
        return None
