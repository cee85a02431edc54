"""Keeps the attempts on disk, so that nothing is lost when the supervisor itself is killed.

An append-only file with a JSON line for each change: a boot (the start of the machine that the pids belong to), the new
state of an attempt, a forgotten key. The last line about a key counts. A line torn by a kill can only be the last one;
it is ignored. From time to time the file is rewritten with the attempts that are still held.

There is no fsync: a machine that loses power loses its processes too, and the scheduler runs tasks again that no node
knows. A killed supervisor loses nothing that was written to the kernel.
"""

import os
from pathlib import Path

import msgspec

from gpuyard.live.agent.supervisor import proc
from gpuyard.live.agent.supervisor.attempt_record import Attempt
from gpuyard.live.agent.supervisor.messages import AttemptKey

COMPACT_BYTES = 8 * 1024 * 1024


class Boot(msgspec.Struct, tag=True):
    """The boot of the machine that the pids in the following lines belong to."""

    id: str


class AttemptNoted(msgspec.Struct, tag="Is", omit_defaults=True):
    """The state of an attempt from now on."""

    attempt: Attempt


class Forgotten(msgspec.Struct, tag=True):
    """Attempts that are no longer held."""

    keys: tuple[AttemptKey, ...]


StoreLine = Boot | AttemptNoted | Forgotten

_encoder = msgspec.json.Encoder()
_decode = msgspec.json.Decoder(StoreLine).decode


class AttemptStore:
    """The file, open for appending."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._pending: list[bytes] = []
        self._size = 0
        self._descriptor = -1
        self._compact_at = COMPACT_BYTES
        self._is_torn = False

    def read(self) -> tuple[dict[AttemptKey, Attempt], bool]:
        """Return the attempts of the last supervisor, and whether its pids are valid, that is, of the same boot."""
        try:
            content = self._path.read_bytes()
        except FileNotFoundError:
            return {}, True
        held: dict[AttemptKey, Attempt] = {}
        boot = ""
        for raw in content.split(b"\n"):
            try:
                line = _decode(raw)
            except ValueError:  # raised by msgspec, and for invalid UTF-8
                continue  # torn by a kill or a full disk; no event was sent for it
            if isinstance(line, Boot):
                boot = line.id
            elif isinstance(line, AttemptNoted):
                held[line.attempt.key] = line.attempt
            else:
                for key in line.keys:
                    held.pop(key, None)
        return held, boot in {"", proc.boot_id()}

    def begin(self, held: dict[AttemptKey, Attempt]) -> None:
        """Rewrite the file with the given attempts, and append to it from then on.

        If the disk is full, append to the existing file instead; the attempts stay pending until there is space.
        """
        try:
            self._write_anew(held)
        except OSError:
            self._descriptor = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
            self._size = os.fstat(self._descriptor).st_size
            self._pending = _lines(held)
            self._is_torn = True

    def _write_anew(self, held: dict[AttemptKey, Attempt]) -> None:
        beside = self._path.with_name(self._path.name + ".new")
        content = b"".join(line + b"\n" for line in _lines(held))
        descriptor = os.open(beside, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            with os.fdopen(os.dup(descriptor), "wb") as file:
                file.write(content)
            beside.replace(self._path)
        except OSError:
            os.close(descriptor)
            beside.unlink(missing_ok=True)
            raise
        if self._descriptor >= 0:
            os.close(self._descriptor)
        self._descriptor = descriptor
        self._size = len(content)
        self._pending = []
        self._is_torn = False

    def note(self, attempt: Attempt) -> None:
        """Record the state of an attempt; on disk with the next `write`."""
        self._pending.append(_encoder.encode(AttemptNoted(attempt)))

    def forget(self, keys: tuple[AttemptKey, ...]) -> None:
        """Record that attempts are forgotten; on disk with the next `write`."""
        self._pending.append(_encoder.encode(Forgotten(keys)))

    @property
    def has_pending(self) -> bool:
        """Whether there are changes that are not on disk yet."""
        return bool(self._pending)

    def write(self) -> None:
        """Write all pending changes, without fsync. On an `OSError` (a full disk) all of them stay pending."""
        if not self._pending:
            return
        # After a write that failed half way, start on a new line.
        content = (b"\n" if self._is_torn else b"") + b"\n".join(self._pending) + b"\n"
        self._is_torn = True
        left = memoryview(content)
        while left:
            left = left[os.write(self._descriptor, left) :]
        self._is_torn = False
        self._size += len(content)
        self._pending = []

    def compact(self, held: dict[AttemptKey, Attempt]) -> None:
        """Rewrite the file once it exceeds 8 MiB and has doubled since the last rewrite: what is held may be large."""
        if self._size > self._compact_at:
            self._write_anew(held)
            self._compact_at = max(COMPACT_BYTES, 2 * self._size)


def _lines(held: dict[AttemptKey, Attempt]) -> list[bytes]:
    """Encode the boot and all attempts."""
    return [
        _encoder.encode(line) for line in (Boot(proc.boot_id()), *(AttemptNoted(attempt) for attempt in held.values()))
    ]
