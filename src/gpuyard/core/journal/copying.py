"""Copy a journal to another place: a folder (SQLite) or a database (PostgreSQL), in any combination.

The copy holds the same events with the same numbers and hashes, and the same snapshots. The source is locked and
checked, and otherwise only read. The target must be empty. The copy is read again and compared by hash, and only then
it becomes a journal: a folder gets its head file last, and everything in a database is one transaction. What belongs to
the journal of a cluster (`beside`) is written immediately before that, so there is never a journal without it.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from gpuyard.core.domain.errors import JournalDamaged, JournalError, JournalLocked, NoJournal
from gpuyard.core.domain.values import Value
from gpuyard.core.journal import snapshots
from gpuyard.core.journal.files import as_journal_errors
from gpuyard.core.journal.folders import closed_folder
from gpuyard.core.journal.records import Position, Snapshot
from gpuyard.core.journal.stores import head, opening, segment
from gpuyard.core.journal.stores.segment import SegmentRow
from gpuyard.core.journal.stores.sqlite import SEGMENT_EVENTS, SqliteJournal

if TYPE_CHECKING:
    from gpuyard.core.journal.stores.postgres_connection import BoundedConnection, DatabaseAddress

_BATCH = 4096
_PAGE_BYTES = 4096
_LARGE = 20.0
"""Commits of a whole journal get this many times the time of an append."""

Progress = Callable[[str, int, int], None]
"""Called with what is being done, how many events are done, and how many there are."""


class CopyResult(Value, frozen=True):
    """What was copied."""

    events: int
    snapshots: int
    after: int
    """The copy begins after this event; 0: with the first one."""
    head: Position


class JournalSource(NamedTuple):
    """A journal that is locked and can be copied."""

    after: Position
    """The position that the oldest event follows."""
    head: Position
    snapshots: list[Snapshot]
    """The older one first."""
    rows: Iterator[SegmentRow]
    """All events, each checked against the chain."""
    check_unchanged: Callable[[], None]
    """Raises JournalLocked if a scheduler has written since the journal was locked."""


def is_url(place: str) -> bool:
    """Whether this names a database and not a folder."""
    return place.startswith(("postgresql://", "postgres://"))


def copy_journal(source: str, target: str, progress: Progress) -> CopyResult:
    """Copy a journal from one place to another; each is a folder or a URL."""
    with locked_source(source) as found:
        return to_database(found, target, progress) if is_url(target) else to_folder(found, Path(target), progress)


def locked_source(place: str) -> AbstractContextManager[JournalSource]:
    """Lock and check the journal in a folder, in the data folder of a cluster, or in a database."""
    return _from_database(place) if is_url(place) else _from_folder(Path(place))


def folder_of(source: Path) -> Path:
    """Return the folder of a journal: this one, or `journal` in it if it is the data folder of a cluster."""
    within = source / "journal"
    return within if segment.segments_in(within) and not segment.segments_in(source) else source


def _result(found: JournalSource) -> CopyResult:
    return CopyResult(found.head.seq - found.after.seq, len(found.snapshots), found.after.seq, found.head)


def _batches(rows: Iterator[SegmentRow], total: int, progress: Progress) -> Iterator[Sequence[SegmentRow]]:
    done = 0
    progress("copied", done, total)
    while batch := list(islice(rows, _BATCH)):
        yield batch
        done += len(batch)
        progress("copied", done, total)


def _compare(place: str, rows: Iterator[SegmentRow], found: JournalSource, progress: Progress) -> None:
    """Read a copy again, which checks every event, and compare its end with the source."""
    reached, total = found.after, found.head.seq - found.after.seq
    for seq, _, digest in rows:
        if seq % _BATCH == 0:
            progress("checked", seq - found.after.seq, total)
        reached = Position(seq, digest.hex())
    if reached != found.head:
        raise JournalDamaged(
            f"The copy in {place} ends at event {reached.seq} and differs from its source; it was removed."
        )
    progress("checked", total, total)


# --- a folder ----------------------------------------------------------------------------------------------------------


def copy_open_journal(journal: SqliteJournal, target: Path, until: Position) -> None:
    """Copy the events up to a position, and the snapshots before it, while this process writes more of them.

    Raises JournalError or OSError if old events are retired meanwhile; there is then no journal at the target.
    """
    paths = segment.segments_in(journal.folder)
    after = segment.position_at(paths, segment.first_seq(paths[0]) - 1)
    kept = [snapshot for snapshot in journal.usable_snapshots() if snapshot.position.seq <= until.seq]
    rows = segment.read_rows(paths, after.seq, until.seq) if until.seq > after.seq else iter(())
    to_folder(JournalSource(after, until, kept[::-1], rows, check_unchanged=lambda: None), target, lambda *_: None)


@contextmanager
def _from_folder(source: Path) -> Iterator[JournalSource]:
    folder = folder_of(source)
    if not segment.segments_in(folder):
        raise NoJournal(
            f"There is no journal in {folder}. If its scheduler has the journal in a database "
            "(storage.shared_storage), name that."
        )
    with as_journal_errors(folder):
        lock = opening.take_lock(folder)
    try:
        noted = opening.open_head(folder)
        noted.close()
        found = opening.examine(folder, noted.position, None)
        after = segment.position_at(found.paths, segment.first_seq(found.paths[0]) - 1)
        kept = [
            snapshot
            for snapshot in opening.readable_snapshots(folder, notes=[])
            if after.seq <= snapshot.position.seq <= found.head.seq
        ]
        rows = segment.read_rows(found.paths, after.seq, found.head.seq)
        yield JournalSource(after, found.head, kept[::-1], rows, check_unchanged=lambda: None)
    finally:
        os.close(lock)


def to_folder(
    found: JournalSource, folder: Path, progress: Progress, beside: Callable[[], None] = lambda: None
) -> CopyResult:
    """Copy a journal to an empty or new folder. `beside` is called when only its head file is missing."""
    with as_journal_errors(folder):
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise JournalError(f"{folder} is not an empty folder. Copy to a new one.")
        closed_folder(folder, "target folder", "--to")
        lock = opening.take_lock(folder)
    try:
        with as_journal_errors(folder):
            _write_folder(folder, found, progress)
            beside()
            found.check_unchanged()
            head.HeadFile.create(folder, found.head)
    except BaseException:
        for path in folder.iterdir():  # the folder was empty before
            with suppress(OSError):
                path.unlink()
        raise
    finally:
        os.close(lock)
    return _result(found)


def _write_folder(folder: Path, found: JournalSource, progress: Progress) -> None:
    """Write and compare everything except for the head file, without which the folder is not a journal."""
    reached = found.after
    path = segment.create(folder, reached, _PAGE_BYTES)
    writer = segment.open_writer(path)
    try:
        for batch in _batches(found.rows, found.head.seq - found.after.seq, progress):
            if reached.seq - segment.first_seq(path) + 1 >= SEGMENT_EVENTS:
                path = segment.create(folder, reached, _PAGE_BYTES)
                writer.close()
                writer = segment.open_writer(path)
            with segment.writing(folder):
                segment.write(writer, batch)
            reached = Position(batch[-1][0], batch[-1][2].hex())
    finally:
        with segment.writing(folder):
            writer.close()
    for snapshot in found.snapshots:
        snapshots.write(folder, snapshot)
    opening.examine(folder, found.head, None)
    _compare(str(folder), segment.read_rows(segment.segments_in(folder), found.after.seq), found, progress)


# --- a database --------------------------------------------------------------------------------------------------------


@contextmanager
def _from_database(url: str) -> Iterator[JournalSource]:
    from gpuyard.core.journal.stores import postgres_connection as database
    from gpuyard.core.journal.stores import postgres_tables as tables
    from gpuyard.core.journal.stores.postgres import take_lock

    address = database.DatabaseAddress.parse(url)
    with closing(database.connect(address, database.Waits())) as connection:
        tables.check_version(connection, address)
        take_lock(connection, address)
        written = tables.writer_state(connection, address)

        def check_unchanged() -> None:  # a scheduler that takes over does not wait for our lock
            if tables.writer_state(connection, address) != written:
                raise JournalLocked(f"A scheduler has begun to write the journal in {address.shown}. Stop it first.")

        contents = tables.Contents(address, database.asker(connection, address))
        reached = tables.examine(connection, address, None, notes=[])
        after = contents.after()
        kept = [each for each in contents.snapshots(notes=[]) if after.seq <= each.position.seq <= reached.seq]
        yield JournalSource(after, reached, kept[::-1], contents.rows(after.seq, reached.seq), check_unchanged)


def to_database(
    found: JournalSource,
    target: str,
    progress: Progress,
    beside: "Callable[[BoundedConnection, DatabaseAddress], None]" = lambda _connection, _address: None,
) -> CopyResult:
    """Copy a journal to a database without one. `beside` is called in the transaction that contains the journal."""
    from gpuyard.core.journal.stores import postgres_connection as database
    from gpuyard.core.journal.stores import postgres_tables as tables

    address = database.DatabaseAddress.parse(target)
    waits = database.Waits().longer(_LARGE)
    with (
        closing(database.connect(address, waits)) as connection,
        database.transaction(connection, address),
    ):
        if tables.has_tables(connection, address):
            raise JournalError(f"There is a journal in {address.shown} already. Choose another schema: ?schema=NAME.")
        tables.create_if_missing(connection, address, found.after)
        for batch in _batches(found.rows, found.head.seq - found.after.seq, progress):
            tables.load(connection, address, batch)
        tables.finish_loading(connection, address, found.head, found.snapshots)
        contents = tables.Contents(address, database.asker(connection, address))
        _compare(address.shown, contents.rows(found.after.seq, contents.head().seq), found, progress)
        beside(connection, address)
        found.check_unchanged()
    return _result(found)
