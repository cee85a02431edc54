"""Secrets of tasks, from submission to end: kept out of journal, snapshots, answers and logs.

`put` is durable when it returns, so it comes before the answer to the submission; `drop` comes when the task has ended.
Secrets of unknown tasks (a submission that was never committed, an end that was not dropped) are deleted by `sweep` at
the next start. In a file, deleted values are overwritten; in the write-ahead log they remain until it is rewritten, at
the latest at the next start or stop. In a database they are encrypted.
"""

from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from threading import RLock
from typing import Self

import msgspec

from gpuyard.core.domain.values import TaskId
from gpuyard.live.control_plane.stores.cluster_records import ClusterRecords, Delete, Put, SqliteRecords
from gpuyard.live.control_plane.stores.record_layouts import SECRETS, SECRETS_LAYOUT
from gpuyard.live.control_plane.stores.secrets_key import Cipher, NoCipher


class SecretStore:
    """The secrets of tasks that have not ended. May be called from any thread."""

    def __init__(self, records: ClusterRecords, cipher: Cipher) -> None:
        self._records = records
        self._cipher = cipher
        self._turn = RLock()
        self._seen = records.changes()
        self._tasks = _tasks_in(records)
        """Tasks that may have secrets. Most have none and need no read from the store."""
        self._to_drop: set[TaskId] = set()
        """Tasks whose secrets could not be deleted. They are not returned, and deleted with the next change."""

    @classmethod
    def open(cls, path: Path) -> Self:
        """Open the file, or create it."""
        records = SqliteRecords.open(path, SECRETS_LAYOUT)
        try:
            return cls(records, NoCipher())
        except BaseException:
            records.close()
            raise

    def close(self) -> None:
        """Close the file or the connection."""
        self._records.close()

    def refresh(self) -> bool:
        """Read which tasks have secrets if another scheduler has written; return whether it has."""
        with self._turn:
            now = self._records.changes()
            if now == self._seen:
                return False
            self._tasks = _tasks_in(self._records)
            self._seen = now
            return True

    def put(self, by_task: Mapping[TaskId, Mapping[str, str]]) -> None:
        """Store the values of each task, all with one write to disk."""
        rows = [
            (int(task), self._cipher.seal(msgspec.json.encode(dict(values)), place_of(task)))
            for task, values in by_task.items()
            if values
        ]
        if not rows:
            return
        with self._turn:
            # First, because they may be stored although the write fails: a lost connection does not tell.
            self._tasks.update(TaskId(task) for task, _ in rows)
            late = self._to_drop.difference(by_task)
            self._records.write(Put(SECRETS, rows), Delete(SECRETS, sorted(late)))
            self._tasks.difference_update(late)
            self._to_drop.clear()

    def get(self, task: TaskId) -> dict[str, str]:
        """Return the values of a task, by name."""
        if task not in self._tasks or task in self._to_drop:
            return {}
        found = self._records.rows(SECRETS, [int(task)])
        return (
            msgspec.json.decode(self._cipher.unseal(found[0][1], place_of(task)), type=dict[str, str]) if found else {}
        )

    def drop(self, tasks: Iterable[TaskId]) -> None:
        """Delete the values of ended tasks. Costs nothing for tasks without secrets."""
        with self._turn:
            ended = self._tasks.intersection(tasks) | self._to_drop
            if not ended:
                return
            self._to_drop |= ended
            self._records.write(Delete(SECRETS, sorted(ended)))
            self._tasks -= ended
            self._to_drop -= ended

    def sweep(self, open_tasks: Collection[TaskId]) -> int:
        """At start, delete the values of all tasks except these; return the number of tasks affected."""
        left_over = self._tasks.difference(open_tasks)
        self.drop(left_over)
        self._records.tidy()
        return len(left_over)


def _tasks_in(records: ClusterRecords) -> set[TaskId]:
    return {TaskId(int(task)) for task in records.keys(SECRETS)}


def place_of(task: int) -> str:
    """Return the place that the secrets of a task are encrypted for."""
    return f"the secrets of task {task}"
