"""Follow a journal in PostgreSQL without writing to it.

Appends are one after another, because each replaces the row in `leader`, and the events of one become visible together.
So a reader that has seen event n has seen all before it, and asking for everything after n misses nothing.
"""

from collections.abc import Iterator
from typing import Self

from gpuyard.core.journal.codec import CODEC, Codec
from gpuyard.core.journal.records import Position, Record, Snapshot
from gpuyard.core.journal.stores import postgres_connection as database
from gpuyard.core.journal.stores import postgres_tables as tables
from gpuyard.core.journal.stores.postgres_connection import DatabaseAddress, Row, Waits

_NEXT = "SELECT seq, payload, hash FROM events WHERE seq > %(after)s ORDER BY seq LIMIT %(most)s"


class PostgresFollower:
    """Reads the events of a journal as they are committed. It holds no lock and no transaction between two calls."""

    def __init__(self, address: DatabaseAddress, waits: Waits, codec: Codec) -> None:
        self._codec = codec
        self._connection = database.LastingConnection(address, waits)
        self.contents = tables.Contents(address, self._connection)
        """The tables of the journal."""

    @classmethod
    def open(cls, url: str, *, waits: Waits | None = None, codec: Codec = CODEC) -> Self:
        """Connect, and check that there is a journal of a version that this gpuyard reads."""
        address, waits = DatabaseAddress.parse(url), waits or Waits()
        connection = database.connect(address, waits)
        try:
            tables.check_version(connection, address)
        finally:
            database.close(connection)
        return cls(address, waits, codec)

    def ask(self, query: str) -> list[Row]:
        """Execute another query on the connection."""
        return self._connection(query)

    def tail(self, after: Position, most: int = tables.CHUNK) -> tuple[list[Record], Position]:
        """Return the next events after a position, at most `most`, and the position of the last one; none: no news.

        Raises EventsRetired if they were retired, JournalDamaged if the journal does not continue this position: its
        database was set back, or it is another journal.
        """
        head = self.contents.head()
        if head == after:
            return [], after
        if head.seq <= after.seq:
            what = f"it ends there with another hash, or earlier than event {after.seq}, which was read before"
            raise tables.damaged(self.contents.address, head.seq, what)
        chunk = self._connection(_NEXT, {"after": after.seq, "most": most})
        if not chunk:
            raise self.contents.missing(after.seq)
        records = []
        reached = after
        for seq, payload, digest in self.contents.checked(after, chunk):
            records.append(self._codec.decode(seq, payload))
            reached = Position(seq, digest.hex())
        return records, reached

    def read(self, after: int | None = None) -> Iterator[Record]:
        """Iterate over the events after a number, up to the current end, and close. None: from the first stored one."""
        try:
            until = self.contents.head().seq
            start = self.contents.after().seq if after is None else after
            for seq, payload, _ in self.contents.rows(start, until) if start < until else ():
                yield self._codec.decode(seq, payload)
        finally:
            self.close()

    def snapshots(self) -> Iterator[Snapshot]:
        """Iterate over the intact snapshots, newest first."""
        return self.contents.snapshots(notes=[])

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()
