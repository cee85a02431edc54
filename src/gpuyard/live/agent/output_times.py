"""Finds what an output had at a time, and when a byte of it was written.

The supervisor notes the length of each output once a second while it grows (`supervisor/output_times.py`). What is
beyond the last length was written when the file last changed, or just now. A time is therefore right to about a second, and
never before the byte was written.
"""

import os
import time
from bisect import bisect_left, bisect_right
from contextlib import suppress
from datetime import UTC, datetime
from math import inf
from pathlib import Path

from gpuyard.live.agent.outputs import size_of
from gpuyard.live.agent.supervisor.output_times import PAIR, read_pairs, times_path

MARK = "times_since"
"""A file in the folder of outputs, made when their times began to be noted: older outputs have none."""
NOTED_EVERY_SECONDS = 1.0
LINE_BYTES = 4096
"""How far the beginning of a line is looked for."""


def begin_to_note(folder: Path) -> None:
    """Mark that the times of outputs are noted from now on, unless they already are. On a full disk they stay unknown."""
    mark = folder / MARK
    with suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
        if not mark.exists():
            mark.touch(mode=0o600)


class OutputTimesReader:
    """The times of one output, also while it grows."""

    def __init__(self, output: Path, mark: Path) -> None:
        self._output = output
        self._path = times_path(str(output))
        self._mark = mark
        self._file = 0
        self._ats: list[float] = []
        self._lengths: list[int] = []
        self.refresh()

    @property
    def known(self) -> bool:
        """Whether the times were noted; not so if the output was written before the agent did that."""
        if self._lengths:
            return True
        changed_at = _changed_at(self._output)
        since = _changed_at(self._mark)
        return changed_at is None or (since is not None and changed_at >= since)

    def refresh(self) -> None:
        """Read what was noted since the last call."""
        try:
            status = os.stat(self._path)  # noqa: PTH116 - as in the supervisor
        except OSError:
            return
        if status.st_ino != self._file or status.st_size < len(self._ats) * PAIR.size:
            self._file, self._ats, self._lengths = status.st_ino, [], []
        for at, length in read_pairs(self._path, len(self._ats)):
            self._ats.append(at)
            self._lengths.append(length)

    def offset_since(self, instant: float) -> int:
        """Return the offset of the first line that may have been written at this time or later."""
        first = bisect_left(self._ats, instant)
        before = self._lengths[first - 1] if first else 0
        if first == len(self._ats):
            changed_at = _changed_at(self._output)
            if changed_at is None or changed_at < instant:
                return size_of(self._output)
        return _line_start(self._output, before)

    def offset_until(self, instant: float) -> int:
        """Return the offset before which everything is that was written before this time, and at most a second later."""
        noted = bisect_left(self._ats, instant + NOTED_EVERY_SECONDS)
        if noted == len(self._ats):
            changed_at = _changed_at(self._output)
            if changed_at is None or changed_at < instant + NOTED_EVERY_SECONDS:
                return size_of(self._output)
        return self._lengths[noted - 1] if noted else 0

    def written_at(self, offset: int) -> float:
        """Return when the byte at this offset was written."""
        return self.period_at(offset)[0]

    def period_at(self, offset: int) -> tuple[float, float]:
        """Return when the byte at this offset was written, and before which offset everything was written then."""
        if not self._lengths or offset >= self._lengths[-1]:
            self.refresh()
        first = bisect_right(self._lengths, offset)
        if first < len(self._ats):
            return self._ats[first], self._lengths[first]
        changed_at, now = _changed_at(self._output), time.time()
        return (now if changed_at is None else min(now, changed_at)), inf


class LineTimes:
    """Puts the time before each line of an output that is read piece by piece."""

    def __init__(self, times: OutputTimesReader, *, in_line: bool) -> None:
        """`in_line`: the first piece begins in the middle of a line."""
        self._times = times
        self._in_line = in_line
        self._before = (-1, b"")
        """The last second, and how it is written."""

    def put_before(self, data: bytes, offset: int, dropped: int) -> bytes:
        """Return a piece with the time before each line."""
        if dropped:
            self._in_line = False
        parts: list[bytes] = []
        stamp, until = b"", -1.0
        for line in _lines(data):
            if not self._in_line:
                if offset >= until:
                    written, until = self._times.period_at(offset)
                    stamp = self._written(written)
                parts.append(stamp)
            parts.append(line)
            offset += len(line)
            self._in_line = not line.endswith(b"\n")
        return b"".join(parts)

    def _written(self, at: float) -> bytes:
        second = int(at)
        if second != self._before[0]:
            self._before = second, f"{datetime.fromtimestamp(second, UTC):%Y-%m-%dT%H:%M:%SZ} ".encode()
        return self._before[1]


def starts_in_line(output: Path, offset: int) -> bool:
    """Return whether an offset is in the middle of a line."""
    return offset > 0 and _read(output, offset - 1, 1) not in {b"\n", b"\0", b""}


def _lines(data: bytes) -> list[bytes]:
    """Split at line feeds only: a carriage return draws a line again."""
    lines = [line + b"\n" for line in data.split(b"\n")]
    lines[-1] = lines[-1][:-1]
    return lines if lines[-1] else lines[:-1]


def _line_start(output: Path, offset: int) -> int:
    """Return the beginning of the line that an offset is in; the offset itself if that is far before it."""
    first = max(0, offset - LINE_BYTES)
    before = _read(output, first, offset - first)
    place = max(before.rfind(b"\n"), before.rfind(b"\0"))
    return first + place + 1 if place >= 0 or not first else offset


def _read(output: Path, offset: int, size: int) -> bytes:
    try:
        descriptor = os.open(output, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return b""
    try:
        return os.pread(descriptor, size, offset)
    finally:
        os.close(descriptor)


def _changed_at(path: Path) -> float | None:
    try:
        return path.lstat().st_mtime
    except OSError:
        return None
