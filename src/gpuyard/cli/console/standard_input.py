"""Passes the standard input of `gpuyard run` on to its task, while another thread prints the output."""

import os
import select
import sys
import threading
import time
from typing import TYPE_CHECKING

from gpuyard.system.backoff import Backoff

if TYPE_CHECKING:
    from gpuyard.live.sdk import Client, Task
    from gpuyard.live.sdk.console import TaskConsole

PART_BYTES = 32 * 1024
WAIT_MS = 1000
GIVE_UP_SECONDS = 900.0
NOT_YET = "NotRunning"
PASSING = frozenset({"NodeUnreachable", "TooManyChannels", "NotReady", "NotLeading"})


def feed(cluster: "Client", task: "Task") -> None:
    """Begin to pass standard input on. It ends with the input or with the task."""
    threading.Thread(target=_feed, args=(cluster.console(task, received=0),), name="gpuyard-stdin", daemon=True).start()


def _feed(console: "TaskConsole") -> None:
    from gpuyard.live.sdk import ClusterError, Refused
    from gpuyard.live.sdk.console import ConsoleRefused

    was_attached, lost_at, backoff = False, None, Backoff(0.03, 0.3)
    while True:
        try:
            console.connect()
            if _serve(console):
                return
            was_attached = True
        except ConsoleRefused as refusal:
            _complain(str(refusal))
            return
        except Refused as refusal:
            if refusal.code == NOT_YET and not was_attached:
                lost_at = None
            elif refusal.code not in PASSING:
                if not was_attached and refusal.code != "TaskEnded":
                    _complain(f"standard input is not passed on. {refusal}")
                return
        except ClusterError:
            was_attached |= console.attached
        finally:
            console.close()
        now = time.monotonic()
        if lost_at is not None and now - lost_at > GIVE_UP_SECONDS:
            _complain("the rest of standard input is not passed on: there has been no connection for 15 minutes.")
            return
        lost_at = lost_at or now
        time.sleep(backoff.next())


def _serve(console: "TaskConsole") -> bool:
    """Serve one connection. Return whether nothing is left to do."""
    from gpuyard.live.sdk.console import ConsoleExit

    socket = console.socket
    while True:
        poll = select.poll()
        poll.register(socket.fileno(), select.POLLIN | (select.POLLOUT if socket.wants_to_write else 0))
        if console.attached and console.takes_input:
            poll.register(0, select.POLLIN)
        ready = {number for number, _ in poll.poll(0 if socket.has_pending else WAIT_MS)}
        if 0 in ready:
            if data := os.read(0, PART_BYTES):
                console.type(data)
            else:
                console.end_input()
        socket.flush()
        if any(isinstance(event, ConsoleExit) for event in console.read()):
            return True
        if socket.ended:
            return False
        if console.attached and console.is_done and not socket.wants_to_write:
            return True


def _complain(sentence: str) -> None:
    print(f"gpuyard: {sentence}", file=sys.stderr, flush=True)
