"""Records of how processes ended that a keeper (`exit_recorder.py`) reaped, or a supervisor that was killed right after.

The exit status is lost once a process is reaped, so it is recorded before: by keepers in `exits.log`, by the supervisor
in `reaped.log`. The next supervisor reads both.
"""

import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from gpuyard.live.agent.supervisor import exit_recorder, paths, proc
from gpuyard.live.agent.supervisor.proc import ProcessStart

RECORD_WAIT_SECONDS = 60.0
"""How long to wait for the record of a keeper, which may be stopped or have a full disk."""


KEEP_BYTES = 64 * 1024
"""The supervisor's own file is truncated when it is longer than this."""


class Exit(NamedTuple):
    """How a process ended."""

    began: int
    """In ticks since the machine started."""
    never_began: bool
    """It was a starter and never became a command."""
    exit_code: int | None
    signal: int | None


class ExitRecords:
    """The two files of a folder."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / exit_recorder.EXITS
        self._read_bytes = 0
        self._exits: dict[int, list[Exit]] = {}
        self._own = folder / paths.REAPED
        self._descriptor = -1
        self._written_bytes = 0

    def begin(self) -> None:
        """Read the records of the previous supervisor."""
        self._descriptor = os.open(self._own, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._written_bytes = os.fstat(self._descriptor).st_size
        self._take(os.pread(self._descriptor, self._written_bytes, 0))

    def note(self, pid: int, born: ProcessStart, exited: bool, status: int) -> None:
        """Record the end of a child that is about to be reaped."""
        line = b"%d %d 0 %d -\n" % (pid, born[0], status) if exited else b"%d %d 0 - %d\n" % (pid, born[0], status)
        with suppress(OSError):  # disk full: it is still in memory
            self._written_bytes += os.write(self._descriptor, line)

    def noted(self, at_least_bytes: int = KEEP_BYTES) -> None:
        """Truncate the supervisor's file if it is longer than this. The log of attempts contains its records by now."""
        if self._written_bytes > at_least_bytes:
            with suppress(OSError):
                os.ftruncate(self._descriptor, 0)
                self._written_bytes = 0

    def find(self, pid: int, born: ProcessStart) -> Exit | None:
        """Return how exactly this process ended; None if there is no record."""
        self._read()
        return next((it for it in self._exits.get(pid, ()) if born[0] <= it.began <= born[1]), None)

    def clear(self) -> None:
        """Delete the keepers' records. Later ones are of processes that belong to no attempt."""
        if self._read_bytes or self._path.exists():
            self._path.unlink(missing_ok=True)
            self._read_bytes = 0
            self._exits.clear()

    def _read(self) -> None:
        try:
            with self._path.open("rb") as file:
                file.seek(self._read_bytes)
                content = file.read()
        except FileNotFoundError:
            return
        self._read_bytes += self._take(content)

    def _take(self, content: bytes) -> int:
        """Parse all complete lines and return their length in bytes."""
        whole = content[: content.rfind(b"\n") + 1]
        for line in whole.splitlines():
            words = line.split()
            if len(words) == 5 and all(word == b"-" or word.isdigit() for word in words):
                pid, began, never_began = (int(word) for word in words[:3])
                code, signal = (None if word == b"-" else int(word) for word in words[3:])
                self._exits.setdefault(pid, []).append(Exit(began, never_began == 1, code, signal))
        return len(whole)


def is_kept(pid: int, born: ProcessStart, folder: Path) -> bool:
    """Return whether a process is over and not reaped by its keeper, so that its record is about to be written."""
    found = proc.process(pid)
    if found is None or found.parent <= 1 or not born[0] <= found.began <= born[1]:
        return False
    words = proc.command_line(found.parent).split(b"\0")
    if words == [b""]:  # its supervisor is just being killed: the keeper is next
        return True
    # A keeper that was just forked still has the command line of its supervisor.
    is_ours = os.fsencode(exit_recorder.__file__) in words or b"gpuyard.live.agent.supervisor" in words
    return is_ours and os.fsencode(folder) in words


def can_start_keeper() -> bool:
    """Return whether the interpreter and the keeper's file exist. They may be missing during an upgrade."""
    return os.access(sys.executable, os.X_OK) and os.access(exit_recorder.__file__, os.R_OK)


def start_keeper(folder: Path, supervisor: int) -> None:
    """Become the keeper of a supervisor that was just forked. Return only by raising an error."""
    words = (sys.executable, "-I", "-S", "-X", "utf8", exit_recorder.__file__, str(folder), str(supervisor))
    os.execve(words[0], words, {})  # noqa: S606 - our own file, by our own interpreter
