"""A journal in PostgreSQL.

A server cannot lock out a writer that is paused, or whose connection is slow to die. So every append proves in its own
statement that it may write:

    leader   epoch  session  seq  hash          events
             7      3        120  5f0c…         … 119, 120
             │      │        └─────┴── the append follows the last event, and nothing came between
             │      └── of two connections of one writer, only the newer one
             └── of two writers, only the one that came last

If one of the four differs, the row is not found and nothing is inserted. The row lock makes the comparison and the
insertion one step. `open` draws the next epoch; the writer before it can then insert nothing, whatever it believes.

A writer also holds an advisory lock, so that a second scheduler on the same journal is refused instead of deposing the
first. The server releases it when the process of the writer ends. `open(take_over=True)` does not ask for it.

If the connection is lost during an append, its outcome is unknown. The next step is then always the same: connect, draw
a new session, which the statement that may still be running on the server cannot outlive, and compare the position. The
events were written or they were not; the caller learns of it, or the append is repeated.
"""

import os
import socket
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Lock
from typing import NamedTuple, Self

from gpuyard.core.domain.errors import (
    EventsRetired,
    JournalError,
    JournalLocked,
    StorageUnreachable,
    WriterDeposed,
)
from gpuyard.core.journal.chain import link
from gpuyard.core.journal.codec import CODEC, Codec
from gpuyard.core.journal.files import as_journal_errors
from gpuyard.core.journal.port import AuditRetention
from gpuyard.core.journal.records import JournalEntry, Position, Record, Snapshot
from gpuyard.core.journal.stores import postgres_connection as database
from gpuyard.core.journal.stores import postgres_tables as tables
from gpuyard.core.journal.stores import retiring, segment
from gpuyard.core.journal.stores.postgres_connection import BoundedConnection, DatabaseAddress, Row, Waits
from gpuyard.core.journal.stores.sqlite import SEGMENT_EVENTS

_LARGE = 20.0
"""Snapshots and segments get this many times the time of an append."""
_PAGE_BYTES = 4096
_APPEND = """
    WITH lead AS (
        UPDATE leader SET seq = %(seq)b::bigint, hash = %(hash)b, beat = beat + 1
        WHERE epoch = %(epoch)b::bigint AND session = %(session)b::bigint
          AND seq = %(before)b::bigint AND hash = %(hash_before)b
        RETURNING epoch),
    put AS (
        INSERT INTO events (seq, epoch, payload, hash)
        SELECT %(before)b::bigint + fact.n, lead.epoch, fact.payload, fact.hash
        FROM lead, unnest(%(payloads)b::bytea[], %(hashes)b::bytea[]) WITH ORDINALITY AS fact (payload, hash, n))
    SELECT epoch FROM lead"""
_DRAW_EPOCH = """UPDATE leader SET epoch = epoch + 1, session = session + 1, beat = beat + 1, released = false,
    holder = %(holder)s, url = '', wanted = '' RETURNING epoch, session, seq, hash"""
_DRAW_SESSION = "UPDATE leader SET session = session + 1 WHERE epoch = %(epoch)s RETURNING session, seq, hash"
_SAVE = """INSERT INTO snapshots (seq, hash, document)
    SELECT %(seq)s, %(hash)s, %(document)b FROM leader WHERE epoch = %(epoch)s
    ON CONFLICT (seq) DO UPDATE SET hash = EXCLUDED.hash, document = EXCLUDED.document RETURNING seq"""
_KEEP_TWO = "DELETE FROM snapshots WHERE seq NOT IN (SELECT seq FROM snapshots ORDER BY seq DESC LIMIT 2)"
_RETIRE = """UPDATE journal SET after_seq = %(seq)s, after_hash = %(hash)s
    WHERE after_seq = %(after)s AND EXISTS (SELECT 1 FROM leader WHERE epoch = %(epoch)s)
      AND %(seq)s <= (SELECT min(seq) FROM snapshots HAVING count(*) >= 2) RETURNING after_seq"""


class _Unknown(NamedTuple):
    """An append whose connection was lost."""

    reached: Position
    """The head, if it was written."""
    payloads: list[bytes]


class PostgresJournal:
    """See gpuyard.core.journal.port.Journal. Create it with `open`."""

    def __init__(
        self,
        address: DatabaseAddress,
        connection: BoundedConnection,
        drawn: Row,
        notes: list[str],
        codec: Codec,
        segment_events: int,
        waits: Waits,
    ) -> None:
        self._address = address
        self._waits = waits
        self._codec = codec
        self._segment_events = segment_events
        self._writer = connection
        self.epoch: int = drawn[0]
        """The number of this writer; every later one has a higher number."""
        self._session: int = drawn[1]
        self._head = Position(drawn[2], drawn[3].hex())
        self._unknown: _Unknown | None = None
        self._refusal: JournalError | None = None
        """Why every call is refused; None: it is not."""
        self._mutex = Lock()
        self._retiring = Lock()
        self._reading = database.LastingConnection(address, waits)
        self._contents = tables.Contents(address, self._reading)
        self.notes = notes
        """Problems that were found when the journal was opened and did not prevent it, one sentence each."""

    @classmethod
    def open(
        cls,
        url: str,
        *,
        take_over: bool = False,
        witness: Position | None = None,
        codec: Codec = CODEC,
        segment_events: int = SEGMENT_EVENTS,
        waits: Waits | None = None,
    ) -> Self:
        """Open the journal of a database for writing, or create one if there is none.

        `take_over`: depose the current writer instead of raising JournalLocked. `witness` is a position known from
        outside; a journal that does not contain it is refused as damaged.
        """
        address, waits, notes = DatabaseAddress.parse(url), waits or Waits(), list[str]()
        connection = database.connect(address, waits)
        try:
            tables.create_if_missing(connection, address)
            tables.check_version(connection, address)
            if not take_over:
                take_lock(connection, address)
            examined = tables.examine(connection, address, witness, notes)
            drawn = database.commit(connection, address, _DRAW_EPOCH, {"holder": this_process()})
            if len(drawn) != 1:
                raise tables.damaged(address, examined.seq, "the table leader must have one row")
            # The writer before may have appended until its epoch was over.
            contents = tables.Contents(address, database.asker(connection, address))
            contents.check_chain(examined, Position(drawn[0][2], drawn[0][3].hex()))
            if take_over:
                evict(connection, address)
            return cls(address, connection, drawn[0], notes, codec, segment_events, waits)
        except BaseException:
            database.close(connection)
            raise

    @property
    def head(self) -> Position:
        """The position of the last event that is known to be written."""
        return self._head

    def encode(self, entry: JournalEntry) -> bytes:
        """Encode an event as it would be written."""
        return self._codec.encode(entry)

    def append(self, batch: Sequence[JournalEntry]) -> Position:
        """Encode these events and append them."""
        return self.append_encoded([self._codec.encode(entry) for entry in batch])

    def append_encoded(self, payloads: Sequence[bytes]) -> Position:
        """Write encoded events durably, all or none; return the new head.

        After `StorageUnreachable`, repeat the call with the same events: it is found out first whether they were
        written, and they are not written twice. `WriterDeposed`: nothing was written, and nothing will be.
        """
        with self._mutex:
            self._check_usable()
            if self._unknown is not None and self._find_out(payloads):
                return self._head
            if not payloads:
                return self._head
            try:
                self._write(payloads)
            except StorageUnreachable:
                if self._unknown is None:
                    raise  # the server has rolled it back
                # Often only the connection is gone: a restarted server, a firewall that forgot it.
                if not self._find_out(payloads):
                    self._write(payloads)
            return self._head

    def read(self, after: int = 0) -> Iterator[Record]:
        """Iterate over the events after this number, up to the current head; each is checked against the chain."""
        with self._mutex:
            self._check_usable()
            until = self._head.seq
        oldest = self._contents.after().seq + 1
        if after + 1 < oldest:
            raise EventsRetired(after, oldest)
        rows = self._contents.rows(after, until) if after < until else iter(())
        return (self._codec.decode(seq, payload) for seq, payload, _ in rows)

    def position_at(self, seq: int) -> Position | None:
        """Return the position of this event, or None if it does not exist or was retired."""
        with self._mutex:
            self._check_usable()
            reached = self._head
        if seq == reached.seq:
            return reached
        return self._contents.position_at(seq) if seq < reached.seq else None

    def verify(self) -> int:
        """Check every stored event, oldest first; return how many. Raises JournalDamaged at the first defect."""
        while True:
            with self._mutex:
                self._check_usable()
                until = self._head.seq
            try:
                return sum(1 for _ in self._contents.rows(self._contents.after().seq, until))
            except EventsRetired:
                continue  # a segment was retired meanwhile, which is no defect

    def save_snapshot(self, snapshot: Snapshot) -> None:
        """Save a snapshot durably, and delete all but the two newest. Another thread may append meanwhile."""
        position = snapshot.position
        if self.position_at(position.seq) != position:
            raise JournalError(f"This journal was never at event {position.seq} with that hash; no snapshot was saved.")
        fields = {
            "seq": position.seq,
            "hash": bytes.fromhex(position.hash),
            "document": tables.packed(snapshot),
            "epoch": self.epoch,
        }
        with closing(database.connect(self._address, self._waits.longer(_LARGE))) as connection:
            with database.transaction(connection, self._address):
                saved = database.ask(connection, self._address, _SAVE, fields)
                database.ask(connection, self._address, _KEEP_TWO)
            if not saved:
                raise self._deposed(connection)

    def usable_snapshots(self) -> Iterator[Snapshot]:
        """Iterate over the intact snapshots whose following events are all stored here, newest first."""
        with self._mutex:
            self._check_usable()
            reached = self._head.seq
        earliest = self._contents.after().seq
        found = self._contents.snapshots(notes=[])
        return (snapshot for snapshot in found if earliest <= snapshot.position.seq <= reached)

    def retire(self, into: Path | None = None, audit: AuditRetention | None = None) -> int:
        """Delete the segments that both snapshots cover, oldest first; return the number of events.

        Segments are numbered from the oldest event on. They are packed into files like those of SQLite.
        """
        with self._mutex:
            self._check_usable()
        count = 0
        with self._retiring, closing(database.connect(self._address, self._waits.longer(_LARGE))) as connection:
            asking = database.asker(connection, self._address)
            contents = tables.Contents(self._address, asking)
            while True:
                after = contents.after()
                covered = asking("SELECT min(seq) FROM snapshots HAVING count(*) >= 2", None)
                if not covered or after.seq + self._segment_events > covered[0][0]:
                    return count
                end = self._kept(contents, after, into, audit)
                with database.transaction(connection, self._address):
                    fields = {"seq": end.seq, "hash": bytes.fromhex(end.hash), "after": after.seq, "epoch": self.epoch}
                    if not asking(_RETIRE, fields):
                        raise self._deposed(connection)
                    asking("DELETE FROM events WHERE seq <= %(seq)s", {"seq": end.seq})
                count += end.seq - after.seq

    def close(self) -> None:
        """Close the journal. The server then releases the lock of the writer."""
        with self._mutex:
            self._refusal = JournalError("The journal is closed. Open it again.")
            database.close(self._writer)
            self._reading.close()

    # --- writing -----------------------------------------------------------------------------------------------------

    def _write(self, payloads: Sequence[bytes]) -> None:
        """Append in one statement. If its connection is lost, `_unknown` says what it would have written."""
        digest = bytes.fromhex(self._head.hash)
        before, hashes = digest, [digest := link(digest, payload) for payload in payloads]
        reached = Position(self._head.seq + len(payloads), digest.hex())
        fields = {
            "epoch": self.epoch,
            "session": self._session,
            "before": self._head.seq,
            "hash_before": before,
            "seq": reached.seq,
            "hash": digest,
            "payloads": list(payloads),
            "hashes": hashes,
        }
        try:
            found = database.commit(self._writer, self._address, _APPEND, fields)
        except StorageUnreachable:
            if self._writer.closed:
                self._unknown = _Unknown(reached, list(payloads))
            raise
        except BaseException as error:
            self._stop_using(error)
            raise
        if not found:
            raise self._stop_using(self._deposed(self._writer))
        self._head = reached

    def _find_out(self, payloads: Sequence[bytes]) -> bool:
        """Connect again, and return whether the append with the unknown outcome was written.

        Raises StorageUnreachable if that cannot be found out now. The caller must pass the same events again.
        """
        assert self._unknown is not None
        database.close(self._writer)
        connection = database.connect(self._address, self._waits)
        try:
            drawn = database.commit(connection, self._address, _DRAW_SESSION, {"epoch": self.epoch})
            if not drawn:
                raise self._stop_using(self._deposed(connection))
            found = Position(drawn[0][1], drawn[0][2].hex())
            if found not in {self._head, self._unknown.reached}:
                what = (
                    f"event {self._head.seq} was written, but the database ends at event {found.seq} with another hash"
                )
                raise self._stop_using(tables.damaged(self._address, found.seq, what))
            evict(connection, self._address)
        except BaseException:
            database.close(connection)
            raise
        self._writer, self._session = connection, drawn[0][0]
        unknown, self._unknown = self._unknown, None
        if found == self._head:
            return False
        if unknown.payloads != list(payloads):
            raise self._stop_using(
                JournalError("Other events were given than those whose append was interrupted. Open the journal again.")
            )
        self._head = found
        return True

    def _deposed(self, connection: BoundedConnection) -> JournalError:
        """Return the error for a row in `leader` that is no longer ours."""
        rows = database.ask(connection, self._address, "SELECT epoch, session, seq, hash, holder FROM leader")
        if len(rows) != 1:
            return tables.damaged(self._address, self._head.seq, "the table leader must have one row")
        epoch, session, seq, _, holder = rows[0]
        if epoch > self.epoch or session > self._session:
            return WriterDeposed(
                f"The journal in {self._address.shown} was taken over by {holder} (epoch {epoch}, and this scheduler "
                f"has {self.epoch}). Nothing was written; stop this scheduler."
            )
        what = f"it is at event {seq} of epoch {epoch}, and this scheduler left it at event {self._head.seq} of {self.epoch}"
        return tables.damaged(self._address, seq, f"{what}. An older state of the database was restored")

    def _stop_using(self, error: BaseException) -> BaseException:
        """Refuse every further call; return the error."""
        if isinstance(error, WriterDeposed):
            self._refusal = error
        else:
            why = f"An earlier write failed ({error}). Open the journal again to know what was written."
            self._refusal = JournalError(why)
        return error

    def _check_usable(self) -> None:
        if self._refusal is not None:
            raise type(self._refusal)(str(self._refusal))

    # --- retiring ----------------------------------------------------------------------------------------------------

    def _kept(
        self, contents: tables.Contents, after: Position, into: Path | None, audit: AuditRetention | None
    ) -> Position:
        """Keep what is wanted of the oldest segment; return its last position."""
        rows = list(contents.rows(after.seq, after.seq + self._segment_events))
        if into is not None:
            with TemporaryDirectory(prefix="gpuyard-") as folder, as_journal_errors(Path(folder)):
                path = segment.create(Path(folder), after, _PAGE_BYTES)
                with segment.writing(Path(folder)), closing(segment.open_writer(path)) as writer:
                    segment.write(writer, rows)
                retiring.pack(path, into)
        if audit is not None:
            retiring.keep_audit(rows, after.seq + 1, audit, self._codec)
        return Position(rows[-1][0], rows[-1][2].hex())


def this_process() -> str:
    """Return what other schedulers call this one in their messages."""
    return f"process {os.getpid()} on {socket.gethostname()}"


def take_lock(connection: BoundedConnection, address: DatabaseAddress) -> None:
    """Take the lock of the writer. A writer that was just killed may hold it for a moment, so wait for it."""
    try:
        database.ask(connection, address, tables.LOCK, {"schema": address.schema})
    except StorageUnreachable:
        if connection.closed:
            raise
        rows = database.ask(connection, address, "SELECT holder FROM leader")
        holder = rows[0][0] if rows and rows[0][0] else "another process"
        message = f"The journal in {address.shown} is being written by {holder}. Stop it first."
        raise JournalLocked(message) from None


def evict(connection: BoundedConnection, address: DatabaseAddress) -> None:
    """Take the lock of the writer from a session that is no longer the writer's.

    Only the row in `leader` decides who writes. If the old session cannot be ended, the lock is left to it.
    """
    schema = {"schema": address.schema}
    try:
        database.ask(connection, address, tables.END_OTHER_HOLDERS, schema)
        database.ask(connection, address, tables.LOCK, schema)
    except JournalError:
        if connection.closed:
            raise
