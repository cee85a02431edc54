"""Values that only a task may know, from its submission to its end: outside journal, snapshots, answers and logs.

`put` is durable when it returns, so it comes before the submit is answered; `drop` comes when the task has ended, and
what is left of tasks that nobody knows (a submit that was never committed, an end that was not dropped) goes with
`sweep` at the next start. What is dropped is overwritten in the file; in the write-ahead log it stays until that is
written anew, at the latest at the next start or stop.
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
    """The secrets of the tasks that have not ended. Made by `open`. May be called from any thread."""

    def __init__(self, path: Path, database: sqlite3.Connection) -> None:
        self._path = path
        self._database = database
        self._turn = Lock()
        self._tasks: set[TaskId] = {TaskId(task) for (task,) in database.execute("SELECT task FROM secrets")}
        """Which tasks have any: most have none, and are not asked for on disk."""

    @classmethod
    def open(cls, path: Path) -> Self:
        """Open the file, or begin one."""
        database = open_database(path, _LAYOUT)
        try:
            with as_store_errors(path, _WHAT):
                database.execute("PRAGMA secure_delete = ON")
                return cls(path, database)
        except BaseException:
            database.close()
            raise

    def close(self) -> None:
        """Leave one plain file."""
        self._database.close()

    def put(self, by_task: Mapping[TaskId, Mapping[str, str]]) -> None:
        """Keep the values of each task, all with one write to disk."""
        rows = [(task, msgspec.json.encode(dict(values))) for task, values in by_task.items() if values]
        if not rows:
            return
        with self._change() as database:
            database.executemany("INSERT OR REPLACE INTO secrets VALUES (?, ?)", rows)
        self._tasks.update(task for task, _ in rows)

    def get(self, task: TaskId) -> dict[str, str]:
        """The values of a task, by name."""
        if task not in self._tasks:
            return {}
        with self._turn, as_store_errors(self._path, _WHAT):
            found = self._database.execute("SELECT named FROM secrets WHERE task = ?", (task,)).fetchone()
        return msgspec.json.decode(found[0], type=dict[str, str]) if found else {}

    def drop(self, tasks: Iterable[TaskId]) -> None:
        """Forget the values of tasks that have ended. Costs nothing for those that had none."""
        ended = self._tasks.intersection(tasks)
        if not ended:
            return
        with self._change() as database:
            database.executemany("DELETE FROM secrets WHERE task = ?", [(task,) for task in ended])
        self._tasks.difference_update(ended)

    def sweep(self, open_tasks: Collection[TaskId]) -> int:
        """At start: forget the values of all tasks but these; says of how many."""
        left_over = self._tasks.difference(open_tasks)
        self.drop(left_over)
        with self._turn, as_store_errors(self._path, _WHAT):
            self._database.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        return len(left_over)

    @contextmanager
    def _change(self) -> Iterator[sqlite3.Connection]:
        with self._turn, as_store_errors(self._path, _WHAT), transaction(self._database):
            yield self._database
