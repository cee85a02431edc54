"""The records of a journal: entries that are written, records and snapshots that are read."""

from typing import Any

import msgspec

from gpuyard.core.domain.events import Event
from gpuyard.core.domain.values import Value

HASH_BYTES = 16
"""Long enough to detect any accidental change. The chain does not protect against users with write access."""


class Position(Value, frozen=True):
    """A place in a journal: the number of an event, and the hash over all events up to and including it."""

    seq: int
    hash: str
    """Hexadecimal digits."""


GENESIS = Position(0, bytes(HASH_BYTES).hex())
"""The position before the first event."""


class JournalEntry(Value, frozen=True):
    """An event to be written."""

    at: float
    event: Event
    by: str = ""
    """The author of the command that caused the event; empty: the engine itself."""
    request_id: str = ""
    """The ID of the REST request that caused it; empty: not caused by a request, or written by an older version."""


class Record(Value, frozen=True):
    """An event as stored in the journal. Numbers start at 1 and have no gaps."""

    seq: int
    at: float
    event: Event = msgspec.field(name="fact")
    by: str = ""
    request_id: str = ""


class Snapshot(Value, frozen=True):
    """The state after all events up to a position, so that the journal need not be read from its beginning."""

    position: Position
    state: Any
    """A value that JSON can represent; only the caller interprets it. It is read back as dictionaries and lists."""
