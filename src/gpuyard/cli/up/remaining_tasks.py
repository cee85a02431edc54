"""Tasks that this machine's supervisor still holds while the scheduler is down, and how to end them."""

import os
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from gpuyard.live.agent.supervisor import messages
from gpuyard.live.agent.supervisor.paths import socket_address

STOP_SECONDS = 60.0
"""How long the supervisor may take for anything but the grace of the tasks."""


def running_tasks_message(folder: Path, up: str, down: str, none: str = "No task is running.") -> str:
    """Return a sentence with the number of tasks under the supervisor and the commands to resume and end them, or `none`."""
    with _line_to(folder) as line:
        count = _running(line) if line else 0
    if not count:
        return none
    tasks, them = ("1 task continues", "it") if count == 1 else (f"{count} tasks continue", "them")
    return f"{tasks}; run `{up}` to manage {them} again or `{down} --stop-tasks` to end {them}."


def end_all(folder: Path) -> int:
    """End every attempt of the supervisor in this folder, and the supervisor; return the number of attempts."""
    with _line_to(folder) as line:
        return _end_all(line) if line else 0


@contextmanager
def _line_to(folder: Path) -> Iterator[socket.socket | None]:
    """Connect to the supervisor in this folder; yield None if none listens, because nothing is held then."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as line:
        line.settimeout(STOP_SECONDS)
        try:
            with socket_address(folder) as address:
                line.connect(address)
        except OSError:
            yield None
            return
        yield line


def _running(line: socket.socket) -> int:
    line.sendall(messages.frame([messages.ListAttempts()]))
    frames = messages.Frames()
    while data := line.recv(1 << 18):
        for body in frames.feed(data):
            for event in messages.decode_events(body):
                if isinstance(event, messages.AttemptList):
                    return len(_open(event))
    return 0


def _open(holding: messages.AttemptList) -> set[messages.AttemptKey]:
    return {held.key for held in holding.attempts if held.phase is not messages.ProcessPhase.ENDED}


def _end_all(line: socket.socket) -> int:
    line.sendall(messages.frame([messages.Subscribe()]))
    frames = messages.Frames()
    running: set[messages.AttemptKey] | None = None
    count, supervisor = 0, 0
    while data := line.recv(1 << 18):
        for body in frames.feed(data):
            for event in messages.decode_events(body):
                if isinstance(event, messages.AttemptList):
                    supervisor = event.pid
                    running = _open(event)
                    count = len(running)
                    longest = max((held.grace_seconds for held in event.attempts if held.key in running), default=0.0)
                    line.settimeout(STOP_SECONDS + longest)
                    line.sendall(messages.frame([messages.StopAttempt(key) for key in running]))
                elif running and isinstance(event, messages.ProcessEnded | messages.NotLaunched):
                    running.discard(event.key)
        if running is not None and not running:
            break
    if supervisor:
        with suppress(ProcessLookupError):  # it has ended by itself because nothing is left
            os.kill(supervisor, signal.SIGTERM)
    return count
