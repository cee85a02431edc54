"""Copy a journal to another place: a folder (SQLite) or a database (PostgreSQL), in any combination.

The copy holds the same events with the same numbers and hashes, and the same snapshots. The source is locked and checked,
and otherwise only read. The target must be empty. It counts as a journal only at the very end: a folder gets its head
file last, a database gets everything in one transaction. Then the whole copy is read again and compared by hash.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from gpuyard.core.domain.errors import JournalDamaged, JournalError, NoJournal
from gpuyard.core.domain.values import Value
from gpuyard.core.journal import snapshots
from gpuyard.core.journal.files import as_journal_errors
from gpuyard.core.journal.folders import closed_folder
from gpuyard.core.journal.records import Position, Snapshot
from gpuyard.core.journal.stores import head, opening, segment
from gpuyard.core.journal.stores.segment import SegmentRow
from gpuyard.core.journal.stores.sqlite import SEGMENT_EVENTS, SqliteJournal

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


class _Source(NamedTuple):
    after: Position
    """The position that the oldest event follows."""
    head: Position
    snapshots: list[Snapshot]
    """The older one first."""
    rows: Iterator[SegmentRow]
    """All events, each checked against the chain."""


def is_url(place: str) -> bool:
    """Whether this names a database and not a folder."""
    return place.startswith(("postgresql://", "postgres://"))


def copy_journal(source: str, target: str, progress: Progress) -> CopyResult:
    """Copy a journal from one place to another; each is a folder or a URL."""
    with _from_database(source) if is_url(source) else _from_folder(Path(source)) as found:
        writing = _to_database if is_url(target) else _to_folder
        writing(target, found, progress)
        return CopyResult(found.head.seq - found.after.seq, len(found.snapshots), found.after.seq, found.head)


def _batches(rows: Iterator[SegmentRow], total: int, progress: Progress) -> Iterator[Sequence[SegmentRow]]:
    done = 0
    progress("copied", done, total)
    while batch := list(islice(rows, _BATCH)):
        yield batch
        done += len(batch)
        progress("copied", done, total)


def _compare(place: str, rows: Iterator[SegmentRow], found: _Source, progress: Progress) -> None:
    """Read a copy again, which checks every event, and compare its end with the source."""
    reached, total = found.after, found.head.seq - found.after.seq
    for seq, _, digest in rows:
        if seq % _BATCH == 0:
            progress("checked", seq - found.after.seq, total)
        reached = Position(seq, digest.hex())
    if reached != found.head:
        raise JournalDamaged(f"The copy in {place} ends at event {reached.seq} and differs from its source. Remove it.")
    progress("checked", total, total)


# --- a folder ----------------------------------------------------------------------------------------------------------


@contextmanager
def _from_folder(folder: Path) -> Iterator[_Source]:
    """Lock and check the journal in a folder, or in the data folder of a cluster."""
    if not segment.segments_in(folder) and segment.segments_in(folder / "journal"):
        folder /= "journal"
    if not segment.segments_in(folder):
        raise NoJournal(f"There is no journal in {folder}.")
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
        yield _Source(after, found.head, kept[::-1], rows)
    finally:
        os.close(lock)


def _to_folder(target: str, found: _Source, progress: Progress) -> None:
    folder = Path(target)
    with as_journal_errors(folder):
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise JournalError(f"{folder} is not an empty folder. Copy to a new one.")
        closed_folder(folder, "target folder", "--to")
        lock = opening.take_lock(folder)
    try:
        with as_journal_errors(folder):
            _write_folder(folder, found, progress)
    except BaseException:
        for path in folder.iterdir():  # the folder was empty before
            with suppress(OSError):
                path.unlink()
        raise
    finally:
        os.close(lock)
    journal = SqliteJournal.open(folder, witness=found.head)
    journal.close()
    _compare(target, segment.read_rows(segment.segments_in(folder), found.after.seq), found, progress)


def _write_folder(folder: Path, found: _Source, progress: Progress) -> None:
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
    head.HeadFile.create(folder, found.head)


# --- a database --------------------------------------------------------------------------------------------------------


@contextmanager
def _from_database(url: str) -> Iterator[_Source]:
    """Lock and check the journal in a database."""
    from gpuyard.core.journal.stores import postgres_connection as database
    from gpuyard.core.journal.stores import postgres_tables as tables
    from gpuyard.core.journal.stores.postgres import take_lock

    address = database.DatabaseAddress.parse(url)
    with closing(database.connect(address, database.Waits())) as connection:
        tables.check_version(connection, address)
        take_lock(connection, address)
        contents = tables.Contents(address, database.asker(connection, address))
        reached = tables.examine(connection, address, None, notes=[])
        after = contents.after()
        kept = [each for each in contents.snapshots(notes=[]) if after.seq <= each.position.seq <= reached.seq]
        yield _Source(after, reached, kept[::-1], contents.rows(after.seq, reached.seq))


def _to_database(target: str, found: _Source, progress: Progress) -> None:
    from gpuyard.core.journal.stores import postgres_connection as database
    from gpuyard.core.journal.stores import postgres_tables as tables

    address = database.DatabaseAddress.parse(target)
    with closing(database.connect(address, database.Waits().longer(_LARGE))) as connection:
        with database.transaction(connection, address):
            if tables.has_tables(connection, address):
                raise JournalError(
                    f"There is a journal in {address.shown} already. Choose another schema: ?schema=NAME."
                )
            tables.create_if_missing(connection, address, found.after)
            for batch in _batches(found.rows, found.head.seq - found.after.seq, progress):
                tables.load(connection, address, batch)
            tables.finish_loading(connection, address, found.head, found.snapshots)
        contents = tables.Contents(address, database.asker(connection, address))
        _compare(address.shown, contents.rows(found.after.seq, contents.head().seq), found, progress)
