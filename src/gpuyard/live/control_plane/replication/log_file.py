"""The replication log of a scheduler: entries that are not applied yet, the newest applied ones, and the replica's record.

    0 ─── trimmed ───┤ base ├─── kept for a standby that is behind ───┤ applied ├─── not committed yet ───┤ last

An entry is written here before it is committed, and may be removed again. When it is committed it is *applied*: an event
goes to the journal, a change of records to their store. The journal therefore holds committed events only.

Secrets of a task that are deleted later are removed from the entry that wrote them, too (`forget_secrets`). A standby that
gets the entry only then misses nothing: the entry that deletes them follows.

Positions count all entries, numbers of events (`seq`) count events. The file knows the number at its base, so both can
be converted although the journal does not know positions.
"""

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from secrets import token_hex
from threading import Lock
from typing import NamedTuple, Self

import msgspec

from gpuyard.core.replication.log import LogEntry
from gpuyard.core.replication.outputs import ReplicaRecord, SaveReplica, WriteEntries
from gpuyard.live.control_plane.replication.record_changes import OF_SECRETS, tasks_with_secrets, without_secrets
from gpuyard.live.control_plane.stores.cluster_records import Key
from gpuyard.live.control_plane.stores.database import (
    DatabaseLayout,
    StoreDamaged,
    as_store_errors,
    create_database,
    open_database,
    transaction,
)
from gpuyard.system.sqlite_rows import insert_rows

FILE = "replication.sqlite"
EVENT = b"{"
"""First byte of an entry that is an event of the journal; others are changes of records."""
TRIM_STEP = 1000
"""Entries that one transaction removes, so that a write never waits long."""

LAYOUT = DatabaseLayout(
    what="replication log",
    version=1,
    durable=True,
    exclusive=True,
    tables="""
        CREATE TABLE replica (
            one INTEGER PRIMARY KEY CHECK (one = 1), name TEXT NOT NULL, cluster TEXT NOT NULL, record BLOB NOT NULL,
            base INTEGER NOT NULL, base_epoch INTEGER NOT NULL, base_seq INTEGER NOT NULL, applied INTEGER NOT NULL
        );
        CREATE TABLE log (
            position INTEGER PRIMARY KEY, epoch INTEGER NOT NULL, payload BLOB NOT NULL, last INTEGER NOT NULL
        )
    """,
)


def drawn_name(scheduler: str) -> str:
    """Return the name of a new replica. Its random part makes it another one than any that was here before."""
    return f"{scheduler}#{token_hex(8)}"


class Base(NamedTuple):
    """Where a log begins: everything up to here is applied and no longer in the log."""

    position: int
    epoch: int
    seq: int
    """The number of the last event up to there."""


class ReplicationLog:
    """The file of one replica, and the `EntryStore` of its log. `create` makes a new one."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._turn = Lock()
        self._database = open_database(path, LAYOUT)
        with self._using():
            self._database.execute("PRAGMA secure_delete = ON")  # entries may hold secrets of tasks
            row = self._database.execute(
                "SELECT name, cluster, record, base, base_epoch, base_seq FROM replica"
            ).fetchone()
        if row is None:
            self._database.close()
            raise StoreDamaged(f"{path} (replication log) is damaged: it names no replica. Restore it from a backup.")
        self.name: str = row[0]
        """The name of the replica. It has a random part: a replica that lost its disk is another one."""
        self.cluster: str = row[1]
        self.record = _decoded(path, row[2])
        self.base = Base(*row[3:])
        with self._using():
            (last,) = self._database.execute("SELECT max(position) FROM log").fetchone()
        self.last: int = self.base.position if last is None else last
        self.secrets: dict[Key, int] = {}
        """The tasks whose secrets are in the log, and the position of each."""
        with self._using():
            of_secrets = self._database.execute(
                "SELECT position, payload FROM log WHERE substr(payload, 1, ?) = ?", (len(OF_SECRETS), OF_SECRETS)
            ).fetchall()
        for position, payload in of_secrets:
            self._note_secrets(position, payload)

    @classmethod
    def create(cls, path: Path, name: str, cluster: str, base: Base, record: ReplicaRecord) -> Self:
        """Create the log of a new replica, which has applied everything up to `base`."""
        row = (name, cluster, msgspec.msgpack.encode(record), *base, base.position)
        create_database(
            path, LAYOUT, lambda database: database.execute("INSERT INTO replica VALUES (1, ?, ?, ?, ?, ?, ?, ?)", row)
        )
        return cls(path)

    # --- writing -----------------------------------------------------------------------------------------------------

    def save(self, writes: Sequence[SaveReplica | WriteEntries]) -> None:
        """Perform these writes in order, all or none, durably."""
        record = self.record
        last = self.last
        with self._using(), transaction(self._database):
            for write in writes:
                if isinstance(write, SaveReplica):
                    record = write.record
                    continue
                if write.start < last:
                    self._database.execute("DELETE FROM log WHERE position > ?", (write.start,))
                rows = [
                    (position, entry.epoch, entry.payload, entry.last)
                    for position, entry in enumerate(write.entries, start=write.start + 1)
                ]
                insert_rows(self._database, "INSERT INTO log VALUES", rows)
                last = write.start + len(write.entries)
            if record is not self.record:
                self._database.execute("UPDATE replica SET record = ?", (msgspec.msgpack.encode(record),))
        for write in writes:
            if isinstance(write, WriteEntries):
                if write.start < self.last and self.secrets:
                    self.secrets = {task: at for task, at in self.secrets.items() if at <= write.start}
                for position, entry in enumerate(write.entries, start=write.start + 1):
                    if entry.payload.startswith(OF_SECRETS):
                        self._note_secrets(position, entry.payload)
        self.record, self.last = record, last

    def _note_secrets(self, position: int, payload: bytes) -> None:
        for task in tasks_with_secrets(payload):
            self.secrets[task] = position

    def forget_secrets(self, tasks: Collection[Key]) -> None:
        """Remove the secrets of these tasks, which applied entries have deleted from their store."""
        by_position: dict[int, set[Key]] = {}
        for task in tasks:
            by_position.setdefault(self.secrets[task], set()).add(task)
        with self._using():
            with transaction(self._database):
                for position, gone in by_position.items():
                    row = self._database.execute("SELECT payload FROM log WHERE position = ?", (position,)).fetchone()
                    if row is not None:  # otherwise it is trimmed
                        entry = without_secrets(row[0], gone)
                        self._database.execute("UPDATE log SET payload = ? WHERE position = ?", (entry, position))
            self._database.execute("PRAGMA wal_checkpoint(TRUNCATE)")  # they are in the write-ahead log, too
        for task in tasks:
            del self.secrets[task]

    def trim(self, position: int) -> bool:
        """Remove at most `TRIM_STEP` entries up to this position, which must be applied; return whether more are left."""
        if position <= self.base.position:
            return False
        until = min(position, self.base.position + TRIM_STEP)
        with self._using(), transaction(self._database):
            (epoch,) = self._database.execute("SELECT epoch FROM log WHERE position = ?", (until,)).fetchone()
            base = Base(until, epoch, self.base.seq + self._events_between(self.base.position, until))
            self._database.execute("DELETE FROM log WHERE position <= ?", (until,))
            self._database.execute("UPDATE replica SET base = ?, base_epoch = ?, base_seq = ?", base)
        self.base = base
        return until < position

    def note_applied(self, position: int) -> None:
        """Everything up to here is in the journal and the stores. Noted when a scheduler stops, for `is_complete`."""
        with self._using():
            self._database.execute("UPDATE replica SET applied = ?", (position,))

    def begin_anew(self, name: str, record: ReplicaRecord) -> None:
        """Be another replica from now on, with the same entries."""
        with self._using():
            self._database.execute("UPDATE replica SET name = ?, record = ?", (name, msgspec.msgpack.encode(record)))
        self.name, self.record = name, record

    # --- reading -----------------------------------------------------------------------------------------------------

    @property
    def is_complete(self) -> bool:
        """Whether the journal and the stores beside this file have everything that it has."""
        with self._using():
            (applied,) = self._database.execute("SELECT applied FROM replica").fetchone()
        return bool(applied == self.last)

    @property
    def oldest(self) -> int:
        """The position up to which entries were removed."""
        return self.base.position

    def epoch_at(self, position: int) -> int:
        """The epoch of the entry at this position, which is not below `oldest`."""
        if position == self.base.position:
            return self.base.epoch
        with self._using():
            row = self._database.execute("SELECT epoch FROM log WHERE position = ?", (position,)).fetchone()
        if row is None:
            raise StoreDamaged(f"{self._path} (replication log) is damaged: entry {position} is missing.")
        return int(row[0])

    def after(self, position: int, limit: int) -> list[LogEntry]:
        """At most `limit` entries after this position, which is not below `oldest`."""
        with self._using():
            rows = self._database.execute(
                "SELECT epoch, payload, last FROM log WHERE position > ? ORDER BY position LIMIT ?", (position, limit)
            ).fetchall()
        return [LogEntry(epoch, payload, bool(last)) for epoch, payload, last in rows]

    def position_of(self, seq: int) -> int:
        """The position of event `seq`, which is not below that of the base.

        A journal that ends with it may be followed by changes of records that were applied, too. They are applied again,
        which changes nothing.
        """
        if seq == self.base.seq:
            return self.base.position
        row = None
        if seq > self.base.seq:
            with self._using():
                row = self._database.execute(
                    "SELECT position FROM log WHERE substr(payload, 1, 1) = ? ORDER BY position LIMIT 1 OFFSET ?",
                    (EVENT, seq - self.base.seq - 1),
                ).fetchone()
        if row is None:
            raise StoreDamaged(
                f"The journal beside {self._path} ends at event {seq}, which this replication log does not have. The two "
                "are not of one time: restore both from one backup, or remove the data folder of this scheduler and let "
                "it copy that of the other one."
            )
        return int(row[0])

    def _events_between(self, after: int, until: int) -> int:
        (count,) = self._database.execute(
            "SELECT count(*) FROM log WHERE position > ? AND position <= ? AND substr(payload, 1, 1) = ?",
            (after, until, EVENT),
        ).fetchone()
        return int(count)

    def close(self) -> None:
        """Close the file. A second call changes nothing."""
        with self._turn:
            self._database.close()

    @contextmanager
    def _using(self) -> Iterator[None]:
        with self._turn, as_store_errors(self._path, LAYOUT.what):
            yield


def _decoded(path: Path, content: bytes) -> ReplicaRecord:
    try:
        return msgspec.msgpack.decode(content, type=ReplicaRecord)
    except msgspec.MsgspecError as error:
        raise StoreDamaged(f"{path} (replication log) is damaged: its record cannot be read ({error}).") from error
