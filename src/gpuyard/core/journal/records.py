"""What goes into a journal and what comes out of it."""

from typing import Any

from gpuyard.core.domain.events import Event
from gpuyard.core.domain.values import Value

HASH_BYTES = 16
"""Enough that no accident goes unnoticed; the chain is no defence against somebody who can write the folder."""


class Position(Value, frozen=True):
    """A place in a journal: the fact with this number was written, and this is the hash of all facts up to it."""

    seq: int
    hash: str
    """In hexadecimal."""


GENESIS = Position(0, bytes(HASH_BYTES).hex())
"""Before the first fact."""


class JournalEntry(Value, frozen=True):
    """A fact on its way into the journal."""

    at: float
    fact: Event
    by: str = ""
    """On whose word; empty: the engine's own."""
    request_id: str = ""
    """The id of the REST request that caused it; empty: no request did, or an older version wrote it."""


class Record(Value, frozen=True):
    """A fact as the journal holds it. The first one has the number 1, and there are no gaps."""

    seq: int
    at: float
    fact: Event
    by: str = ""
    request_id: str = ""


class Snapshot(Value, frozen=True):
    """What all facts up to a position add up to, so that the journal need not be read from its beginning."""

    position: Position
    state: Any
    """A document that JSON can hold; its meaning is the caller's. It comes back as plain dictionaries and lists."""
