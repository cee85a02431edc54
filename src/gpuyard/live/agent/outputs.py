"""Reads what attempts wrote, while they write and after, and throws away what is old.

The place of a byte in an output never changes: what was dropped from the front to keep within the limit is a hole in
the file, which is passed over and counted.
"""

import asyncio
import os
import time
from collections.abc import AsyncIterator, Callable, Collection
from pathlib import Path

from gpuyard.core.domain.values import Value
from gpuyard.live.agent.supervisor.messages import AttemptKey

PIECE_BYTES = 256 * 1024
QUICK_SECONDS, SLOW_SECONDS = 0.1, 0.5
"""How often a followed output is looked at: after something came, and after nothing came for a while."""


class OutputPiece(Value, frozen=True):
    """A part of an output."""

    offset: int
    """Of its first byte in the whole output."""
    data: bytes
    dropped: int = 0
    """So many bytes before it are gone."""


def path_of(folder: Path, key: AttemptKey) -> Path:
    """Where the output of an attempt lies. A thousand tasks share a folder, so that no folder grows too long."""
    return folder / f"{key.task // 1000}" / f"{key.task}.{key.attempt}.{key.origin:x}.log"


def read(path: Path, offset: int, limit: int = PIECE_BYTES) -> OutputPiece | None:
    """What stands from an offset on, at most so much; below 0 it counts from the end. None: there is no such output.

    An empty piece means that nothing more is there now.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return None
    try:
        size = os.fstat(descriptor).st_size
        if offset < 0:
            offset = max(0, size + offset)
        elif offset > size:  # it was emptied, on a file system that can not make holes: begin anew
            offset = 0
        try:
            begin = os.lseek(descriptor, offset, os.SEEK_DATA)
        except OSError:  # nothing but a hole, or nothing at all
            return OutputPiece(max(offset, size), b"", max(0, size - offset))
        return OutputPiece(begin, os.pread(descriptor, limit, begin), begin - offset)
    finally:
        os.close(descriptor)


def size_of(path: Path) -> int:
    """Where an output ends now, counted with what was dropped."""
    try:
        return path.lstat().st_size
    except OSError:
        return 0


async def follow(path: Path, offset: int, is_over: Callable[[], bool]) -> AsyncIterator[OutputPiece]:
    """All that comes, piece by piece, until the attempt is over and everything was read. It may begin later than we."""
    wait = QUICK_SECONDS
    while True:
        was_over = is_over()  # asked before reading: what it wrote last is read after it is known to be over
        piece = await asyncio.to_thread(read, path, offset)
        if piece is not None and (piece.data or piece.dropped):
            yield piece
            offset = piece.offset + len(piece.data)
            wait = QUICK_SECONDS
            continue
        if was_over:
            return
        await asyncio.sleep(wait)
        wait = min(2 * wait, SLOW_SECONDS)


def prune(folder: Path, keep_bytes: int, keep_files: int, keep_seconds: float, keep: Collection[Path]) -> int:
    """Remove outputs older than this, and then the oldest ones until the rest is within bytes and files. What it freed.

    `keep` are those of attempts that are still held here. What can not be removed stays.
    """
    held = {str(path) for path in keep}
    found = []
    for path in folder.glob("*/*.log"):
        try:
            status = path.lstat()
        except OSError:
            continue
        if str(path) not in held:
            found.append((status.st_mtime, status.st_blocks * 512, str(path)))
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
            freed += size
            path.parent.rmdir()
        except OSError:
            continue  # it is none of ours; or others lie beside it
    return freed
