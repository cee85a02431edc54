"""A real supervisor for a test, in its own folder, used over its real socket."""

import os
import signal
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from gpuyard.live.agent import supervisor_client
from gpuyard.live.agent.supervisor import messages, paths, proc, process_tag
from gpuyard.live.agent.supervisor.cgroup import base_of
from gpuyard.live.agent.supervisor.messages import (
    AttemptKey,
    AttemptList,
    HeldAttempt,
    Launch,
    Launched,
    ProcessEnded,
    SupervisorCommand,
    SupervisorEvent,
)

E = TypeVar("E", bound=messages.SupervisorMessage)
PATIENCE_SECONDS = 30.0
ENV = {"PATH": "/usr/local/bin:/usr/bin:/bin"}


def until(what: Callable[[], object], seconds: float = PATIENCE_SECONDS) -> None:
    """Wait until something is so, and fail when it does not become so."""
    deadline = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < deadline, "it did not become so in time"
        time.sleep(0.01)


class Supervised:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.events: list[SupervisorEvent] = []
        self._line: socket.socket | None = None
        self._frames = messages.Frames()
        self._last_task = 0
        self.pid = 0
        self.begin()

    # --- the connection

    def begin(self) -> AttemptList:
        """Start a supervisor where there is none, and subscribe."""
        supervisor_client.start(self.folder)
        self.hang_up()
        self._line = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._frames = messages.Frames()
        with paths.socket_address(self.folder) as address:
            self._line.connect(address)
        self.send(messages.Subscribe())
        holding = self.hears(AttemptList)
        self.pid = holding.pid
        return holding

    def hang_up(self) -> None:
        if self._line is not None:
            self._line.close()
            self._line = None

    def send(self, *commands: SupervisorCommand) -> None:
        assert self._line is not None
        self._line.sendall(messages.frame(commands))

    def hears(self, kind: type[E], key: AttemptKey | None = None, seconds: float = PATIENCE_SECONDS) -> E:
        """The next event of this kind (about this attempt), also if it came while we waited for another one."""
        deadline = time.monotonic() + seconds
        while True:
            for index, event in enumerate(self.events):
                if isinstance(event, kind) and key in {None, getattr(event, "key", None)}:
                    del self.events[index]
                    return event
            assert self._line is not None
            self._line.settimeout(max(0.01, deadline - time.monotonic()))
            try:
                data = self._line.recv(1 << 16)
            except TimeoutError:
                raise AssertionError(f"no {kind.__name__} came for {key}; there were {self.events}") from None
            assert data, "the supervisor hung up"
            for body in self._frames.feed(data):
                self.events += messages.decode_events(body)

    def holds(self) -> dict[AttemptKey, HeldAttempt]:
        self.send(messages.ListAttempts())
        return {held.key: held for held in self.hears(AttemptList).attempts}

    # --- helpers

    def key(self) -> AttemptKey:
        self._last_task += 1
        return AttemptKey(self._last_task, 1)

    def launches(self, shell: str, **more: object) -> AttemptKey:
        """Launch a line for the shell, its output in a file named after its task."""
        key = self.key()
        defaults: dict[str, object] = {"env": ENV, "cwd": str(self.folder), "output": str(self.output(key))}
        self.send(Launch(key, shell=shell, **(defaults | more)))  # type: ignore[arg-type]
        return key

    def runs(self, shell: str, **more: object) -> AttemptKey:
        """As `launches`, and wait until it runs."""
        key = self.launches(shell, **more)
        self.hears(Launched, key)
        return key

    def end_of(self, key: AttemptKey, seconds: float = PATIENCE_SECONDS) -> ProcessEnded:
        return self.hears(ProcessEnded, key, seconds)

    def output(self, key: AttemptKey) -> Path:
        return self.folder / "outputs" / f"{key.task}.{key.attempt}"

    def says(self, key: AttemptKey, text: str) -> None:
        """Wait until the output contains this."""
        until(lambda: self.output(key).exists() and text in self.output(key).read_text())

    def pid_said(self, key: AttemptKey) -> int:
        """The number that stands alone in the output."""
        until(lambda: self.output(key).exists() and self.output(key).read_text().strip().isdigit())
        return int(self.output(key).read_text())

    def kill(self, number: signal.Signals = signal.SIGKILL) -> None:
        os.kill(self.pid, number)
        if number == signal.SIGKILL:
            until(lambda: proc.process(self.pid) is None or not is_alive(self.pid))

    def keeper(self) -> int:
        """The parent of the supervisor."""
        until(lambda: name_of(parent_of(self.pid)) == "gpuyard-keeper")
        return parent_of(self.pid)

    def kill_with_keeper(self) -> None:
        """Kill both, so that the ends of the tasks are unknown."""
        os.kill(self.keeper(), signal.SIGKILL)
        self.kill()

    def watchers(self) -> list[int]:
        return [pid for pid in proc.all_processes() if name_of(pid) == "gpuyard-fence" and parent_of(pid) == self.pid]

    def watcher(self) -> int:
        until(lambda: len(self.watchers()) == 1)  # it needs a moment to say who it is
        return self.watchers()[0]

    def clean_up(self) -> None:
        """End what this test started and nothing else: the supervisor, and every process with the tag of its folder."""
        self.hang_up()
        if is_alive(self.pid) and name_of(self.pid) == "gpuyard-superv":
            os.kill(self.pid, signal.SIGKILL)
        own = paths.mark_of(self.folder)
        for pid in proc.all_processes():
            if process_tag.owner(own, pid) is not None:
                os.kill(pid, signal.SIGKILL)
        base = base_of(own)
        if base is not None and base.exists():
            folders = [path for path in base.iterdir() if path.is_dir()]
            until(lambda: not any((folder / "cgroup.procs").read_text() for folder in folders))
            for folder in (*folders, base):
                folder.rmdir()


def end_everything_of(folder: Path) -> None:
    """The supervisor of a folder and every process with the folder's tag; none if there was no supervisor."""
    if not folder.is_dir():
        return
    own = paths.mark_of(folder)
    for pid in proc.all_processes():
        if process_tag.owner(own, pid) is not None or (
            name_of(pid) == "gpuyard-superv" and str(folder).encode() in Path(f"/proc/{pid}/cmdline").read_bytes()
        ):
            os.kill(pid, signal.SIGKILL)


def is_alive(pid: int) -> bool:
    found = proc.process(pid)
    return found is not None and not found.is_over


def name_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


def parent_of(pid: int) -> int:
    found = proc.process(pid)
    return found.parent if found else 0
