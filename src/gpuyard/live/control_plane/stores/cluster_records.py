"""The small durable data beside the journal (users, tokens, secrets, documents): one port, two places.

    AccessStore   SecretStore   Documents      what the rows mean
          └───────────┼────────────┘
                ClusterRecords                 rows of a few tables, written all or none
          ┌───────────┴────────────┐
    SqliteRecords           PostgresRecords    a file of one scheduler, or the database of the journal

A change is always of whole rows, so it can be repeated: the second time it changes nothing. All implementations pass
`tests/contract/test_cluster_records.py`.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Lock
from typing import Any, NamedTuple, Protocol, Self

from gpuyard.core.domain.values import Value
from gpuyard.live.control_plane.stores.database import DatabaseLayout, as_store_errors, open_database, transaction

Row = tuple[Any, ...]
Key = str | int


class RecordColumn(NamedTuple):
    """A column of a table. The types are those of PostgreSQL; a file of SQLite has its own definition."""

    name: str
    type: str
    nullable: bool = False


class Table(NamedTuple):
    """A table whose first column is its key."""

    name: str
    columns: tuple[RecordColumn, ...]

    @property
    def key(self) -> RecordColumn:
        """The column that identifies a row."""
        return self.columns[0]

    @property
    def names(self) -> str:
        """The names of the columns, for a statement."""
        return ", ".join(column.name for column in self.columns)


class RecordsLayout(Value, frozen=True):
    """The tables of one store."""

    name: str
    """Its name in the database."""
    version: int
    """Version of its tables in PostgreSQL; one with another version is not touched."""
    tables: tuple[Table, ...]
    file: DatabaseLayout
    """How the same tables are stored in a file."""
    secure_delete: bool = False
    """Overwrite deleted rows in the file."""

    @property
    def what(self) -> str:
        """Name of the contents for messages."""
        return self.file.what


class Put(NamedTuple):
    """Insert rows, or replace those with the same key."""

    table: Table
    rows: Sequence[Row]


class Delete(NamedTuple):
    """Delete the rows with these keys; one that does not exist is ignored."""

    table: Table
    keys: Sequence[Key]


Change = Put | Delete


class ClusterRecords(Protocol):
    """The rows of one store. May be called from any thread."""

    def rows(self, table: Table, keys: Sequence[Key] | None = None) -> list[Row]:
        """Return the rows with these keys, or all rows, in any order."""
        ...

    def keys(self, table: Table) -> list[Key]:
        """Return the keys of all rows, in any order."""
        ...

    def write(self, *changes: Change) -> None:
        """Make all changes or none; they are durable when this returns. A row may occur in one change only.

        After StoreUnreachable the outcome is unknown: repeat the call, or read again. After every other error nothing
        was written. WriterDeposed: another scheduler has taken over; nothing was and nothing will be written.
        """
        ...

    def changes(self) -> int:
        """Return a number that grows with every change, by this process or another one. Costs one short query."""
        ...

    def tidy(self) -> None:
        """Remove what deleted rows have left behind, where this is possible."""
        ...

    def close(self) -> None:
        """Close the store. A second call changes nothing."""
        ...


def check_once(changes: Sequence[Change]) -> None:
    """Assert that every row occurs in one change only, because the order of changes is not defined."""
    seen = [
        (change.table.name, key)
        for change in changes
        for key in ([row[0] for row in change.rows] if isinstance(change, Put) else change.keys)
    ]
    assert len(seen) == len(set(seen)), f"a row is changed twice: {seen}"


class SqliteRecords:
    """A file that only this process can open. Create it with `open`."""

    def __init__(self, path: Path, layout: RecordsLayout) -> None:
        self._path = path
        self._layout = layout
        self._turn = Lock()
        self._database = open_database(path, layout.file)

    @classmethod
    def open(cls, path: Path, layout: RecordsLayout) -> Self:
        """Open the file, or create it."""
        opened = cls(path, layout)
        if layout.secure_delete:
            try:
                with opened._using():
                    opened._database.execute("PRAGMA secure_delete = ON")
            except BaseException:
                opened.close()
                raise
        return opened

    def rows(self, table: Table, keys: Sequence[Key] | None = None) -> list[Row]:
        """Return the rows with these keys, or all rows."""
        query = f"SELECT {table.names} FROM {table.name}"  # noqa: S608 - names of our own tables
        with self._using():
            if keys is None:
                return self._database.execute(query).fetchall()
            one = f"{query} WHERE {table.key.name} = ?"
            found = [self._database.execute(one, (key,)).fetchone() for key in keys]
            return [row for row in found if row is not None]

    def keys(self, table: Table) -> list[Key]:
        """Return the keys of all rows."""
        with self._using():
            query = f"SELECT {table.key.name} FROM {table.name}"  # noqa: S608 - names of our own tables
            return [key for (key,) in self._database.execute(query)]

    def write(self, *changes: Change) -> None:
        """Make all changes or none."""
        check_once(changes)
        with self._using(), transaction(self._database):
            for change in changes:
                name, key = change.table.name, change.table.key.name
                if isinstance(change, Delete):
                    query = f"DELETE FROM {name} WHERE {key} = ?"  # noqa: S608 - names of our own tables
                    self._database.executemany(query, [(key,) for key in change.keys])
                else:
                    self._database.executemany(_upsert(change.table), change.rows)

    def changes(self) -> int:
        """Return 0: no other process can change the file."""
        return 0

    def tidy(self) -> None:
        """Rewrite the write-ahead log, which may hold deleted rows."""
        with self._using():
            self._database.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()

    def close(self) -> None:
        """Close it, leaving a single file without a write-ahead log."""
        with self._turn:
            self._database.close()

    @contextmanager
    def _using(self) -> Iterator[None]:
        with self._turn, as_store_errors(self._path, self._layout.what):
            yield


def _upsert(table: Table) -> str:
    """Return the statement that writes a row. INSERT OR REPLACE would delete the old one, and its dependents with it."""
    marks = ", ".join("?" for _ in table.columns)
    changed = ", ".join(f"{column.name} = excluded.{column.name}" for column in table.columns[1:])
    return (
        f"INSERT INTO {table.name} ({table.names}) VALUES ({marks}) "  # noqa: S608 - names of our own tables
        f"ON CONFLICT ({table.key.name}) DO UPDATE SET {changed}"
    )
