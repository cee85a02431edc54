"""One segment: an SQLite database with a run of consecutive events, named after the first of them.

A segment records the position it follows, so segments form a chain like the events in them. It is created under a
temporary name and renamed when it is complete. All segments stay in write-ahead mode; SQLite removes the log when the
last connection closes cleanly, and a segment without a log is one plain file that can be copied, moved and read
anywhere. A retired segment may be compressed with gzip (facts-….sqlite.gz); it can then only be read.

All content is verified when it is read: the schema must match exactly, the numbers must have no gaps, every payload
must match its hash, and every hash must follow from the one before it.

Do not open a segment with anything but SQLite while this process has a connection to it. POSIX releases all locks that
a process holds on a file when it closes any descriptor of that file, and SQLite's locks would be lost.
"""

import gzip
import sqlite3
import zlib
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, nullcontext, suppress
from hashlib import blake2b
from pathlib import Path
from shutil import copyfileobj
from tempfile import TemporaryDirectory

from gpuyard.core.domain.errors import JournalDamaged, JournalError, JournalFromFuture, StorageFull
from gpuyard.core.journal.chain import link
from gpuyard.core.journal.files import as_journal_errors, no_descriptor, no_space
from gpuyard.core.journal.records import HASH_BYTES, Position
from gpuyard.core.journal.stores import wal
from gpuyard.system.files import no_descriptor_left, no_space_left, sync_file, sync_folder
from gpuyard.system.sqlite_rows import insert_rows

FORMAT = 1
WAY_OUT = (
    "Restore the folder from a backup, or recover the readable part: python -m "
    "gpuyard.core.journal.salvage FOLDER NEW_FOLDER."
)
PACKED = ".gz"
_PATTERN = "facts-*.sqlite"
_CHUNK = 4096
_SMALLEST_PAGE = 512
_SCHEMA = [
    "CREATE TABLE fact (seq INTEGER PRIMARY KEY, payload BLOB NOT NULL, hash BLOB NOT NULL)",
    "CREATE TABLE segment (format INTEGER NOT NULL, after_seq INTEGER NOT NULL, after_hash BLOB NOT NULL, checksum BLOB NOT NULL)",
]
_HEADER_FROM_18 = bytes([2, 2, 0, 64, 32, 32])
"""Bytes 18 to 23 of an SQLite file: write-ahead mode (write, read), no reserved bytes, three format constants."""
_NOT_DAMAGE = {
    sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM, sqlite3.SQLITE_READONLY,
    sqlite3.SQLITE_NOMEM, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_INTERRUPT,
}  # fmt: skip

SQLITE_SAYS = (sqlite3.Error, UnicodeDecodeError)
"""The exceptions sqlite3 raises for a damaged file; the second if the message quotes damaged bytes."""

SegmentRow = tuple[int, bytes, bytes]
"""Number, payload, hash."""


def segments_in(folder: Path) -> list[Path]:
    """Return the segments in a folder, oldest first."""
    return sorted(path for path in folder.glob(_PATTERN) if path.stem.removeprefix("facts-").isdecimal())


def segments_with_packed(folder: Path) -> list[Path]:
    """Return the segments in a folder, packed or plain, oldest first; the plain one if both exist."""
    packed = {first_seq(path): path for path in folder.glob(_PATTERN + PACKED)}
    both = packed | {first_seq(path): path for path in segments_in(folder)}
    return [both[seq] for seq in sorted(both)]


def first_seq(path: Path) -> int:
    """Return the number of a segment's first event, even if the segment is still empty."""
    return int(path.name.partition(".")[0].removeprefix("facts-"))


def damaged(path: Path, seq: int, what: str) -> JournalDamaged:
    """Return the error that names the place of the damage and the way out."""
    return JournalDamaged(f"{path.name} in {path.parent} is damaged at event {seq}: {what}. {WAY_OUT}")


def create(folder: Path, after: Position, page_bytes: int) -> Path:
    """Create an empty segment that follows a position, durably; return its path."""
    path = folder / f"facts-{after.seq + 1:012d}.sqlite"
    beside = path.with_name(path.name + ".new")
    after_hash = bytes.fromhex(after.hash)
    try:
        with as_journal_errors(folder):
            beside.unlink(missing_ok=True)
            beside.touch(mode=0o600)  # SQLite gives its logs the same mode
            with writing(folder), closing(_connect(beside, "mode=rw")) as connection:
                connection.execute(f"PRAGMA page_size={page_bytes:d}")
                _set_durable(connection)
                connection.execute("BEGIN IMMEDIATE")
                for statement in _SCHEMA:
                    connection.execute(statement)
                row = (FORMAT, after.seq, after_hash, _checksum(FORMAT, after.seq, after_hash))
                connection.execute("INSERT INTO segment VALUES (?, ?, ?, ?)", row)
                connection.execute("COMMIT")
            sync_file(beside)
            beside.replace(path)
            sync_folder(folder)
    except JournalError:
        with suppress(OSError):
            remove_unfinished(folder)
        raise
    return path


def remove_unfinished(folder: Path) -> None:
    """Remove the unfinished files of a killed writer."""
    for leftover in folder.glob("*.new*"):
        leftover.unlink()


def check_header(path: Path) -> None:
    """Raise JournalDamaged if header bytes differ that SQLite accepts and reads correctly, but then writes wrongly.

    They never change during the life of a segment. This process must have no connection to the segment.
    """
    with as_journal_errors(path.parent), path.open("rb") as file:
        beginning = file.read(24)
    if beginning[:16] != b"SQLite format 3\0" or beginning[18:] != _HEADER_FROM_18:
        raise damaged(path, first_seq(path), "it does not begin like an SQLite database in write-ahead mode")


def open_writer(path: Path) -> sqlite3.Connection:
    """Open a connection whose commits are durable when they return, and move the log into the database."""
    with writing(path.parent), as_journal_errors(path.parent):
        # The last commit of a killed writer may be in the log but not yet on disk. From now on it counts as durable.
        if wal.path_of(path).exists():
            sync_file(wal.path_of(path))
        connection = _connect(path, "mode=rw")
        try:
            _set_durable(connection)
            _move_log(connection)
        except BaseException:
            connection.close()
            raise
        return connection


def _move_log(connection: sqlite3.Connection) -> None:
    try:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    except sqlite3.OperationalError as error:
        if _code(error) != sqlite3.SQLITE_FULL:
            raise
        # The events are as safe in the log as in the database. They are moved when there is space again.


def checkpoint_log(path: Path) -> bool:
    """Move the rest of a full segment's log into the database. Return False if a reader prevents it."""
    with writing(path.parent), closing(_connect(path, "mode=rw")) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    return not wal.path_of(path).exists()


def write(connection: sqlite3.Connection, rows: Sequence[SegmentRow]) -> None:
    """Commit these events, all or none."""
    connection.execute("BEGIN IMMEDIATE")
    insert_rows(connection, "INSERT INTO fact VALUES", rows)
    connection.execute("COMMIT")


@contextmanager
def writing(folder: Path) -> Iterator[None]:
    """Convert SQLite errors during a write to journal errors."""
    try:
        yield
    except SQLITE_SAYS as error:
        code = _code(error)
        if code == sqlite3.SQLITE_FULL or (code == sqlite3.SQLITE_IOERR and no_space_left(folder)):
            raise no_space(folder) from error
        if code in {sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_IOERR} and no_descriptor_left():
            raise no_descriptor(folder) from error
        if code in {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}:
            raise JournalDamaged(f"The journal in {folder} cannot be written: {error}. {WAY_OUT}") from error
        raise JournalError(f"Writing to the journal in {folder} failed: {error}. Open it again.") from error


@contextmanager
def reader(path: Path) -> Iterator[sqlite3.Connection]:
    """Open a connection that changes nothing, not even when it closes. A packed segment is unpacked temporarily."""
    with _unpacked(path) if path.suffix == PACKED else nullcontext(path) as file:
        with as_journal_errors(path.parent):
            # SQLite treats a file without a complete first page as a new database, and deletes the log next to it.
            cut = file.stat().st_size < _SMALLEST_PAGE
            log_there = wal.path_of(file).exists()
        if cut:
            raise damaged(path, first_seq(path), "the file is cut short")
        try:
            # Without a log the file does not change; `immutable` keeps SQLite from creating files next to it.
            with closing(_connect(file, "mode=ro" if log_there else "mode=ro&immutable=1")) as connection:
                yield connection
        except SQLITE_SAYS as error:
            raise _unreadable(path, first_seq(path), error) from error


@contextmanager
def _unpacked(path: Path) -> Iterator[Path]:
    with TemporaryDirectory(prefix="gpuyard-") as folder:
        plain = Path(folder) / path.stem
        with as_journal_errors(path.parent), gzip.open(path) as packed, plain.open("wb") as file:
            try:
                copyfileobj(packed, file)
            except (EOFError, gzip.BadGzipFile, zlib.error) as error:
                raise damaged(path, first_seq(path), f"it cannot be unpacked ({error})") from error
        yield plain


def start_of(path: Path, connection: sqlite3.Connection) -> Position:
    """Return the position that a segment follows, as recorded in it; check its format and schema."""
    first = first_seq(path)
    row = connection.execute("SELECT format, after_seq, after_hash, checksum FROM segment").fetchone()
    if row is None or row[3] != _checksum(*row[:3]):
        raise damaged(path, first, "its first page does not say which event it follows")
    if row[0] > FORMAT:
        raise JournalFromFuture(
            f"{path.name} has format {row[0]}, and this gpuyard reads up to {FORMAT}: a "
            "newer one wrote it. Use that version or a newer one."
        )
    schema = connection.execute("SELECT CAST(sql AS BLOB) FROM sqlite_master ORDER BY name").fetchall()
    if schema != [(statement.encode(),) for statement in _SCHEMA] or row[1] != first - 1:
        raise damaged(path, first, "its first page is not what was written")
    return Position(row[1], bytes(row[2]).hex())


def read_rows(paths: Sequence[Path], after: int = 0, until: int | None = None) -> Iterator[SegmentRow]:
    """Iterate over all events after a number, across segments; each is checked. No lock is held between chunks."""
    seq, digest = after, b""
    for path in _from(paths, after):
        with reader(path) as connection:
            start = start_of(path, connection)
            if not digest:
                digest = _hash_at(path, connection, start, after)
            elif start != Position(seq, digest.hex()):
                raise damaged(path, seq + 1, f"it follows event {start.seq}, and event {seq} is the last before it")
            for chunk in _chunks(path, connection, seq, until):
                for row in chunk:
                    seq += 1
                    if row[0] != seq or type(row[1]) is not bytes or row[2] != (digest := link(digest, row[1])):
                        raise damaged(path, seq, "it is not there" if row[0] != seq else "it does not fit its hash")
                    yield row
    if until is not None and seq < until:
        raise damaged(paths[-1], seq + 1, "it is not there")


def position_at(paths: Sequence[Path], seq: int) -> Position:
    """Return the position of a stored event, as recorded in its segment; the chain is not checked."""
    path = _from(paths, seq)[0]
    with reader(path) as connection:
        return Position(seq, _hash_at(path, connection, start_of(path, connection), seq).hex())


def last_seq(path: Path) -> int:
    """Return the highest number in a segment; the number before its first if it is empty."""
    with reader(path) as connection:
        (highest,) = connection.execute("SELECT max(seq) FROM fact").fetchone()
        if highest is None:
            return first_seq(path) - 1
        if not isinstance(highest, int):
            raise damaged(path, first_seq(path), "its last event has no number")
        return highest


def _from(paths: Sequence[Path], after: int) -> Sequence[Path]:
    """Return the segments that are needed to read on after an event."""
    begun = [index for index, path in enumerate(paths) if first_seq(path) <= after + 1]
    if not begun:
        there = f"the first that is there is {first_seq(paths[0])}" if paths else "nothing is there"
        raise JournalError(
            f"The journal cannot be read from event {after + 1}: {there}. "
            "Start from the newest snapshot, or look where retired ones are kept."
        )
    return paths[begun[-1] :]


def _hash_at(path: Path, connection: sqlite3.Connection, start: Position, seq: int) -> bytes:
    if seq == start.seq:
        return bytes.fromhex(start.hash)
    row = connection.execute("SELECT hash FROM fact WHERE seq = ?", (seq,)).fetchone()
    if row is None or not isinstance(row[0], bytes) or len(row[0]) != HASH_BYTES:
        raise damaged(path, seq, "it is not there")
    return row[0]


def _chunks(path: Path, connection: sqlite3.Connection, seq: int, until: int | None) -> Iterator[list[SegmentRow]]:
    while True:
        end = seq + _CHUNK if until is None else min(seq + _CHUNK, until)
        query = "SELECT seq, payload, hash FROM fact WHERE seq > ? AND seq <= ? ORDER BY seq"
        try:
            chunk = connection.execute(query, (seq, end)).fetchall()
        except SQLITE_SAYS as error:
            raise _unreadable(path, seq + 1, error) from error
        if chunk:
            yield chunk
        if len(chunk) < _CHUNK:
            return
        seq = end


def _unreadable(path: Path, seq: int, error: Exception) -> JournalError:
    code = _code(error)
    if code in {sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR} and no_space_left(path.parent):
        return StorageFull(
            f"There is no space left in {path.parent}, not even to open the journal; free some and try again."
        )
    if code in _NOT_DAMAGE:
        return JournalError(f"{path.name} in {path.parent} cannot be read: {error}.")
    return damaged(path, seq, str(error))


def _connect(path: Path, mode: str) -> sqlite3.Connection:
    # Autocommit: this module begins and ends transactions explicitly. The journal's mutex guards the writer.
    connection = sqlite3.connect(
        f"{path.absolute().as_uri()}?{mode}", uri=True, isolation_level=None, check_same_thread=False
    )
    connection.text_factory = bytes
    return connection


def _set_durable(connection: sqlite3.Connection) -> None:
    (mode,) = connection.execute("PRAGMA journal_mode=WAL").fetchone()
    if mode not in {b"wal", "wal"}:
        raise sqlite3.OperationalError("the file system does not allow a write-ahead log")
    connection.execute("PRAGMA synchronous=FULL")


def _code(error: Exception) -> int:
    code: int = getattr(error, "sqlite_errorcode", 0)
    return code & 0xFF


def _checksum(form: object, seq: object, digest: object) -> bytes:
    return blake2b(repr((form, seq, digest)).encode(), digest_size=8).digest()
