"""Find a torn tail in a write-ahead log, before SQLite opens the log and discards it.

A log is a header and frames; a frame is one page of the database, and the last frame of a commit is marked. Each frame
carries the salts of the header and a checksum over everything before it. SQLite reads the complete commits and silently
ignores the rest; this module measures what a killed writer left after the last commit. Frames with older salts do not
count: after a checkpoint the log is rewritten from its beginning, over its old content.
(The format is SQLite's, https://sqlite.org/walformat.html.)
"""

from pathlib import Path
from struct import Struct

_HEADER = Struct(">8I")
_FRAME = Struct(">6I")
_MAGIC_LITTLE, _MAGIC_BIG = 0x377F0682, 0x377F0683
_WORD = 0xFFFFFFFF
_GENERATIONS = 1 << 16
"""Frames from fewer rewrites ago than this are recognized as old: SQLite increments the first salt at each rewrite."""


def path_of(database: Path) -> Path:
    """Return the path of SQLite's write-ahead log of a database."""
    return database.with_name(database.name + "-wal")


def torn_bytes(wal: Path) -> int:
    """Return the number of bytes after the last complete commit that belong to an incomplete one; 0 without a log."""
    try:
        log = memoryview(wal.read_bytes())
    except FileNotFoundError:
        return 0
    if len(log) < _HEADER.size:
        return len(log)
    magic, _, page_bytes, _, salt1, salt2, *claimed = _HEADER.unpack_from(log)
    if magic not in {_MAGIC_LITTLE, _MAGIC_BIG} or not page_bytes:
        return len(log)
    words = Struct("<2I" if magic == _MAGIC_LITTLE else ">2I")
    sums = _add(words, log[:24], 0, 0)
    if sums != tuple(claimed):  # SQLite ignores the whole log if its header is damaged
        return len(log)

    committed = at = _HEADER.size
    step = _FRAME.size + page_bytes
    while at + step <= len(log):
        _, size_after_commit, frame_salt1, frame_salt2, *claimed = _FRAME.unpack_from(log, at)
        if (frame_salt1, frame_salt2) != (salt1, salt2):
            break
        sums = _add(words, log[at : at + 8], *sums)
        sums = _add(words, log[at + _FRAME.size : at + step], *sums)
        if sums != tuple(claimed):
            break
        at += step
        if size_after_commit:  # nonzero only in the last frame of a commit
            committed = at
    rest = log[committed:]
    return 0 if _is_older(rest, salt1) else len(rest)


def _is_older(rest: memoryview, salt1: int) -> bool:
    if len(rest) < _FRAME.size:
        return False
    rewritings = (salt1 - int(_FRAME.unpack_from(rest)[2])) & _WORD
    return 0 < rewritings < _GENERATIONS


def _add(words: Struct, part: memoryview, sum1: int, sum2: int) -> tuple[int, int]:
    for first, second in words.iter_unpack(part):
        sum1 = (sum1 + first + sum2) & _WORD
        sum2 = (sum2 + second + sum1) & _WORD
    return sum1, sum2
