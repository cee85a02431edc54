"""Small SQLite files next to the journal: created atomically, readable by their owner only, with actionable errors.

    GpuyardError
    └── StoreError            caller or environment: the file cannot be used; the message says why
        ├── StoreDamaged      environment: the file was damaged or changed; retrying does not help
        ├── StoreFromFuture   caller: a newer gpuyard wrote it; use that version
        ├── StoreFromPast     caller: an older gpuyard wrote it, in a version that is no longer read
        ├── StoreLocked       caller: another process uses it; stop that process
        ├── StoreMissing      caller: nothing is there yet; the scheduler that leads creates it
        ├── StoreFull         environment: no space left, nothing was written; free some and retry
        └── StoreUnreachable  environment: the database does not answer; the outcome is unknown, retry

A file is created under another name and renamed when it is complete, so an existing empty file is damaged, not new.
"""

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from urllib.parse import quote

from gpuyard.core.domain.errors import GpuyardError
from gpuyard.core.domain.values import Value
from gpuyard.system.files import no_space_left, replacing

_OURS = 0x47594152
"""SQLite's application id, "GYAR": the database of another program is not mistaken for ours."""


class StoreError(GpuyardError):
    """A file beside the journal cannot be used."""


class StoreDamaged(StoreError):
    """A file beside the journal is damaged. Restore it from a backup, or move it away to begin with an empty one."""


class StoreFromFuture(StoreError):
    """A file beside the journal was written by a newer gpuyard. Run that version, or a newer one."""


class StoreFromPast(StoreError):
    """A file beside the journal was written by an older gpuyard. Start gpuyard once with the previous version."""


class StoreLocked(StoreError):
    """Another process uses a file beside the journal. Stop it first."""


class StoreMissing(StoreError):
    """The tables beside the journal are not there yet. Start a scheduler that writes first."""


class StoreFull(StoreError):
    """There is no space left beside the journal. Nothing was written; free some space and try again."""


class StoreUnreachable(StoreError):
    """The database beside the journal does not answer. Try again; a change is not made twice."""


class DatabaseLayout(Value, frozen=True):
    """The contents of a file and how it is stored."""

    what: str
    """Name of the contents for messages: "users and tokens"."""
    version: int
    """Version of the tables; a file with a higher version is not touched."""
    tables: str
    durable: bool
    """A commit survives a power loss; otherwise only a killed process, for data that can be derived again."""
    exclusive: bool
    """No other process may open it, because memory holds its contents too. It is small, so it is checked completely."""
    upgrades: tuple[str, ...] = ()
    """Scripts that upgrade a file from version 1, 2 and so on to the next version."""


def open_database(path: Path, layout: DatabaseLayout) -> sqlite3.Connection:
    """Open a file, or create it if there is none."""
    with as_store_errors(path, layout.what):
        if not path.exists():
            create_database(path, layout)
        path.chmod(0o600)
        database = connect(path)
        try:
            if layout.exclusive:
                database.execute("PRAGMA locking_mode = EXCLUSIVE")
            _check_header(database, path, layout)
            _upgrade(database, path, layout)
            if layout.exclusive:
                _check_whole(database, path, layout)
            database.execute("PRAGMA journal_mode = WAL")
            database.execute(f"PRAGMA synchronous = {'FULL' if layout.durable else 'NORMAL'}")
            database.execute("PRAGMA foreign_keys = ON")
            database.execute("BEGIN IMMEDIATE")  # fails now if it cannot be written
            database.execute("ROLLBACK")
        except BaseException:
            database.close()
            raise
    return database


def connect(path: Path) -> sqlite3.Connection:
    """Open another connection to an existing file. Threads that share it must take turns."""
    return sqlite3.connect(
        f"file:{quote(str(path))}?mode=rw", uri=True, isolation_level=None, check_same_thread=False, timeout=2.0
    )


@contextmanager
def transaction(database: sqlite3.Connection) -> Iterator[None]:
    """Commit the statements of the block, or roll all of them back."""
    database.execute("BEGIN IMMEDIATE")
    try:
        yield
        database.execute("COMMIT")
    except BaseException:
        if database.in_transaction:
            database.execute("ROLLBACK")
        raise


@contextmanager
def as_store_errors(path: Path, what: str) -> Iterator[None]:
    """Convert errors of SQLite and the file system to `StoreError` with a message."""
    try:
        yield
    except sqlite3.Error as error:
        raise _spoken(path, what, error) from error
    except OSError as error:
        raise StoreError(
            f"{path} ({what}) cannot be used: {error.strerror or error}. Check the folder and its permissions."
        ) from error


def _spoken(path: Path, what: str, error: sqlite3.Error) -> StoreError:
    name: str = getattr(error, "sqlite_errorname", "")
    if name.startswith(("SQLITE_CORRUPT", "SQLITE_NOTADB")):
        return _damaged(path, what, str(error))
    if name.startswith(("SQLITE_BUSY", "SQLITE_LOCKED")):
        return StoreLocked(f"Another process uses {path} ({what}). Stop it first.")
    if name == "SQLITE_FULL" or (name.startswith("SQLITE_IOERR") and no_space_left(path.parent)):
        return StoreFull(f"No space is left for {path} ({what}). Nothing was written; free disk space and try again.")
    if name.startswith(("SQLITE_READONLY", "SQLITE_CANTOPEN", "SQLITE_PERM")):
        return StoreError(
            f"{path} ({what}) cannot be written. Check the owner and the permissions of the file and its folder."
        )
    return StoreError(f"{path} ({what}) cannot be used: {error}.")


def _damaged(path: Path, what: str, how: str) -> StoreDamaged:
    return StoreDamaged(
        f"{path} ({what}) is damaged: {how}. Restore it from a backup, or move it away to start with an empty one."
    )


def create_database(
    path: Path, layout: DatabaseLayout, fill: Callable[[sqlite3.Connection], object] = lambda _: None
) -> None:
    """Create a file with its tables, or replace it; under its name it exists only with what `fill` writes to it."""
    with as_store_errors(path, layout.what):
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as new, closing(connect(new)) as database:
            database.executescript(f"BEGIN; {layout.tables}; COMMIT;")
            database.execute(f"PRAGMA application_id = {_OURS}")
            database.execute(f"PRAGMA user_version = {layout.version}")
            fill(database)


def _check_header(database: sqlite3.Connection, path: Path, layout: DatabaseLayout) -> None:
    (ours,) = database.execute("PRAGMA application_id").fetchone()
    (version,) = database.execute("PRAGMA user_version").fetchone()
    if ours != _OURS:
        raise _damaged(path, layout.what, "it is not a file of gpuyard")
    if version > layout.version:
        raise StoreFromFuture(
            f"{path} ({layout.what}) was written by a newer gpuyard. Use that version or a newer one."
        )


def _upgrade(database: sqlite3.Connection, path: Path, layout: DatabaseLayout) -> None:
    """Upgrade an older file to the current version, one step at a time, each in one transaction."""
    (version,) = database.execute("PRAGMA user_version").fetchone()
    for number in range(version, layout.version):
        if number > len(layout.upgrades) or number < 1:
            message = f"{path} ({layout.what}) has version {number}, which this gpuyard no longer reads."
            raise StoreFromPast(f"{message} Start gpuyard once with the previous version.")
        database.executescript(f"BEGIN; {layout.upgrades[number - 1]}; PRAGMA user_version = {number + 1}; COMMIT;")


def _check_whole(database: sqlite3.Connection, path: Path, layout: DatabaseLayout) -> None:
    (verdict,) = database.execute("PRAGMA quick_check(1)").fetchone()
    if verdict != "ok":
        raise _damaged(path, layout.what, str(verdict).splitlines()[-1])
