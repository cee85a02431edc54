"""What a supervisor of this machine still holds when its yard is down, and how to end it."""

import os
import signal
import socket
from contextlib import suppress
from pathlib import Path

from gpuyard.agent.supervisor import messages as said
from gpuyard.agent.supervisor.place import socket_address

STOP_SECONDS = 60.0
GRACE_SECONDS = 10.0


def end_all(folder: Path) -> int:
    """End every attempt of the supervisor in this folder, and the supervisor. How many there were."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as line:
        line.settimeout(STOP_SECONDS)
        try:
            with socket_address(folder) as address:
                line.connect(address)
        except OSError:
            return 0  # nothing is held where nobody listens
        return _end_all(line)


def _end_all(line: socket.socket) -> int:
    line.sendall(said.frame([said.Subscribe()]))
    frames = said.Frames()
    running: set[said.Key] = set()
    count, supervisor = 0, 0
    while data := line.recv(1 << 18):
        for body in frames.feed(data):
            for event in said.decode_events(body):
                if isinstance(event, said.Holding):
                    supervisor = event.pid
                    running = {held.key for held in event.attempts if held.phase is not said.Phase.ENDED}
                    count = len(running)
                    line.sendall(said.frame([said.Stop(key, GRACE_SECONDS) for key in running]))
                elif isinstance(event, said.Ended | said.NotLaunched):
                    running.discard(event.key)
        if not running:
            break
    if supervisor:
        with suppress(ProcessLookupError):  # it saw that nothing is left
            os.kill(supervisor, signal.SIGTERM)
    return count
