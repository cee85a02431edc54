"""The head file: a witness, outside the database, of the last event of the journal.

SQLite opens a truncated write-ahead log as if the events after the cut had never existed. So after each commit, and
before the commit is reported, the new head is written to this file: number, hash and a checksum, as text.

    00000000000000001200 5f0c…(32 digits) 9be1…(16 digits)

The file has two such lines, each in its own sector, which are written alternately: a torn write leaves the other line
intact. The file is not synced, and need not be. If the process is killed, the kernel still has the write. If the power
fails, the file may be older than the journal, but never newer, because the commit was synced before. So it is always a
lower bound: every event up to it was committed, and so was every intact event after it.
"""

import os
from hashlib import blake2b
from pathlib import Path

from gpuyard.core.journal.records import GENESIS, HASH_BYTES, Position
from gpuyard.system.files import replace_file

NAME = "head"
_SECTOR = 512


class HeadFile:
    """Writes positions to the head file, and knows the last one written."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        slots = [_parse(os.pread(self._file, len(_line(GENESIS)), slot * _SECTOR)) for slot in range(2)]
        self.position = max((slot for slot in slots if slot), key=lambda slot: slot.seq, default=None)
        """The highest position in the file; None: the file is damaged."""
        self._next = 1 if slots[0] == self.position else 0

    @staticmethod
    def create(folder: Path, position: Position) -> None:
        """Write a new head file durably."""
        line = _line(position)
        replace_file(folder / NAME, line[:-1].ljust(_SECTOR - 1) + b"\n" + line)

    def note(self, position: Position) -> None:
        """Record that the journal reaches at least this position."""
        os.pwrite(self._file, _line(position), self._next * _SECTOR)
        self._next = 1 - self._next
        self.position = position

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)


def _line(position: Position) -> bytes:
    text = b"%020d %s" % (position.seq, position.hash.encode())
    return b"%s %s\n" % (text, _checksum(text))


def _parse(line: bytes) -> Position | None:
    text = line[: 21 + 2 * HASH_BYTES]
    if len(line) < len(text) + 17 or line[len(text) + 1 : len(text) + 17] != _checksum(text):
        return None
    return Position(int(text[:20]), text[21:].decode())


def _checksum(text: bytes) -> bytes:
    return blake2b(text, digest_size=8).hexdigest().encode()
