"""The answer of /api/v1 to a search in the output of a task."""

from msgspec import Struct


class SearchMatch(Struct, frozen=True):
    """A line that contains the text; of a long line, a part around the first match in it."""

    offset: int
    """The offset of the first byte of `text` in the output."""
    line: int | None
    """Number of the line, from 1, in the output that the node still has; null: unknown."""
    text: str
    """What is not UTF-8 is replaced by U+FFFD."""
    before: list[str]
    after: list[str]


class SearchAnswer(Struct, frozen=True):
    """The result of a search in the output of an attempt."""

    matches: list[SearchMatch]
    next_offset: int | None
    """Where to continue: the output after it was not searched. Null: all was searched."""
    truncated: bool
    """Whether the search ended before the end of the output: because of `limit`, or after two seconds."""
