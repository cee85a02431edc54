"""Notes when an output was written: beside each output a file of pairs (time, length of the output at that time).

The supervisor looks at the outputs of running commands every second anyway. When one has grown, a pair of 16 bytes is
appended; a pair says that everything below its length was written at that time or before. What was written after the
last pair was written when the output last changed, which the file system knows: a command that ends within a second
costs nothing. `MOST_PAIRS` bounds the file: above it, every second pair of the older half is dropped, so that the times
of the newest output stay exact and older ones become coarser.
"""

import os
from collections.abc import Iterator
from contextlib import suppress
from struct import Struct
from typing import NamedTuple

PAIR = Struct("<dQ")
NEW = ".new"
"""What is written before it replaces the file."""
MOST_PAIRS = 1 << 16
"""18 hours of output in every second, in 1 MiB."""


class Noted(NamedTuple):
    """What was noted of an output."""

    pairs: int = 0
    at: float = 0.0
    length: int = 0


def times_path(output: str) -> str:
    """Return the path of the times of an output."""
    return output.removesuffix(".log") + ".times"


class OutputTimes:
    """The times of the outputs of running commands."""

    def __init__(self) -> None:
        self._noted: dict[str, Noted] = {}

    def note(self, output: str, length: int, at: float) -> None:
        """Note the length of an output if it has changed. On a full disk it is noted later."""
        noted = self._noted.get(output)
        if noted is None:
            noted = self._noted[output] = _read_last(times_path(output))
        if length == noted.length:
            return
        if length < noted.length:  # it was truncated, on a file system without holes: its offsets begin again
            noted = Noted(at=noted.at)
        noted = Noted(noted.pairs + 1, max(at, noted.at), length)  # a clock that is set back moves nothing before
        with suppress(OSError):
            if _write(times_path(output), noted):
                self._noted[output] = noted if noted.pairs < MOST_PAIRS else _thin_out(times_path(output), noted)

    def forget(self, output: str) -> None:
        """Forget an output that gets no more."""
        self._noted.pop(output, None)


def _read_last(path: str) -> Noted:
    """Return what an earlier supervisor has noted."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return Noted()
    try:
        pairs = os.fstat(descriptor).st_size // PAIR.size
        if not pairs:
            return Noted()
        at, length = PAIR.unpack(os.pread(descriptor, PAIR.size, (pairs - 1) * PAIR.size))
        return Noted(pairs, at, length)
    finally:
        os.close(descriptor)


def _write(path: str, noted: Noted) -> bool:
    """Write the last pair in its place; a part that a full disk has left there is written over."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | (os.O_TRUNC if noted.pairs == 1 else 0)
    descriptor = os.open(path, flags, 0o600)
    try:
        place = (noted.pairs - 1) * PAIR.size
        return os.pwrite(descriptor, PAIR.pack(noted.at, noted.length), place) == PAIR.size
    finally:
        os.close(descriptor)


def _thin_out(path: str, noted: Noted) -> Noted:
    """Drop every second pair of the older half."""
    kept = b"".join(PAIR.pack(*pair) for number, pair in enumerate(read_pairs(path)) if _stays(number, noted.pairs))
    beside = path + NEW
    descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        whole = os.write(descriptor, kept) == len(kept)
    finally:
        os.close(descriptor)
    if not whole:
        os.unlink(beside)  # noqa: PTH108 - outputs are strings here, as in `output`
        return noted
    os.replace(beside, path)  # noqa: PTH105
    return noted._replace(pairs=len(kept) // PAIR.size)


def _stays(number: int, pairs: int) -> bool:
    return number >= pairs // 2 or number % 2 == 1


def read_pairs(path: str, first: int = 0) -> Iterator[tuple[float, int]]:
    """Yield the pairs of a file from a number on; none if there is no file."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return
    try:
        content = os.pread(descriptor, 2 * MOST_PAIRS * PAIR.size, first * PAIR.size)
    finally:
        os.close(descriptor)
    yield from PAIR.iter_unpack(content[: len(content) // PAIR.size * PAIR.size])
