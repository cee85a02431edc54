"""Ended tasks, out of memory and still in every list.

    tasks     what lists filter by: narrow, so that even a filter without an index passes a million rows in a blink
    answers   what the API says of each task, ready to send
    counts    rows by (tenant, status, priority), changed together with them: totals without counting
    keys      idempotency keys of submits
    included  the last fact of the journal that is in here, written together with the rows it gave

The archive is derived from the journal. After a crash it may lack the newest rows, never some in between: `seq` says from
which fact on to add again. A damaged archive is set aside and begun anew; the journal is not touched by that.

A page is merged from one index walk for each status, newest first: each walk stops where the page is full, so a page
costs what it shows and not what the archive holds.

Reading has connections of its own and never waits for a writer. All calls may come from any thread.
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
"""No number of SQLite's is above it."""
_ROWS_A_STATEMENT = 64
"""Many rows in one statement: SQLite hands the interpreter back and forth once for all of them."""
_LAYOUT = DatabaseLayout(
    what=_WHAT,
    version=1,
    durable=True,  # a snapshot may cover what only the archive still has
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
    """An ended task: what lists filter by, and the answer the API gives."""

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
    """What a list is to hold; whatever is not given is not asked for."""

    statuses: tuple[TaskStatus, ...] = ()
    tenant: TenantId | None = None
    priority: int | None = None
    user: str | None = None
    project: str | None = None
    name: str | None = None
    since: float | None = None
    """Created at this instant or later."""


EVERYTHING = Filters()


class SubmitKey(Value, frozen=True):
    """An idempotency key: which body it came with, and which tasks that gave."""

    tenant: TenantId
    key: str
    body_hash: bytes
    tasks: tuple[TaskId, ...]
    at: float


def newest_ended(path: Path, count: int) -> list[tuple[float, bytes]]:
    """So many tasks that ended last, of an archive that somebody else may be using: it is only read."""
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
    """The ended tasks of a yard. Made by `open`."""

    def __init__(self, path: Path, writer: sqlite3.Connection, note: str | None) -> None:
        self._path = path
        self._writer = writer
        self._writing = Lock()
        self._idle_readers: list[sqlite3.Connection] = []
        self.note = note
        """What was noticed when it was opened and is not as it should be: a sentence for the log."""
        self.seq = self._read_seq()
        """The last fact of the journal that is in here; what came later has to be added again."""

    @classmethod
    def open(cls, path: Path) -> Self:
        """Open the archive, or begin one. A damaged one is set aside (see `note`), and an empty one begun in its place."""
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
        """Set a file aside that turned out damaged while in use, begin an empty one, and say so in a sentence."""
        with self._writing:
            self._drop_connections()
            sentence = _set_aside(self._path, damage)
            self._writer = _open_writer(self._path)
            self.seq = self._read_seq()
            return sentence

    def close(self) -> None:
        """Leave one plain file."""
        with self._writing:
            self._drop_connections()

    # --- tasks --------------------------------------------------------------------------------------------------------

    def add(self, rows: Sequence[ArchiveRow], seq: int) -> None:
        """Add tasks that ended, up to this fact of the journal. A task that is here already stays as it is."""
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
        """The answer for one task."""
        if not 0 <= task <= _HIGHEST:
            return None
        with self._read() as database:
            found = database.execute("SELECT answer FROM answers WHERE id = ?", (task,)).fetchone()
        return found[0] if found else None

    def newest(self, count: int) -> list[tuple[float, bytes]]:
        """So many tasks at the most that ended last, in the order in which they ended: when, and the answer."""
        with self._read() as database:
            return _newest(database, count)

    def statuses(self, tasks: Iterable[TaskId]) -> dict[TaskId, TaskStatus]:
        """How these ended; those that are not here are left out."""
        with self._read() as database:
            found = database.execute(
                "SELECT id, status FROM tasks WHERE id IN (SELECT value FROM json_each(?))",
                (_json_list(tasks),),
            ).fetchall()
        return {TaskId(task): TaskStatus(status) for task, status in found}

    def page(self, filters: Filters, before: TaskId | None, limit: int) -> list[tuple[TaskId, bytes]]:
        """At most so many tasks, newest first, all of them older than `before`."""
        walks, values = [], []
        with self._read() as database:
            oldest = _oldest(database, filters.since)
            for statuses in _walks(filters):
                conditions, asked = _conditions(filters, statuses)
                if oldest is not None:  # the walk ends there, instead of at the oldest row of all
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
                f"SELECT id, answer FROM ({found}) JOIN answers USING (id) ORDER BY id DESC",  # noqa: S608 - our own words
                [*values, limit],
            ).fetchall()

    def count(self, filters: Filters = EVERYTHING) -> int:
        """How many tasks a list would hold on all its pages."""
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
        """Remove tasks that ended before that instant, the longest ended first, one step of them.

        Says how many it removed; nothing is left to do when that is less than `step`. The file does not shrink, its
        room is used again.
        """
        with self._write() as database:
            return database.execute(
                "DELETE FROM tasks WHERE id IN "
                "(SELECT id FROM tasks WHERE finished_at < ? ORDER BY finished_at, id LIMIT ?)",
                (finished_since, step),
            ).rowcount

    # --- idempotency keys ---------------------------------------------------------------------------------------------

    def remember(self, keys: Sequence[SubmitKey]) -> None:
        """Remember what these keys gave. A key that is here already stays as it is."""
        with self._write() as database:
            database.executemany(
                "INSERT OR IGNORE INTO keys VALUES (?, ?, ?, ?, ?)",
                [(key.tenant, key.key, key.body_hash, msgspec.json.encode(key.tasks), key.at) for key in keys],
            )

    def lookup(self, tenant: TenantId, key: str) -> SubmitKey | None:
        """What a key gave."""
        with self._read() as database:
            found = database.execute(
                "SELECT body_hash, tasks, at FROM keys WHERE tenant = ? AND key = ?", (tenant, key)
            ).fetchone()
        if found is None:
            return None
        body_hash, tasks, at = found
        return SubmitKey(tenant, key, body_hash, msgspec.json.decode(tasks, type=tuple[TaskId, ...]), at)

    def all_keys(self) -> Iterator[tuple[TenantId, str]]:
        """All keys, with their tenants."""
        with self._read() as database:
            yield from database.execute("SELECT tenant, key FROM keys")

    def forget_keys(self, before: float, step: int = 500) -> int:
        """Forget keys from before that instant, one step of them; says how many."""
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
    # The indexes are written all over: the more changes meet in one page before it goes to disk, the less there is to write.
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
    return f"The archive of ended tasks was damaged and begun anew; the old file is {aside.name}. ({damage})"


# --- the words of SQL -------------------------------------------------------------------------------------------------


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
                conditions.append(f"{column} != ''")  # says that the partial index may be used
    if filters.since is not None:
        conditions.append("created_at >= ?")
        values.append(filters.since)
    if statuses:
        conditions.append(f"status IN ({', '.join('?' * len(statuses))})")
        values += statuses
    return conditions, values


def _bounded(number: int) -> int:
    """A number that SQLite can take; no row has one outside."""
    return max(-1, min(number, _HIGHEST))


def _where(conditions: Sequence[str]) -> str:
    return f"WHERE {' AND '.join(conditions)}" if conditions else ""


_PARTIAL = ("name", "project", "user")
"""From the one that usually says most to the one that says least. Rows without one are not in its index."""


_BY_AGE = "NOT INDEXED"
"""In the order of the primary key, which is the order of submission."""


def _narrowest(filters: Filters) -> str | None:
    return next((column for column in _PARTIAL if getattr(filters, column)), None)


def _walks(filters: Filters) -> list[tuple[TaskStatus, ...]]:
    """The statuses of each walk: one a walk where an index is walked, since within it rows are in order of age."""
    if _index_for_page(filters) == _BY_AGE:
        return [()]
    return [(status,) for status in _asked_statuses(filters)]


def _oldest(database: sqlite3.Connection, since: float | None) -> int | None:
    """The lowest number among the tasks created since then; one that no task has where there is none."""
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
