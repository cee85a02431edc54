"""Secrets of tasks, from submission to end: kept out of journal, snapshots, answers and logs.

`put` is durable when it returns, so it comes before the answer to the submission; `drop` comes when the task has ended.
Secrets of unknown tasks (a submission that was never committed, an end that was not dropped) are deleted by `sweep` at
the next start. Deleted values are overwritten in the file; in the write-ahead log they remain until it is rewritten, at
the latest at the next start or stop.
"""

import sqlite3
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from threading import Lock
from typing import Self

import msgspec

from gpuyard.core.domain.values import TaskId
from gpuyard.live.control_plane.stores.database import DatabaseLayout, as_store_errors, open_database, transaction

_WHAT = "secrets of tasks"
_LAYOUT = DatabaseLayout(
    what=_WHAT,
    version=1,
    durable=True,
    exclusive=True,
    tables="CREATE TABLE secrets (task INTEGER PRIMARY KEY, named BLOB NOT NULL)",
)


class SecretStore:
    """The secrets of tasks that have not ended. Create it with `open`. May be called from any thread."""

    def __init__(self, path: Path, database: sqlite3.Connection) -> None:
        self._path = path
        self._database = database
        self._turn = Lock()
        self._tasks: set[TaskId] = {TaskId(task) for (task,) in database.execute("SELECT task FROM secrets")}
        """Tasks that have secrets. Most have none and need no read from disk."""

    @classmethod
    def open(cls, path: Path) -> Self:
        """Open the file, or create it."""
        database = open_database(path, _LAYOUT)
        try:
            with as_store_errors(path, _WHAT):
                database.execute("PRAGMA secure_delete = ON")
                return cls(path, database)
        except BaseException:
            database.close()
            raise

    def close(self) -> None:
        """Close it, leaving a single file without a write-ahead log."""
        self._database.close()

    def put(self, by_task: Mapping[TaskId, Mapping[str, str]]) -> None:
        """Store the values of each task, all with one write to disk."""
        rows = [(task, msgspec.json.encode(dict(values))) for task, values in by_task.items() if values]
        if not rows:
            return
        with self._change() as database:
            database.executemany("INSERT OR REPLACE INTO secrets VALUES (?, ?)", rows)
        self._tasks.update(task for task, _ in rows)

    def get(self, task: TaskId) -> dict[str, str]:
        """Return the values of a task, by name."""
        if task not in self._tasks:
            return {}
        with self._turn, as_store_errors(self._path, _WHAT):
            found = self._database.execute("SELECT named FROM secrets WHERE task = ?", (task,)).fetchone()
        return msgspec.json.decode(found[0], type=dict[str, str]) if found else {}

    def drop(self, tasks: Iterable[TaskId]) -> None:
        """Delete the values of ended tasks. Costs nothing for tasks without secrets."""
        ended = self._tasks.intersection(tasks)
        if not ended:
            return
        with self._change() as database:
            database.executemany("DELETE FROM secrets WHERE task = ?", [(task,) for task in ended])
        self._tasks.difference_update(ended)

    def sweep(self, open_tasks: Collection[TaskId]) -> int:
        """At start, delete the values of all tasks except these; return the number of tasks affected."""
        left_over = self._tasks.difference(open_tasks)
        self.drop(left_over)
        with self._turn, as_store_errors(self._path, _WHAT):
            self._database.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        return len(left_over)

    @contextmanager
    def _change(self) -> Iterator[sqlite3.Connection]:
        with self._turn, as_store_errors(self._path, _WHAT), transaction(self._database):
            yield self._database
