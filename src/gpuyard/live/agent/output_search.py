"""Search the output of an attempt for a text, on its node, in bounded time and memory.

The file may be any bytes: without line breaks, with lines of many megabytes, with a hole where its beginning was dropped,
and it may grow or be truncated meanwhile. It is read in blocks; two blocks are held at most. Of a line that contains the
text, only a window around the first match is returned. A search ends after `MOST_BYTES`, `MOST_SECONDS` or with
`MOST_FOUND_BYTES` of found lines, and says where to continue. The text is searched for literally: an expression could take forever.
"""

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

BLOCK_BYTES = 1 << 20
MOST_BYTES = 1 << 30
MOST_SECONDS = 2.0
MOST_FOUND_BYTES = 2 << 20
"""Found lines with their context, which travel in one message: the scheduler accepts messages of 4 MiB."""
BEFORE_BYTES, LINE_BYTES = 200, 1000
"""How much of a line is shown before a match, and in total."""
COUNTED_BYTES = 256 << 20
"""Line numbers are known as long as the part before the search is not longer than this."""


@dataclass(slots=True)
class Match:
    """A line with the text."""

    offset: int
    """The offset of the first byte of `text` in the whole output."""
    line: int | None
    """The number of the line, from 1; None: unknown."""
    text: bytes
    """The line, or the part of a long line around the match."""
    before: list[bytes] = field(default_factory=list)
    after: list[bytes] = field(default_factory=list)

    @property
    def size(self) -> int:
        """Return the bytes of its lines."""
        return len(self.text) + sum(map(len, self.before)) + sum(map(len, self.after))


@dataclass(slots=True)
class SearchResult:
    """The result of a search."""

    matches: list[Match]
    next_offset: int | None
    """Where to continue; None: the end was reached."""


def search(
    path: Path,
    text: bytes,
    *,
    offset: int = 0,
    limit: int = 100,
    match_case: bool = False,
    context: int = 0,
    clock: Callable[[], float] = time.monotonic,
) -> SearchResult | None:
    """Search from an offset on for at most `limit` lines; None if there is no output.

    Without `match_case`, ASCII letters match in both cases. `context` is the number of lines around each match.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return None
    try:
        return _Search(descriptor, text if match_case else text.lower(), match_case, context, clock).run(offset, limit)
    finally:
        os.close(descriptor)


class _Search:
    """One search of an open file."""

    def __init__(
        self, descriptor: int, text: bytes, match_case: bool, context: int, clock: Callable[[], float]
    ) -> None:
        self._descriptor = descriptor
        self._text = text
        self._match_case = match_case
        self._context = context
        self._clock = clock
        self._until = clock() + MOST_SECONDS

    def run(self, offset: int, limit: int) -> SearchResult:
        """Look through the file from an offset on."""
        matches, size = list[Match](), 0
        at, looked_at = self._data_from(offset), 0
        line = self._lines_before(at)
        counted_to = at
        """Line breaks before this offset are in `line`."""
        while True:
            block = os.pread(self._descriptor, BLOCK_BYTES + len(self._text) - 1, at)
            if len(block) < len(self._text):
                return SearchResult(matches, None)
            looked_at += len(block)
            looked, place, shift = block if self._match_case else block.lower(), 0, at
            while (place := looked.find(self._text, place)) >= 0:
                found_at = shift + place
                if line is not None:
                    line += self._breaks(block, shift, counted_to, found_at)
                    counted_to = found_at
                matches.append(self._match(found_at, None if line is None else line + 1))
                size += matches[-1].size
                end = looked.find(b"\n", place)
                if len(matches) == limit or size >= MOST_FOUND_BYTES:
                    after = self._line_end(found_at) if end < 0 else shift + end + 1
                    return SearchResult(matches, after)
                if end < 0:  # the rest of the line is in the next blocks
                    break
                place = end + 1
            else:
                end = 0
            if end < 0:
                after = self._line_end(shift + place)
                if after is None:
                    return SearchResult(matches, None)
                line = None if line is None else line + 1
                at = counted_to = after
            else:
                step = len(block) - len(self._text) + 1
                if line is not None:
                    line += self._breaks(block, shift, counted_to, at + step)
                    counted_to = at + step
                at += step
            at = self._data_from(at)
            counted_to = max(counted_to, at)
            if looked_at >= MOST_BYTES or self._clock() >= self._until:
                return SearchResult(matches, at)

    def _data_from(self, offset: int) -> int:
        """Return the first offset with data: the beginning of a long output is a hole."""
        try:
            return os.lseek(self._descriptor, offset, os.SEEK_DATA)
        except OSError:  # behind the end
            return offset

    def _lines_before(self, offset: int) -> int | None:
        """Count the line breaks before an offset; None if that would take too long."""
        at, lines = self._data_from(0), 0
        if offset - at > COUNTED_BYTES:
            return None
        while at < offset:
            block = os.pread(self._descriptor, min(BLOCK_BYTES, offset - at), at)
            if not block or self._clock() >= self._until:
                return None
            lines += block.count(b"\n")
            at += len(block)
        return lines

    @staticmethod
    def _breaks(block: bytes, shift: int, first: int, last: int) -> int:
        return block.count(b"\n", max(0, first - shift), max(0, last - shift))

    def _line_end(self, offset: int) -> int | None:
        """Return the offset after the next line break; None: the last line has no end, or not in time."""
        at = offset
        while block := os.pread(self._descriptor, BLOCK_BYTES, at):
            end = block.find(b"\n")
            if end >= 0:
                return at + end + 1
            at += len(block)
            if self._clock() >= self._until:
                return at
        return None

    def _match(self, found_at: int, line: int | None) -> Match:
        """Return the line around a match, or the part of it that is shown."""
        first = max(0, found_at - BEFORE_BYTES)
        window = os.pread(self._descriptor, LINE_BYTES + BEFORE_BYTES, first)
        begin = window.rfind(b"\n", 0, found_at - first) + 1
        end = window.find(b"\n", found_at - first)
        shown = window[begin : begin + LINE_BYTES if end < 0 else min(end, begin + LINE_BYTES)]
        match = Match(first + begin, line, shown)
        if self._context:
            match.before = self._lines_before_match(first + begin)
            match.after = self._lines_after_match(found_at)
        return match

    def _lines_before_match(self, offset: int) -> list[bytes]:
        most = self._context * LINE_BYTES
        first = max(0, offset - most)
        window = os.pread(self._descriptor, offset - first, first)
        if not window.endswith(b"\n"):
            return []  # the match is in the middle of a long line
        lines = window[:-1].split(b"\n")
        if first > 0 and len(lines) <= self._context:
            lines = lines[1:] if len(lines) > 1 else lines  # the first one may have begun before
        return [line.lstrip(b"\0")[-LINE_BYTES:] for line in lines[-self._context :]]

    def _lines_after_match(self, found_at: int) -> list[bytes]:
        window = os.pread(self._descriptor, (self._context + 1) * LINE_BYTES, found_at)
        lines = window.split(b"\n")[1:]
        if window.endswith(b"\n"):
            lines = lines[:-1]
        return [line[:LINE_BYTES] for line in lines[: self._context]]
