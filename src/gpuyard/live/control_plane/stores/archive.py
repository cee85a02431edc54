"""Ended tasks on disk, which are no longer in memory but still appear in every list.

    tasks     the columns that lists filter by: narrow, so that a scan without an index of a million rows is fast
    answers   the answer of the API for each task, ready to send
    counts    rows by (tenant, status, priority), updated in the same transaction: totals without counting
    keys      idempotency keys of submissions
    included  the last event of the journal that is included, written in the same transaction as its rows

The archive is derived from the journal. After a crash it may lack the newest rows, but never rows in between: `seq` is
the event after which rows must be added again. A damaged archive is set aside and replaced by an empty one; the journal
is not affected.

A page is merged from one index scan per status, newest first. Each scan stops when the page is full, so the cost of a
page depends on its size and not on the size of the archive.

Reads use their own connections and never wait for a writer. All methods may be called from any thread.
"""

import sqlite3
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from itertools import islice
from pathlib import Path
from threading import Lock
from typing import Self, TypeVar
from urllib.parse import quote

import msgspec

from gpuyard.core.domain.values import ENDED, TaskClass, TaskId, TaskStatus, TenantId, Value
from gpuyard.live.control_plane.stores.database import (
    DatabaseLayout,
    StoreDamaged,
    as_store_errors,
    connect,
    open_database,
    transaction,
)

_Item = TypeVar("_Item")
_WHAT = "ended tasks"
_HIGHEST = (1 << 63) - 1
"""The largest integer of SQLite."""
_ROWS_A_STATEMENT = 64
"""Rows per statement: SQLite releases and takes the interpreter lock once per statement."""
_LAYOUT = DatabaseLayout(
    what=_WHAT,
    version=1,
    durable=True,  # a snapshot may cover tasks that only the archive still holds
    exclusive=False,
    tables="""
        CREATE TABLE tasks (
            id INTEGER PRIMARY KEY, tenant TEXT NOT NULL, status TEXT NOT NULL, class TEXT NOT NULL,
            priority INTEGER NOT NULL, user TEXT NOT NULL, project TEXT NOT NULL, name TEXT NOT NULL,
            created_at REAL NOT NULL, finished_at REAL NOT NULL
        );
        CREATE INDEX by_status ON tasks (status);
        CREATE INDEX by_priority ON tasks (priority, status);
        CREATE INDEX by_tenant ON tasks (tenant, status);
        CREATE INDEX by_user ON tasks (user, status, id, tenant) WHERE user != '';
        CREATE INDEX by_project ON tasks (project, status, id, tenant) WHERE project != '';
        CREATE INDEX by_name ON tasks (name, status, id, tenant) WHERE name != '';
        CREATE INDEX by_created ON tasks (created_at, tenant, status, priority);
        CREATE INDEX by_finished ON tasks (finished_at);
        CREATE TABLE answers (id INTEGER PRIMARY KEY, answer BLOB NOT NULL);
        CREATE TABLE counts (
            tenant TEXT NOT NULL, status TEXT NOT NULL, priority INTEGER NOT NULL, count INTEGER NOT NULL,
            PRIMARY KEY (tenant, status, priority)
        ) WITHOUT ROWID;
        CREATE TRIGGER removed AFTER DELETE ON tasks BEGIN
            UPDATE counts SET count = count - 1
            WHERE tenant = old.tenant AND status = old.status AND priority = old.priority;
            DELETE FROM counts
            WHERE tenant = old.tenant AND status = old.status AND priority = old.priority AND count = 0;
            DELETE FROM answers WHERE id = old.id;
        END;
        CREATE TABLE keys (
            tenant TEXT NOT NULL, key TEXT NOT NULL, body_hash BLOB NOT NULL, tasks BLOB NOT NULL, at REAL NOT NULL,
            PRIMARY KEY (tenant, key)
        ) WITHOUT ROWID;
        CREATE INDEX keys_by_age ON keys (at);
        CREATE TABLE included (seq INTEGER NOT NULL);
        INSERT INTO included VALUES (0)
    """,
)


class ArchiveRow(Value, frozen=True):
    """An ended task: the columns that lists filter by, and the answer of the API."""

    id: TaskId
    tenant: TenantId
    status: TaskStatus
    task_class: TaskClass
    priority: int
    user: str
    project: str
    name: str
    created_at: float
    finished_at: float
    answer: bytes


class Filters(Value, frozen=True):
    """The filters of a list; a filter that is not given matches everything."""

    statuses: tuple[TaskStatus, ...] = ()
    tenant: TenantId | None = None
    priority: int | None = None
    user: str | None = None
    project: str | None = None
    name: str | None = None
    since: float | None = None
    """Created at this time or later."""


EVERYTHING = Filters()


class SubmitKey(Value, frozen=True):
    """An idempotency key with the digest of its request body and the resulting tasks."""

    tenant: TenantId
    key: str
    body_hash: bytes
    tasks: tuple[TaskId, ...]
    at: float


def newest_ended(path: Path, count: int) -> list[tuple[float, bytes]]:
    """Return the last `count` ended tasks of an archive, opened read-only: another process may be using it."""
    with (
        as_store_errors(path, _WHAT),
        closing(sqlite3.connect(f"file:{quote(str(path))}?mode=ro", uri=True)) as database,
    ):
        return _newest(database, count)


def _newest(database: sqlite3.Connection, count: int) -> list[tuple[float, bytes]]:
    found = database.execute(
        "SELECT finished_at, answer FROM tasks JOIN answers USING (id) ORDER BY finished_at DESC, id DESC LIMIT ?",
        (count,),
    ).fetchall()
    return found[::-1]


class Archive:
    """The ended tasks of a cluster. Create it with `open`."""

    def __init__(self, path: Path, writer: sqlite3.Connection, note: str | None) -> None:
        self._path = path
        self._writer = writer
        self._writing = Lock()
        self._idle_readers: list[sqlite3.Connection] = []
        self.note = note
        """A problem found when it was opened, as a message for the log; None if there was none."""
        self.seq = self._read_seq()
        """The last event of the journal that is included; later ones have to be added again."""

    @classmethod
    def open(cls, path: Path) -> Self:
        """Open the archive, or create it. A damaged one is set aside (see `note`) and replaced by an empty one."""
        try:
            return cls._open(path, None)
        except StoreDamaged as damage:
            return cls._open(path, _set_aside(path, damage))

    @classmethod
    def _open(cls, path: Path, note: str | None) -> Self:
        writer = _open_writer(path)
        try:
            return cls(path, writer, note)
        except BaseException:
            writer.close()
            raise

    def start_over(self, damage: StoreDamaged) -> str:
        """Set aside a file that proved damaged during use, create an empty one, and return a message about it."""
        with self._writing:
            self._drop_connections()
            sentence = _set_aside(self._path, damage)
            self._writer = _open_writer(self._path)
            self.seq = self._read_seq()
            return sentence

    def close(self) -> None:
        """Close all connections, leaving a single file without a write-ahead log."""
        with self._writing:
            self._drop_connections()

    # --- tasks --------------------------------------------------------------------------------------------------------

    def add(self, rows: Sequence[ArchiveRow], seq: int) -> None:
        """Add ended tasks, up to this event of the journal. A task that is already present is not changed."""
        by_id = {row.id: row for row in rows}
        with self._write() as database:
            for (known,) in database.execute(
                "SELECT id FROM tasks WHERE id IN (SELECT value FROM json_each(?))", (_json_list(by_id),)
            ).fetchall():
                del by_id[known]
            for chunk in _chunks(by_id.values()):
                _insert(database, "INSERT INTO tasks VALUES", [_columns(row) for row in chunk])
                _insert(database, "INSERT INTO answers VALUES", [(row.id, row.answer) for row in chunk])
            added = Counter((row.tenant, row.status, row.priority) for row in by_id.values())
            for counted in _chunks(added.items()):
                upsert = "ON CONFLICT DO UPDATE SET count = count + excluded.count"
                _insert(database, "INSERT INTO counts VALUES", [(*kind, count) for kind, count in counted], upsert)
            database.execute("UPDATE included SET seq = ?", (seq,))
        self.seq = seq

    def get(self, task: TaskId) -> bytes | None:
        """Return the answer of a task, or None."""
        if not 0 <= task <= _HIGHEST:
            return None
        with self._read() as database:
            found = database.execute("SELECT answer FROM answers WHERE id = ?", (task,)).fetchone()
        return found[0] if found else None

    def newest(self, count: int) -> list[tuple[float, bytes]]:
        """Return up to `count` tasks that ended last, in the order of their ends: time and answer."""
        with self._read() as database:
            return _newest(database, count)

    def statuses(self, tasks: Iterable[TaskId]) -> dict[TaskId, TaskStatus]:
        """Return the statuses of these tasks; tasks that are not archived are left out."""
        with self._read() as database:
            found = database.execute(
                "SELECT id, status FROM tasks WHERE id IN (SELECT value FROM json_each(?))",
                (_json_list(tasks),),
            ).fetchall()
        return {TaskId(task): TaskStatus(status) for task, status in found}

    def spans(self, tasks: Iterable[TaskId]) -> dict[TaskId, tuple[float, float]]:
        """Return when these tasks were created and when they ended; tasks that are not archived are left out."""
        with self._read() as database:
            found = database.execute(
                "SELECT id, created_at, finished_at FROM tasks WHERE id IN (SELECT value FROM json_each(?))",
                (_json_list(tasks),),
            ).fetchall()
        return {TaskId(task): (created_at, finished_at) for task, created_at, finished_at in found}

    def page(self, filters: Filters, before: TaskId | None, limit: int) -> list[tuple[TaskId, bytes]]:
        """Return up to `limit` tasks older than `before`, newest first."""
        walks, values = [], []
        with self._read() as database:
            oldest = _oldest(database, filters.since)
            for statuses in _walks(filters):
                conditions, asked = _conditions(filters, statuses)
                if oldest is not None:  # the scan ends there instead of at the oldest row
                    conditions.append("id >= ?")
                    asked.append(oldest)
                if before is not None:
                    conditions.append("id < ?")
                    asked.append(_bounded(before))
                walks.append(f"SELECT id FROM tasks {_index_for_page(filters)} {_where(conditions)}")  # noqa: S608
                values += asked
            if not walks or limit < 1:
                return []
            found = " UNION ALL ".join(walks) + " ORDER BY id DESC LIMIT ?"
            return database.execute(
                f"SELECT id, answer FROM ({found}) JOIN answers USING (id) ORDER BY id DESC",  # noqa: S608 - constants
                [*values, limit],
            ).fetchall()

    def count(self, filters: Filters = EVERYTHING) -> int:
        """Count the tasks of a list over all its pages."""
        statuses = _asked_statuses(filters)
        if not statuses:
            return 0
        conditions, values = _conditions(filters, statuses if filters.statuses else ())
        table = _table_for_count(filters)
        counted = "coalesce(sum(count), 0)" if table == "counts" else "count(*)"
        with self._read() as database:
            (count,) = database.execute(f"SELECT {counted} FROM {table} {_where(conditions)}", values).fetchone()  # noqa: S608
        return int(count)

    def retain(self, finished_since: float, step: int = 500) -> int:
        """Remove up to `step` tasks that ended before that time, the longest ended first.

        Returns the number removed; less than `step` means that nothing is left to remove. The file does not shrink, but
        its space is reused.
        """
        with self._write() as database:
            return database.execute(
                "DELETE FROM tasks WHERE id IN "
                "(SELECT id FROM tasks WHERE finished_at < ? ORDER BY finished_at, id LIMIT ?)",
                (finished_since, step),
            ).rowcount

    # --- idempotency keys ---------------------------------------------------------------------------------------------

    def remember(self, keys: Sequence[SubmitKey]) -> None:
        """Store the results of these keys. A key that is already present is not changed."""
        with self._write() as database:
            database.executemany(
                "INSERT OR IGNORE INTO keys VALUES (?, ?, ?, ?, ?)",
                [(key.tenant, key.key, key.body_hash, msgspec.json.encode(key.tasks), key.at) for key in keys],
            )

    def lookup(self, tenant: TenantId, key: str) -> SubmitKey | None:
        """Return the result of a key, or None."""
        with self._read() as database:
            found = database.execute(
                "SELECT body_hash, tasks, at FROM keys WHERE tenant = ? AND key = ?", (tenant, key)
            ).fetchone()
        if found is None:
            return None
        body_hash, tasks, at = found
        return SubmitKey(tenant, key, body_hash, msgspec.json.decode(tasks, type=tuple[TaskId, ...]), at)

    def all_keys(self) -> Iterator[tuple[TenantId, str]]:
        """Yield all keys with their tenants."""
        with self._read() as database:
            yield from database.execute("SELECT tenant, key FROM keys")

    def forget_keys(self, before: float, step: int = 500) -> int:
        """Delete up to `step` keys from before that time; return their number."""
        with self._write() as database:
            return database.execute(
                "DELETE FROM keys WHERE (tenant, key) IN (SELECT tenant, key FROM keys WHERE at < ? LIMIT ?)",
                (before, step),
            ).rowcount

    # --- connections --------------------------------------------------------------------------------------------------

    @contextmanager
    def _write(self) -> Iterator[sqlite3.Connection]:
        with self._writing, as_store_errors(self._path, _WHAT), transaction(self._writer):
            yield self._writer

    @contextmanager
    def _read(self) -> Iterator[sqlite3.Connection]:
        pool = self._idle_readers
        with as_store_errors(self._path, _WHAT):
            try:
                database = pool.pop()
            except IndexError:
                database = connect(self._path)
            try:
                yield database
            except BaseException:
                database.close()
                raise
            if pool is self._idle_readers:
                pool.append(database)
            else:  # the file was closed or set aside meanwhile
                database.close()

    def _drop_connections(self) -> None:
        readers, self._idle_readers = self._idle_readers, []
        for database in (*readers, self._writer):
            database.close()

    def _read_seq(self) -> int:
        with as_store_errors(self._path, _WHAT):
            (seq,) = self._writer.execute("SELECT seq FROM included").fetchone()
        return int(seq)


def _open_writer(path: Path) -> sqlite3.Connection:
    writer = open_database(path, _LAYOUT)
    # Index writes are scattered: the more changes collect in a page before it is written, the less is written in total.
    writer.execute("PRAGMA cache_size = -16000")  # KiB
    writer.execute("PRAGMA wal_autocheckpoint = 4000")  # pages, 16 MB
    return writer


def _set_aside(path: Path, damage: StoreDamaged) -> str:
    number = 1
    while (aside := path.with_name(f"{path.name}.damaged-{number}")).exists():
        number += 1
    with as_store_errors(path, _WHAT):
        path.rename(aside)
        with suppress(FileNotFoundError):
            path.with_name(path.name + "-wal").rename(aside.with_name(aside.name + "-wal"))
        path.with_name(path.name + "-shm").unlink(missing_ok=True)
    return (
        f"The archive of ended tasks was damaged and replaced by an empty one; the old file is {aside.name}. ({damage})"
    )


# --- SQL --------------------------------------------------------------------------------------------------------------


def _asked_statuses(filters: Filters) -> list[TaskStatus]:
    return [status for status in ENDED if status in filters.statuses or not filters.statuses]


def _conditions(filters: Filters, statuses: Collection[TaskStatus]) -> tuple[list[str], list[object]]:
    conditions: list[str] = []
    values: list[object] = []
    for column in ("tenant", "priority", "user", "project", "name"):
        value = getattr(filters, column)
        if value is not None:
            conditions.append(f"{column} = ?")
            values.append(_bounded(value) if isinstance(value, int) else value)
            if column in _PARTIAL and value:
                conditions.append(f"{column} != ''")  # lets SQLite use the partial index
    if filters.since is not None:
        conditions.append("created_at >= ?")
        values.append(filters.since)
    if statuses:
        conditions.append(f"status IN ({', '.join('?' * len(statuses))})")
        values += statuses
    return conditions, values


def _bounded(number: int) -> int:
    """Clamp a number to the range of SQLite; no row has a number outside it."""
    return max(-1, min(number, _HIGHEST))


def _where(conditions: Sequence[str]) -> str:
    return f"WHERE {' AND '.join(conditions)}" if conditions else ""


_PARTIAL = ("name", "project", "user")
"""From usually most to least selective. Rows with an empty value are not in its index."""


_BY_AGE = "NOT INDEXED"
"""Scan in the order of the primary key, which is the order of submission."""


def _narrowest(filters: Filters) -> str | None:
    return next((column for column in _PARTIAL if getattr(filters, column)), None)


def _walks(filters: Filters) -> list[tuple[TaskStatus, ...]]:
    """Return the statuses of each scan: one each for an index, in which only rows of one status are ordered by age."""
    if _index_for_page(filters) == _BY_AGE:
        return [()]
    return [(status,) for status in _asked_statuses(filters)]


def _oldest(database: sqlite3.Connection, since: float | None) -> int | None:
    """Return the lowest number of the tasks created since then; a number beyond all tasks if there is none."""
    if since is None:
        return None
    query = "SELECT coalesce(min(id), 1 << 62) FROM tasks INDEXED BY by_created WHERE created_at >= ?"
    (oldest,) = database.execute(query, (since,)).fetchone()
    return int(oldest)


def _index_for_page(filters: Filters) -> str:
    if column := _narrowest(filters):
        return f"INDEXED BY by_{column}"
    if filters.tenant is not None:
        return "INDEXED BY by_tenant"
    if filters.priority is not None:
        return "INDEXED BY by_priority"
    return "INDEXED BY by_status" if filters.statuses else _BY_AGE


def _table_for_count(filters: Filters) -> str:
    if column := _narrowest(filters):
        return f"tasks INDEXED BY by_{column}"
    if filters.since is not None:
        return "tasks INDEXED BY by_created"
    return "counts" if all(getattr(filters, column) is None for column in _PARTIAL) else "tasks"


def _columns(row: ArchiveRow) -> tuple[object, ...]:
    return (
        row.id,
        row.tenant,
        row.status,
        row.task_class,
        row.priority,
        row.user,
        row.project,
        row.name,
        row.created_at,
        row.finished_at,
    )


def _insert(database: sqlite3.Connection, into: str, rows: Sequence[Sequence[object]], otherwise: str = "") -> None:
    places = ", ".join([f"({', '.join('?' * len(rows[0]))})"] * len(rows))
    database.execute(f"{into} {places} {otherwise}", [value for row in rows for value in row])


def _chunks(items: Iterable[_Item]) -> Iterator[list[_Item]]:
    remaining = iter(items)
    while chunk := list(islice(remaining, _ROWS_A_STATEMENT)):
        yield chunk


def _json_list(tasks: Iterable[TaskId]) -> str:
    return msgspec.json.encode(list(tasks)).decode()
