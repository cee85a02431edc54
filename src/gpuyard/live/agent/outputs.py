"""Reads the output of attempts, while they write it and afterwards, and deletes old output.

The offset of a byte in an output never changes: what was dropped from the front to keep within the limit is a hole in
the file, which is skipped and counted.
"""

import asyncio
import os
import time
from collections.abc import AsyncGenerator, Callable, Collection
from pathlib import Path

from gpuyard.core.domain.values import Value
from gpuyard.live.agent.supervisor.messages import AttemptKey
from gpuyard.live.agent.supervisor.output_times import NEW, times_path

PIECE_BYTES = 64 * 1024
QUICK_SECONDS, SLOW_SECONDS = 0.1, 0.5
"""How often a followed output is checked: after new data, and after a while without any."""


class OutputPiece(Value, frozen=True):
    """A part of an output."""

    offset: int
    """The offset of its first byte in the whole output."""
    data: bytes
    dropped: int = 0
    """Number of bytes before it that were dropped."""


def path_of(folder: Path, key: AttemptKey) -> Path:
    """Return the path of an attempt's output. A thousand tasks share a folder, so that folders stay small."""
    return folder / f"{key.task // 1000}" / f"{key.task}.{key.attempt}.{key.origin:x}.log"


def read(path: Path, offset: int, limit: int = PIECE_BYTES) -> OutputPiece | None:
    """Read from an offset, at most `limit` bytes; a negative offset counts from the end. None if there is no output.

    An empty piece means that there is no more data at the moment.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return None
    try:
        size = os.fstat(descriptor).st_size
        if offset < 0:
            offset = max(0, size + offset)
        try:
            begin = os.lseek(descriptor, offset, os.SEEK_DATA)
        except OSError:  # only a hole, or nothing at all, or not that long yet
            return OutputPiece(max(offset, size), b"", max(0, size - offset))
        return OutputPiece(begin, os.pread(descriptor, limit, begin), begin - offset)
    finally:
        os.close(descriptor)


def size_of(path: Path) -> int:
    """Return the offset of the current end of an output, including what was dropped; 0 if there is none."""
    try:
        return path.lstat().st_size
    except OSError:
        return 0


async def follow(path: Path, offset: int, is_over: Callable[[], bool]) -> AsyncGenerator[OutputPiece, None]:
    """Yield new output until the attempt is over and everything was read.

    The file may not exist yet, or be shorter than `offset`: then nothing is read until it is that long. If it becomes
    shorter than what was read, it was truncated, on a file system without holes, and is read from its new beginning.
    """
    wait, reached = QUICK_SECONDS, 0
    while True:
        was_over = is_over()  # checked before reading, so that the last output is not missed
        piece = await asyncio.to_thread(read, path, offset)
        if piece is not None and (piece.data or piece.dropped):
            yield piece
            offset = reached = piece.offset + len(piece.data)
            wait = QUICK_SECONDS
            continue
        if piece is not None and size_of(path) < reached:
            offset = reached = 0
            continue
        if was_over:
            return
        await asyncio.sleep(wait)
        wait = min(2 * wait, SLOW_SECONDS)


def prune(folder: Path, keep_bytes: int, keep_files: int, keep_seconds: float, keep: Collection[Path]) -> int:
    """Remove outputs older than `keep_seconds`, then the oldest until the rest is within the limits.

    Return the bytes freed.

    `keep` are the outputs of attempts that are still held here. Files that cannot be removed stay.
    """
    held = {str(path) for path in keep}
    found = []
    for path in folder.glob("*/*.log"):
        try:
            status = path.lstat()
        except OSError:
            continue
        if str(path) not in held:
            found.append((status.st_mtime, status.st_blocks * 512 + _bytes_of_times(path), str(path)))
    found.sort()
    total = sum(size for _, size, _ in found)
    oldest = time.time() - keep_seconds
    freed = 0
    for number, (written_at, size, name) in enumerate(found):
        if written_at >= oldest and total - freed <= keep_bytes and len(found) - number <= keep_files:
            break
        path = Path(name)
        try:
            path.unlink(missing_ok=True)
            for times in (times_path(name), f"{times_path(name)}{NEW}"):
                Path(times).unlink(missing_ok=True)
            freed += size
            path.parent.rmdir()
        except OSError:
            continue  # not removable, or the folder has other files
    return freed


def _bytes_of_times(output: Path) -> int:
    try:
        return Path(times_path(str(output))).lstat().st_blocks * 512
    except OSError:
        return 0
