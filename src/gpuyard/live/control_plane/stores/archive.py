"""Ended tasks on disk, which are no longer in memory but still appear in every list.

    tasks     the columns that lists filter and sort by: narrow, so that a scan without an index of a million rows is fast
    texts     what a search looks at
    answers   the answer of the API for each task, ready to send
    stories   the events of each task, as stories.py packs them
    runs      which GPUs each task held when, for the timeline
    counts    rows by (tenant, status, priority), updated in the same transaction: totals without counting
    keys      idempotency keys of submissions
    spans     the times in which tasks waited or held GPUs, for usage
    included  the last event of the journal that is included, written in the same transaction as its rows

The archive is derived from the journal. After a crash it may lack the newest rows, but never rows in between: `seq` is
the event after which rows must be added again. A damaged archive is set aside and replaced by an empty one; the journal
is not affected.

A page is merged from one index scan per status, newest first. Each scan stops when the page is full, so the cost of a
page depends on its size and not on the size of the archive. Other orders have an index each. A search looks at the text
of every task until its page is full; the number of all matches is kept until the archive changes. A place in the middle
of a list is found by skipping index entries, about 20 ns each.

Reads use their own connections and never wait for a writer. All methods may be called from any thread.
"""

import sqlite3
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from itertools import islice
from pathlib import Path
from threading import Lock
from typing import Any, Literal, NamedTuple, Self, TypeAlias, TypeVar
from urllib.parse import quote

import msgspec

from gpuyard.core.domain.values import ENDED, NodeId, TaskClass, TaskId, TaskStatus, TenantId, Value
from gpuyard.live.control_plane.stores.database import (
    DatabaseLayout,
    StoreDamaged,
    as_store_errors,
    connect,
    open_database,
    transaction,
)
from gpuyard.live.control_plane.usage.accounting import OwnedSpan, WindowSums
from gpuyard.live.control_plane.usage.spans import UsageSpan

_Item = TypeVar("_Item")
SortKey: TypeAlias = Literal["created_at", "priority", "started_at", "finished_at", "name", "status"]
_COLUMNS: dict[SortKey, str] = {
    "created_at": "id",  # numbers are assigned in the order of submission
    "priority": "priority",
    "started_at": "started_at",
    "finished_at": "finished_at",
    "name": "name",
    "status": "status",
}
_OWN_INDEX: dict[SortKey, str] = {"started_at": "started", "name": "name", "priority": "priority"}
"""Orders with an index that also has the tenant and the status; `id`, `finished_at` and `status` have older ones."""
MOST_SEARCHES = 64
"""How many totals of searches are kept."""
_WHAT = "ended tasks"
_HIGHEST = (1 << 63) - 1
"""The largest integer of SQLite."""
_ROWS_A_STATEMENT = 64
"""Rows per statement: SQLite releases and takes the interpreter lock once per statement."""
_SPANS = """
        CREATE TABLE spans (
            task INTEGER NOT NULL, tenant TEXT NOT NULL, user TEXT NOT NULL, project TEXT NOT NULL,
            start REAL NOT NULL, finish REAL NOT NULL, outcome TEXT NOT NULL, attempt INTEGER NOT NULL,
            model TEXT NOT NULL, milli INTEGER NOT NULL, idle REAL, watts REAL
        );
        CREATE INDEX spans_by_task ON spans (task);
        CREATE INDEX spans_by_finish ON spans (finish, start);
        CREATE TRIGGER removed_spans AFTER DELETE ON tasks BEGIN DELETE FROM spans WHERE task = old.id; END
"""
_TABLES = """
        CREATE TABLE tasks (
            id INTEGER PRIMARY KEY, tenant TEXT NOT NULL, status TEXT NOT NULL, class TEXT NOT NULL,
            priority INTEGER NOT NULL, user TEXT NOT NULL, project TEXT NOT NULL, name TEXT NOT NULL,
            created_at REAL NOT NULL, finished_at REAL NOT NULL, started_at REAL
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
        CREATE TABLE keys (
            tenant TEXT NOT NULL, key TEXT NOT NULL, body_hash BLOB NOT NULL, tasks BLOB NOT NULL, at REAL NOT NULL,
            PRIMARY KEY (tenant, key)
        ) WITHOUT ROWID;
        CREATE INDEX keys_by_age ON keys (at);
        CREATE TABLE included (seq INTEGER NOT NULL);
        INSERT INTO included VALUES (0)
    """
_STORIES = """
        CREATE TABLE texts (id INTEGER PRIMARY KEY, text TEXT NOT NULL);
        CREATE INDEX sorted_by_started ON tasks (started_at, id, tenant, status);
        CREATE INDEX sorted_by_name ON tasks (name, id, tenant, status);
        CREATE INDEX sorted_by_priority ON tasks (priority, id, tenant, status);
        CREATE TABLE stories (id INTEGER PRIMARY KEY, story BLOB NOT NULL);
        CREATE TABLE runs (
            task INTEGER NOT NULL, place INTEGER NOT NULL, gpu TEXT NOT NULL, started_at REAL NOT NULL,
            ended_at REAL NOT NULL, share REAL NOT NULL, PRIMARY KEY (task, place, gpu)
        ) WITHOUT ROWID;
        CREATE INDEX runs_by_end ON runs (ended_at, started_at);
        CREATE TRIGGER removed AFTER DELETE ON tasks BEGIN
            UPDATE counts SET count = count - 1
            WHERE tenant = old.tenant AND status = old.status AND priority = old.priority;
            DELETE FROM counts
            WHERE tenant = old.tenant AND status = old.status AND priority = old.priority AND count = 0;
            DELETE FROM answers WHERE id = old.id;
            DELETE FROM stories WHERE id = old.id;
            DELETE FROM texts WHERE id = old.id;
            DELETE FROM runs WHERE task = old.id;
        END
"""
_TO_VERSION_2 = "".join(
    (
        """
        ALTER TABLE tasks ADD COLUMN started_at REAL;
        UPDATE tasks SET
            started_at = (julianday(json_extract(told.answer, '$.started_at')) - 2440587.5) * 86400.0
        FROM (SELECT id, CAST(answer AS TEXT) AS answer FROM answers) AS told
        WHERE told.id = tasks.id AND json_valid(told.answer);
        DROP TRIGGER removed;
""",
        _STORIES,
        """;
        INSERT INTO texts
        SELECT id, lower(name || char(10) || 'task-' || id || char(10) || user || char(10)
            || coalesce(substr(json_extract(CAST(answer AS TEXT), '$.command'), 1, 2000), ''))
        FROM tasks JOIN answers USING (id)
        WHERE json_valid(CAST(answer AS TEXT));
        INSERT OR IGNORE INTO runs
        SELECT tasks.id, 0, gpu.value, tasks.started_at, tasks.finished_at,
            coalesce(json_extract(told.answer, '$.gpu_fraction'), 1.0)
        FROM tasks JOIN (SELECT id, CAST(answer AS TEXT) AS answer FROM answers) AS told USING (id),
            json_each(told.answer, '$.allocated_gpus') AS gpu
        WHERE tasks.started_at IS NOT NULL AND json_valid(told.answer)
""",
    )
)
"""Fills the columns and the runs of the last attempts from the answers."""
_FOLDS = """
        ALTER TABLE tasks ADD COLUMN fold TEXT NOT NULL DEFAULT '';
        CREATE INDEX by_fold ON tasks (fold, status, id) WHERE fold != ''
"""
"""Tasks that an older version archived have no fold: each is a line of its own."""
_LAYOUT = DatabaseLayout(
    what=_WHAT,
    version=3,
    upgrades=(f"{_TO_VERSION_2};{_SPANS}", _FOLDS),  # and stories may be packed
    durable=True,  # a snapshot may cover tasks that only the archive still holds
    exclusive=False,
    tables=";".join((_TABLES, _STORIES, _SPANS, _FOLDS)),
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
    started_at: float | None = None
    text: str = ""
    """What a search looks at: see `searched_text` of the views."""
    story: bytes = b""
    """The events of the task, packed (`Stories.packed`)."""
    runs: tuple[tuple[int, str, float, float, float], ...] = ()
    """Number of the run, GPU, start, end and share."""
    spans: tuple[UsageSpan, ...] = ()
    fold: str = ""
    """See `fold_of`."""


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
    text: str | None = None
    """Part of `searched_text`, in the form that `casefold` returns."""


EVERYTHING = Filters()


class Order(Value, frozen=True):
    """The order of a list. Tasks with equal keys are in the order of their numbers, in the same direction."""

    by: SortKey = "created_at"
    descending: bool = True


NEWEST_FIRST = Order()


class EndedList:
    """An ordered list of ended tasks, as long as its transaction is open."""

    def __init__(self, database: sqlite3.Connection, filters: Filters, order: Order, count: Callable[[], int]) -> None:
        self._database = database
        self._filters = filters
        self._order = order
        self._count = count
        self._total: int | None = None

    @property
    def jumps(self) -> bool:
        """Whether a place deep in the list is found without looking at the text of every task before it."""
        return self._filters.text is None

    @property
    def total(self) -> int:
        """Number of tasks in the list."""
        if self._total is None:
            self._total = self._count()
        return self._total

    def rows(self, offset: int, limit: int) -> list[tuple[Any, TaskId]]:
        """Return sort key and number of the tasks at these places."""
        search_by_key = not self.jumps and self._order.by != "created_at"
        matches = self.total if search_by_key else 0  # tells how dense the matches are
        found = _ordered(self._database, self._filters, self._order, limit, offset, matches=matches)
        if len(found) < limit and (found or not offset):  # these are the last: a count need not look again
            self._total = offset + len(found)
        return found

    def contained(self, tasks: Iterable[TaskId]) -> set[TaskId]:
        """Return those of these tasks that are in the archive."""
        return _contained(self._database, tasks)


class FoldCount(NamedTuple):
    """The ended tasks of a fold with one status: how many, and the lowest and highest number."""

    status: TaskStatus
    tasks: int
    first: TaskId
    last: TaskId


class EndedFolds:
    """Ended tasks by their end, and those of each fold counted, as long as its transaction is open."""

    def __init__(self, database: sqlite3.Connection, filters: Filters) -> None:
        self._database = database
        self._filters = filters
        asked = _asked_statuses(filters)
        self._conditions, self._values = _conditions(filters, asked if len(asked) < len(ENDED) else ())

    def rows(self) -> Iterator[tuple[float, TaskId, str]]:
        """Yield end, number and fold of the tasks, the latest end first."""
        is_wide = not _narrowest(self._filters) and self._filters.text is None
        table, conditions, values = self._searched(f"tasks {'INDEXED BY by_finished' if is_wide else ''}")
        query = f"SELECT finished_at, id, fold FROM {table} {_where(conditions)} ORDER BY finished_at DESC, id DESC"  # noqa: S608
        yield from self._database.execute(query, values)

    def counts(self, fold: str) -> list[FoldCount]:
        """Count the tasks of a fold, by their status."""
        table, conditions, values = self._searched("tasks INDEXED BY by_fold")
        conditions += ["fold = ?", "fold != ''"]
        query = f"SELECT status, count(*), min(id), max(id) FROM {table} {_where(conditions)} GROUP BY status"  # noqa: S608
        found = self._database.execute(query, [*values, fold])
        return [FoldCount(TaskStatus(status), count, first, last) for status, count, first, last in found]

    def _searched(self, table: str) -> tuple[str, list[str], list[object]]:
        if self._filters.text is None:
            return table, list(self._conditions), list(self._values)
        return (
            f"{table} CROSS JOIN texts USING (id)",
            ["instr(text, ?) > 0", *self._conditions],
            [self._filters.text, *self._values],
        )

    def contained(self, tasks: Iterable[TaskId]) -> set[TaskId]:
        """Return those of these tasks that are in the archive."""
        return _contained(self._database, tasks)

    def answers(self, tasks: Iterable[TaskId]) -> dict[TaskId, bytes]:
        """Return the answers of these tasks."""
        return _answers(self._database, tasks)


class RunFilter(NamedTuple):
    """The runs of a timeline."""

    start: float
    end: float
    pixel: float
    """Length of a pixel in seconds."""
    tenant: TenantId | None = None
    node: NodeId | None = None
    known: tuple[TaskId, ...] = ()
    """Tasks that the caller has in memory."""


class FoundRuns(NamedTuple):
    """The runs of a timeline."""

    wide: list[tuple[str, float, float, TaskId, str, TenantId, str, float]]
    """GPU, start, end, task, name, tenant, status, share."""
    narrow: list[tuple[str, float, float, int]]
    """GPU, first start, last end and number of runs that are shorter than a pixel and begin in the same one."""
    pixel: float
    """Length of a pixel in seconds, as it was used."""


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
        self._changes = 0
        """Counts the changes, so that results of searches are not used after one."""
        self._searches: dict[Filters, tuple[int, int]] = {}
        """The totals of recent searches, with the number of changes before them."""
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
            self._searches.clear()
            self.seq = self._read_seq()
            return sentence

    def close(self) -> None:
        """Close all connections, leaving a single file without a write-ahead log."""
        with self._writing:
            self._drop_connections()

    @property
    def path(self) -> Path:
        """The file, for a process that only reads it."""
        return self._path

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
                _insert(database, "INSERT INTO texts VALUES", [(row.id, row.text) for row in chunk])
                if told := [(row.id, row.story) for row in chunk if row.story]:
                    _insert(database, "INSERT INTO stories VALUES", told)
            for runs in _chunks((row.id, *run) for row in by_id.values() for run in row.runs):
                _insert(database, "INSERT OR IGNORE INTO runs VALUES", runs)
            spans = [_span_columns(row, span) for row in by_id.values() for span in row.spans]
            for pieces in _chunks(spans):
                _insert(database, "INSERT INTO spans VALUES", pieces)
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

    def usage(
        self, account: WindowSums, since: float, until: float, tenant: TenantId | None, except_: Collection[TaskId]
    ) -> None:
        """Add the spans of a window to an account, of one tenant (None: of all), without those of some tasks."""
        query = (
            "SELECT task, tenant, user, project, start, finish, outcome, attempt, model, milli, idle, watts FROM spans "
            "WHERE finish > ? AND start < ?"
        )
        values: list[object] = [since, until]
        if tenant is not None:
            query, values = f"{query} AND tenant = ?", [*values, tenant]
        with self._read() as database:
            cursor = database.execute(query, values)
            while rows := cursor.fetchmany(_ROWS_A_STATEMENT):
                account.add(
                    OwnedSpan(row[0], row[1], row[2], row[3], UsageSpan(*row[4:]))
                    for row in rows
                    if row[0] not in except_
                )

    def page(self, filters: Filters, before: TaskId | None, limit: int) -> list[tuple[TaskId, bytes]]:
        """Return up to `limit` tasks older than `before`, newest first."""
        walks, values, changes = [], [], self._changes
        with self._read() as database:
            if filters.text is not None:
                tasks = [task for _, task in _ordered(database, filters, NEWEST_FIRST, limit, before=before)]
                if before is None and len(tasks) < limit:  # these are all: the count need not look again
                    self._searches[filters] = (changes, len(tasks))
                answers = _answers(database, tasks)
                return [(task, answers[task]) for task in tasks]
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
            walk = " UNION ALL ".join(walks) + " ORDER BY id DESC LIMIT ?"
            return database.execute(
                f"SELECT id, answer FROM ({walk}) JOIN answers USING (id) ORDER BY id DESC",  # noqa: S608 - constants
                [*values, limit],
            ).fetchall()

    @contextmanager
    def listed(self, filters: Filters, order: Order) -> Iterator["EndedList"]:
        """Open a list. All is read from one state of the archive, so that no task is counted twice or not at all."""
        changes = self._changes
        with self._read() as database:
            database.execute("BEGIN")
            yield EndedList(database, filters, order, lambda: self._count(database, filters, changes))
            database.execute("COMMIT")

    @contextmanager
    def folded(self, filters: Filters) -> Iterator["EndedFolds"]:
        """Open the ended tasks with their folds. All is read from one state of the archive."""
        with self._read() as database:
            database.execute("BEGIN")
            yield EndedFolds(database, filters)
            database.execute("COMMIT")

    def _count(self, database: sqlite3.Connection, filters: Filters, changes: int) -> int:
        """Count the tasks of a list. The result of a search is kept until the archive changes.

        `changes` is the number of changes before the first read of the transaction, so that an older result is never
        kept for a newer state.
        """
        if filters.text is None:
            return _count(database, filters)
        kept = self._searches.get(filters)
        if kept is not None and kept[0] == changes:
            return kept[1]
        count = _count(database, filters)
        if len(self._searches) >= MOST_SEARCHES:
            self._searches.clear()
        self._searches[filters] = (changes, count)
        return count

    def answers(self, tasks: Iterable[TaskId]) -> dict[TaskId, bytes]:
        """Return the answers of these tasks; tasks that are not archived are left out."""
        with self._read() as database:
            return _answers(database, tasks)

    def story(self, task: TaskId) -> bytes | None:
        """Return the events of a task as a list in JSON; None: an older version archived it without them."""
        if not 0 <= task <= _HIGHEST:
            return None
        with self._read() as database:
            found = database.execute("SELECT story FROM stories WHERE id = ?", (task,)).fetchone()
        return found[0] if found else None

    def runs(self, wanted: RunFilter, lanes: int, most: int) -> FoundRuns:
        """Return the runs of a timeline; those shorter than a pixel are merged, GPU by GPU and pixel by pixel.

        Where more than `most` runs are in the time, the pixel is made so large that `lanes` GPUs have about `most` bars.
        """
        conditions = ["ended_at > ?", "runs.started_at < ?"]
        values: list[object] = [wanted.start, wanted.end]
        if wanted.node is not None:
            conditions.append("gpu >= ? AND gpu < ?")
            values += [f"{wanted.node}/", f"{wanted.node}0"]  # 0 follows / in ASCII
        if wanted.known:
            conditions.append("task NOT IN (SELECT value FROM json_each(?))")
            values.append(_json_list(wanted.known))
        both = "runs INDEXED BY runs_by_end CROSS JOIN tasks ON tasks.id = runs.task"
        table = "runs INDEXED BY runs_by_end"
        if wanted.tenant is not None:  # first of all: runs of other tenants must not be noticed
            table = both
            conditions.append("tenant = ?")
            values.append(wanted.tenant)
        with self._read() as database:
            counted = f"SELECT count(*) FROM {table} {_where(conditions)}"  # noqa: S608 - constants
            (count,) = database.execute(counted, values).fetchone()
            pixel = wanted.pixel if count <= most else max(wanted.pixel, lanes * (wanted.end - wanted.start) / most)
            wide = database.execute(
                "SELECT gpu, runs.started_at, ended_at, task, name, tenant, status, share "  # noqa: S608 - constants
                f"FROM {both} {_where([*conditions, 'ended_at - runs.started_at >= ?'])}",
                [*values, pixel],
            ).fetchall()
            narrow = database.execute(
                "SELECT gpu, min(runs.started_at), max(ended_at), count(*) "  # noqa: S608 - constants
                f"FROM {table} {_where([*conditions, 'ended_at - runs.started_at < ?'])} "
                "GROUP BY gpu, CAST((runs.started_at - ?) / ? AS INTEGER)",
                [*values, pixel, wanted.start, pixel],
            ).fetchall()
        return FoundRuns(wide, narrow, pixel)

    def count(self, filters: Filters = EVERYTHING) -> int:
        """Count the tasks of a list over all its pages."""
        changes = self._changes
        with self._read() as database:
            return self._count(database, filters, changes)

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
        self._changes += 1

    @contextmanager
    def _read(self) -> Iterator[sqlite3.Connection]:
        pool = self._idle_readers
        with as_store_errors(self._path, _WHAT):
            try:
                database = pool.pop()
            except IndexError:
                database = connect(self._path)
                database.execute("PRAGMA cache_size = -16000")  # KiB: a search looks at the texts of all tasks
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


def _ordered(
    database: sqlite3.Connection,
    filters: Filters,
    order: Order,
    limit: int,
    offset: int = 0,
    *,
    before: TaskId | None = None,
    matches: int = 0,
) -> list[tuple[Any, TaskId]]:
    """Return sort key and number of the tasks at these places. `matches`: how many the whole list has, for a search."""
    statuses = _asked_statuses(filters)
    if not statuses or limit < 1:
        return []
    conditions, values = _conditions(filters, statuses if filters.statuses else ())
    column, way = _COLUMNS[order.by], "DESC" if order.descending else "ASC"
    by = f"id {way}" if column == "id" else f"{column} {way}, id {way}"
    table, index = "tasks", ""
    if order.by in _OWN_INDEX and not _narrowest(filters):
        index = f"INDEXED BY sorted_by_{_OWN_INDEX[order.by]}"
    if before is not None:
        conditions.append("id < ?")
        values.append(_bounded(before))
    if filters.text is not None:
        (last,) = database.execute("SELECT coalesce(max(id), 0) FROM texts").fetchone()
        if column == "id" and not conditions:
            table, index = "texts", ""
        elif column != "id" and (offset + limit) * last < matches * matches:
            table = (
                f"tasks {index} CROSS JOIN texts USING (id)"  # matches are dense: walk in order until the page is full
            )
        else:
            table = "texts CROSS JOIN tasks USING (id)"  # matches are rare: only these are looked up and sorted
        index = ""
        conditions.insert(0, "instr(text, ?) > 0")
        values.insert(0, filters.text)
    query = f"SELECT {column}, id FROM {table} {index} {_where(conditions)} ORDER BY {by} LIMIT ? OFFSET ?"  # noqa: S608
    values += [limit, offset]
    if column != "id":
        return database.execute(query, values).fetchall()
    # All numbers as one value: SQLite takes the interpreter lock once instead of once for each row.
    (numbers,) = database.execute(f"SELECT json_group_array(id) FROM ({query})", values).fetchone()  # noqa: S608
    return [(number, number) for number in msgspec.json.decode(numbers, type=list[TaskId])]


def _contained(database: sqlite3.Connection, tasks: Iterable[TaskId]) -> set[TaskId]:
    query = "SELECT id FROM tasks WHERE id IN (SELECT value FROM json_each(?))"
    return {TaskId(task) for (task,) in database.execute(query, (_json_list(tasks),))}


def _answers(database: sqlite3.Connection, tasks: Iterable[TaskId]) -> dict[TaskId, bytes]:
    found = database.execute(
        "SELECT id, answer FROM answers WHERE id IN (SELECT value FROM json_each(?))", (_json_list(tasks),)
    )
    return {TaskId(task): answer for task, answer in found}


def _count(database: sqlite3.Connection, filters: Filters) -> int:
    statuses = _asked_statuses(filters)
    if not statuses:
        return 0
    conditions, values = _conditions(filters, statuses if filters.statuses else ())
    if filters.text is not None:
        table = "texts CROSS JOIN tasks USING (id)" if conditions else "texts"
        conditions.insert(0, "instr(text, ?) > 0")
        values.insert(0, filters.text)
    else:
        table = _table_for_count(filters)
    counted = "coalesce(sum(count), 0)" if table == "counts" else "count(*)"
    (count,) = database.execute(f"SELECT {counted} FROM {table} {_where(conditions)}", values).fetchone()  # noqa: S608
    return int(count)


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
        row.started_at,
        row.fold,
    )


def _span_columns(row: ArchiveRow, span: UsageSpan) -> tuple[object, ...]:
    owner = (row.id, row.tenant, row.user, row.project)
    measured = (span.attempt, span.model, span.milli, span.idle, span.watts)
    return (*owner, span.start, span.end, span.outcome, *measured)


def _insert(database: sqlite3.Connection, into: str, rows: Sequence[Sequence[object]], otherwise: str = "") -> None:
    places = ", ".join([f"({', '.join('?' * len(rows[0]))})"] * len(rows))
    database.execute(f"{into} {places} {otherwise}", [value for row in rows for value in row])


def _chunks(items: Iterable[_Item]) -> Iterator[list[_Item]]:
    remaining = iter(items)
    while chunk := list(islice(remaining, _ROWS_A_STATEMENT)):
        yield chunk


def _json_list(tasks: Iterable[TaskId]) -> str:
    return msgspec.json.encode(list(tasks)).decode()
