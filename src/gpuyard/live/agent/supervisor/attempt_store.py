"""What is held, on disk: so that nothing is lost when the supervisor itself is killed.

An append-only file, a JSON line for each thing that became so: a boot (which start of the machine the pids belong to),
an attempt as it is from now on, a forgotten key. The last line about a key counts. A line that was torn by a kill can
only be the last one; it is cut off. Now and then the file is written anew with what is still held.

Nothing is forced to the platter: a machine that loses power loses its processes too, and the scheduler runs again
what no node knows. A killed supervisor loses nothing the kernel was given.
"""

import os
from pathlib import Path

import msgspec

from gpuyard.live.agent.supervisor import proc
from gpuyard.live.agent.supervisor.attempt_record import Attempt
from gpuyard.live.agent.supervisor.messages import AttemptKey

COMPACT_BYTES = 8 * 1024 * 1024


class Boot(msgspec.Struct, tag=True):
    """Pids below are of this start of the machine."""

    id: str


class AttemptNoted(msgspec.Struct, tag="Is", omit_defaults=True):
    """An attempt, as it is from now on."""

    attempt: Attempt


class Forgotten(msgspec.Struct, tag=True):
    """Attempts that are held no more."""

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
        """What the last supervisor held, and whether its pids mean anything: not after a restart of the machine."""
        try:
            content = self._path.read_bytes()
        except FileNotFoundError:
            return {}, True
        held: dict[AttemptKey, Attempt] = {}
        boot = ""
        for raw in content.split(b"\n"):
            try:
                line = _decode(raw)
            except ValueError:  # msgspec's errors are such, and those of letters that are none
                continue  # torn by a kill or a full disk; what it would have said was told to nobody
            if isinstance(line, Boot):
                boot = line.id
            elif isinstance(line, AttemptNoted):
                held[line.attempt.key] = line.attempt
            else:
                for key in line.keys:
                    held.pop(key, None)
        return held, boot in {"", proc.boot_id()}

    def begin(self, held: dict[AttemptKey, Attempt]) -> None:
        """Write the file anew with what is held, and go on behind it.

        On a full disk go on behind what is there: what is held stays noted until there is space.
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
        """Remember an attempt as it is; on disk with the next `write`."""
        self._pending.append(_encoder.encode(AttemptNoted(attempt)))

    def forget(self, keys: tuple[AttemptKey, ...]) -> None:
        """Remember that these are gone; on disk with the next `write`."""
        self._pending.append(_encoder.encode(Forgotten(keys)))

    @property
    def has_pending(self) -> bool:
        """Something is not on disk yet."""
        return bool(self._pending)

    def write(self) -> None:
        """Hand everything noted to the kernel. An `OSError` (a full disk) means that none of it was; it stays noted."""
        if not self._pending:
            return
        # Behind a write that failed half way the next one begins a line of its own.
        content = (b"\n" if self._is_torn else b"") + b"\n".join(self._pending) + b"\n"
        self._is_torn = True
        written = os.write(self._descriptor, content)
        if written < len(content):
            os.write(self._descriptor, content[written:])
        self._is_torn = False
        self._size += len(content)
        self._pending = []

    def compact(self, held: dict[AttemptKey, Attempt]) -> None:
        """Begin anew where the file has grown long, and only as it grows again: what is held may be much itself."""
        if self._size > self._compact_at:
            self._write_anew(held)
            self._compact_at = max(COMPACT_BYTES, 2 * self._size)


def _lines(held: dict[AttemptKey, Attempt]) -> list[bytes]:
    """All there is to remember."""
    return [
        _encoder.encode(line) for line in (Boot(proc.boot_id()), *(AttemptNoted(attempt) for attempt in held.values()))
    ]
