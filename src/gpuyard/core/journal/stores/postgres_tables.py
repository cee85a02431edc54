"""The tables of a journal in PostgreSQL, and how they are read.

    journal     one row: the version of the tables, and the position that the stored events follow
    leader      one row: who writes (epoch, session, holder, url), its lease (beat, released, wanted), the position of the last event
    events      the events, with the epoch of their writer
    snapshots   the two newest snapshots

The rows of `journal` and `leader` frame the events: `after` < first event … last event = `leader`. As in a segment of
SQLite, everything is verified when it is read: the numbers have no gaps, every hash follows from the payload and the
hash before it. Readers ask for a few thousand events at a time and hold no transaction in between, because an open one
keeps PostgreSQL from reusing the old versions of the row in `leader`, which every append replaces.
"""

import gzip
import zlib
from collections.abc import Iterator, Sequence

from gpuyard.core.domain.errors import EventsRetired, JournalDamaged, JournalError, JournalFromFuture, NoJournal
from gpuyard.core.journal import snapshots
from gpuyard.core.journal.chain import link
from gpuyard.core.journal.records import GENESIS, HASH_BYTES, Position, Snapshot
from gpuyard.core.journal.stores.postgres_connection import (
    Ask,
    BoundedConnection,
    DatabaseAddress,
    Row,
    as_journal_errors,
    ask,
    asker,
    transaction,
)
from gpuyard.core.journal.stores.segment import SegmentRow

VERSION = 2
WAY_OUT = "Restore the database from a backup."
CHUNK = 4096
"""Events per query: about 1 MB."""
_GZIP_LEVEL = 1
_TABLES = (
    """CREATE TABLE journal (one bool PRIMARY KEY DEFAULT true CHECK (one), version integer NOT NULL,
        after_seq bigint NOT NULL, after_hash bytea NOT NULL)""",
    # Every append updates this row; with room in its page, PostgreSQL replaces it without touching the index.
    """CREATE TABLE leader (one bool PRIMARY KEY DEFAULT true CHECK (one), epoch bigint NOT NULL, session bigint NOT NULL,
        holder text NOT NULL, url text NOT NULL, beat bigint NOT NULL, released bool NOT NULL,
        wanted text NOT NULL, seq bigint NOT NULL,
        hash bytea NOT NULL) WITH (fillfactor = 10)""",
    """CREATE TABLE events (seq bigint PRIMARY KEY, epoch bigint NOT NULL, payload bytea NOT NULL, hash bytea NOT NULL)""",
    "CREATE TABLE snapshots (seq bigint PRIMARY KEY, hash bytea NOT NULL, document bytea NOT NULL)",
    "ALTER TABLE snapshots ALTER COLUMN document SET STORAGE EXTERNAL",  # it is compressed already
)
_LOCK_KEY = "((1735423346::bigint << 32) | (%(schema)s || '.leader')::regclass::oid::bigint)"
"""The advisory lock of a writer: a number of ours, and the table of its journal."""


def create_if_missing(connection: BoundedConnection, address: DatabaseAddress, after: Position = GENESIS) -> None:
    """Create the tables if the schema has none; `after` is the position that the first event will follow."""
    if has_tables(connection, address):
        return
    with transaction(connection, address):
        # Two schedulers that start at the same time both come here; the second one finds the tables of the first.
        ask(connection, address, "SELECT pg_advisory_xact_lock(hashtextextended('gpuyard', 0))")
        if has_tables(connection, address):
            return
        if not ask(
            connection, address, "SELECT 1 FROM pg_namespace WHERE nspname = %(name)s", {"name": address.schema}
        ):
            ask(connection, address, f'CREATE SCHEMA "{address.schema}"')
        for statement in _TABLES:
            ask(connection, address, statement)
        position = {"seq": after.seq, "hash": bytes.fromhex(after.hash), "version": VERSION}
        insert = "INSERT INTO journal (version, after_seq, after_hash) VALUES (%(version)s, %(seq)s, %(hash)s)"
        ask(connection, address, insert, position)
        insert = """INSERT INTO leader (epoch, session, holder, url, beat, released, wanted, seq, hash)
            VALUES (0, 0, '', '', 0, true, '', %(seq)s, %(hash)s)"""
        ask(connection, address, insert, position)


def has_tables(connection: BoundedConnection, address: DatabaseAddress) -> bool:
    """Whether the schema holds a journal."""
    # Not to_regclass: within a transaction it may answer from a cache, and miss what another session has just created.
    query = """SELECT 1 FROM pg_class JOIN pg_namespace ON pg_namespace.oid = relnamespace
        WHERE nspname = %(schema)s AND relname = 'journal'"""
    return bool(ask(connection, address, query, {"schema": address.schema}))


def check_version(connection: BoundedConnection, address: DatabaseAddress) -> None:
    """Raise an error if there is no journal, or one that this version does not read."""
    if not has_tables(connection, address):
        raise NoJournal(f"There is no journal in {address.shown}.")
    rows = ask(connection, address, "SELECT version FROM journal")
    if len(rows) != 1:
        raise damaged(address, 1, "its table journal does not have exactly one row")
    (version,) = rows[0]
    if version > VERSION:
        raise JournalFromFuture(
            f"The tables in {address.shown} have version {version}, and this gpuyard uses version {VERSION}: a newer "
            "one created them. Use that version or a newer one."
        )
    if version < VERSION:
        raise JournalError(
            f"The tables in {address.shown} have version {version}, and this gpuyard uses version {VERSION}. Copy the "
            "journal to a folder with the gpuyard that created them, and back with this one: gpuyard journal copy."
        )


def damaged(address: DatabaseAddress, seq: int, what: str) -> JournalDamaged:
    """Return the error that names the place of the damage and the way out."""
    return JournalDamaged(f"The journal in {address.shown} is damaged at event {seq}: {what}. {WAY_OUT}")


def writer_state(connection: BoundedConnection, address: DatabaseAddress) -> list[Row]:
    """Return the row in `leader`, which a scheduler that leads changes several times a second."""
    return ask(connection, address, "SELECT epoch, session, beat, released, seq, hash FROM leader")


class Contents:
    """Reads the tables through any way to ask."""

    def __init__(self, address: DatabaseAddress, asking: Ask) -> None:
        self.address = address
        self._ask = asking

    def after(self) -> Position:
        """Return the position that the oldest stored event follows."""
        return self._position("SELECT after_seq, after_hash FROM journal")

    def head(self) -> Position:
        """Return the position of the last event."""
        return self._position("SELECT seq, hash FROM leader")

    def position_at(self, seq: int) -> Position | None:
        """Return the position of a stored event, or the one before the oldest; None: it is not there."""
        query = """SELECT hash FROM events WHERE seq = %(seq)s
            UNION ALL SELECT after_hash FROM journal WHERE after_seq = %(seq)s LIMIT 1"""
        rows = self._ask(query, {"seq": seq})
        return Position(seq, rows[0][0].hex()) if rows and len(rows[0][0]) == HASH_BYTES else None

    def rows(self, after: int, until: int) -> Iterator[SegmentRow]:
        """Iterate over the events after a number and up to another one; each is checked."""
        start = self.position_at(after)
        if start is None:
            raise self.missing(after)
        seq, digest = after, bytes.fromhex(start.hash)
        query = "SELECT seq, payload, hash FROM events WHERE seq > %(after)s AND seq <= %(until)s ORDER BY seq"
        while seq < until:
            chunk = self._ask(query, {"after": seq, "until": min(seq + CHUNK, until)})
            if not chunk:
                raise self.missing(seq)
            for row in self.checked(Position(seq, digest.hex()), chunk):
                seq, _, digest = row
                yield row

    def checked(self, after: Position, chunk: Sequence[Row]) -> Iterator[SegmentRow]:
        """Iterate over rows that were read and should follow a position; raise JournalDamaged where they do not."""
        seq, digest = after.seq, bytes.fromhex(after.hash)
        for number, payload, claimed in chunk:
            seq += 1
            if number != seq:
                raise self.missing(seq - 1)
            if claimed != (digest := link(digest, payload)):
                raise damaged(self.address, seq, "it does not fit its hash")
            yield seq, payload, digest

    def snapshots(self, notes: list[str]) -> Iterator[Snapshot]:
        """Iterate over the intact snapshots, newest first; append a sentence to `notes` for each damaged one."""
        for (seq,) in self._ask("SELECT seq FROM snapshots ORDER BY seq DESC", None):
            for (document,) in self._ask("SELECT document FROM snapshots WHERE seq = %(seq)s", {"seq": seq}):
                try:
                    yield unpacked(document, seq)
                except snapshots.SnapshotDamaged as damage:
                    notes.append(f"A snapshot is damaged and was not used: {damage}.")

    def check_chain(self, base: Position, head: Position) -> None:
        """Check the events from one position to another."""
        digest = bytes.fromhex(base.hash)
        for _, _, digest in self.rows(base.seq, head.seq):  # noqa: B007 - the last one counts
            pass
        if digest.hex() != head.hash:
            raise damaged(self.address, head.seq, "the table leader has recorded another event there")

    def _position(self, query: str) -> Position:
        rows = self._ask(query, None)
        if len(rows) != 1 or len(rows[0][1]) != HASH_BYTES:
            raise damaged(self.address, 1, "the tables journal and leader must have one row each, with a hash")
        return Position(rows[0][0], rows[0][1].hex())

    def missing(self, seq: int) -> JournalError:
        """Return the error for an event after `seq` that is not there: it was retired, or it is lost."""
        oldest = self.after().seq + 1
        return EventsRetired(seq, oldest) if seq + 1 < oldest else damaged(self.address, seq + 1, "it is not there")


def examine(
    connection: BoundedConnection, address: DatabaseAddress, witness: Position | None, notes: list[str]
) -> Position:
    """Check the events since the newest usable snapshot, and every witness; return the position of the last one.

    The journal may be written meanwhile: a single state of it is looked at, then the events of that state are read.
    """
    contents = Contents(address, asker(connection, address))
    with transaction(connection, address):
        ask(connection, address, "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
        after, head = contents.after(), contents.head()
        usable = [snapshot.position for snapshot in contents.snapshots(notes) if snapshot.position.seq >= after.seq]
        ((first, last),) = ask(connection, address, "SELECT min(seq), max(seq) FROM events")
        witnesses = [("a snapshot", position, contents.position_at(position.seq)) for position in usable]
        if witness is not None:
            witnesses.append(("an external witness", witness, contents.position_at(witness.seq)))
    if after.seq and not usable:
        raise JournalDamaged(
            f"The journal in {address.shown} begins with event {after.seq + 1}, and no snapshot of earlier events can be "
            f"used. {' '.join([*notes, WAY_OUT])}"
        )
    if (first or after.seq + 1) != after.seq + 1:
        raise damaged(address, after.seq + 1, "it is not there")
    if (last or after.seq) != head.seq:
        raise damaged(address, head.seq, f"the table leader ends there, but the events end at {last or after.seq}")
    for who, seen, found in witnesses:
        if seen.seq > head.seq:
            what = f"{who} records that the journal went to event {seen.seq}, but it ends at {head.seq}"
            raise damaged(address, head.seq + 1, what)
        if seen.seq >= after.seq and found != seen:
            raise damaged(address, seen.seq, f"{who} has recorded another event there")
    contents.check_chain(usable[0] if usable else after, head)
    return head


def load(connection: BoundedConnection, address: DatabaseAddress, rows: Sequence[SegmentRow]) -> None:
    """Insert events of another journal, within a transaction that `finish_loading` completes. Their epoch is 0."""
    query = b"COPY events (seq, epoch, payload, hash) FROM STDIN (FORMAT BINARY)"
    with as_journal_errors(address, connection), connection.cursor().copy(query) as stream:
        stream.set_types(("int8", "int8", "bytea", "bytea"))
        for seq, payload, digest in rows:
            stream.write_row((seq, 0, payload, digest))


def finish_loading(
    connection: BoundedConnection, address: DatabaseAddress, head: Position, kept: Sequence[Snapshot]
) -> None:
    """Record the end of the loaded events, and their snapshots."""
    position = {"seq": head.seq, "hash": bytes.fromhex(head.hash)}
    ask(connection, address, "UPDATE leader SET seq = %(seq)s, hash = %(hash)s", position)
    insert = "INSERT INTO snapshots (seq, hash, document) VALUES (%(seq)s, %(hash)s, %(document)b)"
    for snapshot in kept:
        position = {"seq": snapshot.position.seq, "hash": bytes.fromhex(snapshot.position.hash)}
        ask(connection, address, insert, {**position, "document": packed(snapshot)})


def packed(snapshot: Snapshot) -> bytes:
    """Return a snapshot as it is stored."""
    return gzip.compress(snapshots.encode(snapshot), _GZIP_LEVEL, mtime=0)


def unpacked(document: bytes, seq: int) -> Snapshot:
    """Return a stored snapshot. Raises SnapshotDamaged if it is not what was written."""
    name = f"the snapshot at event {seq}"
    try:
        plain = gzip.decompress(document)
    except (OSError, EOFError, zlib.error) as error:
        raise snapshots.SnapshotDamaged(f"{name} cannot be read ({error})") from error
    found = snapshots.decode(plain, name)
    if found.position.seq != seq:
        raise snapshots.SnapshotDamaged(f"{name} is one of event {found.position.seq}")
    return found


LOCK = f"SELECT pg_advisory_lock({_LOCK_KEY})"
"""Takes the lock of the writer; the server releases it when the connection ends."""
END_OTHER_HOLDERS = f"""
    SELECT pg_terminate_backend(pid) FROM pg_locks, (SELECT {_LOCK_KEY} AS key) AS ours
    WHERE locktype = 'advisory' AND granted AND pid <> pg_backend_pid() AND objsubid = 1
      AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
      AND classid::bigint = ours.key >> 32 AND objid::bigint = ours.key & 4294967295"""  # noqa: S608 - constants
"""Ends the other sessions that hold the lock of the writer."""
