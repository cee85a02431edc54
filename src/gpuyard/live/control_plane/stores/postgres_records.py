"""Small stores in the database of the journal.

    leader          epoch                      of the journal: who writes
    record_stores   name  version  changes     one row for each store
    users, tokens, secrets, documents

Every write is one statement that proves that it may write: it locks the row in `leader` against a take-over (FOR SHARE,
until the commit), compares the epoch, and counts `changes` from the number that this writer has seen last. If one of the
two differs, nothing is written. One statement and not a transaction: a writer that is paused between two statements
would hold the lock, and appends to the journal would wait for it.

The number also ends statements that the server still has after a lost connection: the next write draws a new number
first, so the old statement cannot overwrite what came later. The changes are then made again; they are whole rows.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from threading import Lock
from typing import Any, Self

from gpuyard.core.domain.errors import (
    JournalDamaged,
    JournalError,
    JournalFromFuture,
    StorageFull,
    StorageUnreachable,
    WriterDeposed,
)
from gpuyard.core.journal.stores import postgres_connection as database
from gpuyard.core.journal.stores import postgres_tables
from gpuyard.core.journal.stores.postgres_connection import BoundedConnection, DatabaseAddress, Waits
from gpuyard.live.control_plane.stores.cluster_records import (
    Change,
    Delete,
    Key,
    RecordColumn,
    RecordsLayout,
    Row,
    Table,
    check_once,
)
from gpuyard.live.control_plane.stores.database import (
    StoreDamaged,
    StoreError,
    StoreFromFuture,
    StoreFromPast,
    StoreFull,
    StoreLocked,
    StoreMissing,
    StoreUnreachable,
)
from gpuyard.live.control_plane.stores.record_layouts import LAYOUTS

_LEAD = "lead AS MATERIALIZED (SELECT epoch FROM leader WHERE epoch = %(epoch)s FOR SHARE)"
_DRAW = f"""WITH {_LEAD} UPDATE record_stores SET changes = changes + 1 FROM lead WHERE name = %(store)s
    RETURNING changes"""  # noqa: S608 - constants
_COUNT = """counted AS (UPDATE record_stores SET changes = changes + 1 FROM lead
    WHERE name = %(store)s AND changes = %(before)s RETURNING changes)"""
_STORES = """CREATE TABLE IF NOT EXISTS record_stores (name text PRIMARY KEY, version integer NOT NULL,
    changes bigint NOT NULL)"""


class PostgresRecords:
    """See gpuyard.live.control_plane.stores.cluster_records.ClusterRecords. Create it with `open`."""

    def __init__(
        self, address: DatabaseAddress, waits: Waits, layout: RecordsLayout, connection: BoundedConnection
    ) -> None:
        self._address = address
        self._waits = waits
        self._layout = layout
        self._connection = connection
        self._turn = Lock()
        self._closed = False
        self._epoch: int | None = None
        """The epoch of this writer; None: this process only reads."""
        self._changes: int | None = None
        """The number of the last write of this writer; None: it has to be drawn first."""

    @classmethod
    def open(cls, url: str, layout: RecordsLayout, *, epoch: int | None = None, waits: Waits | None = None) -> Self:
        """Open a store in the database of a journal.

        `epoch`: that of the open journal; missing tables are then created. None: only read, and raise StoreMissing
        if there are no tables yet.
        """
        with _as_store_errors():
            address, waits = DatabaseAddress.parse(url), waits or Waits()
            connection = database.connect(address, waits)
            try:
                postgres_tables.check_version(connection, address)
                if epoch is not None:
                    _create_if_missing(connection, address, layout, epoch)
                _check_version(connection, address, layout)
            except BaseException:
                database.close(connection)
                raise
        opened = cls(address, waits, layout, connection)
        if epoch is not None:
            try:
                opened.claim(epoch)
            except BaseException:
                opened.close()
                raise
        return opened

    @property
    def shown(self) -> str:
        """The address without a password, for messages."""
        return self._address.shown

    @property
    def schema(self) -> str:
        """The schema of the tables."""
        return self._address.schema

    def claim(self, epoch: int) -> None:
        """Begin to write, with the epoch that the journal was opened with."""
        with self._using():
            self._epoch, self._changes = epoch, None
            self._draw()

    def rows(self, table: Table, keys: Sequence[Key] | None = None) -> list[Row]:
        """Return the rows with these keys, or all rows."""
        query = f"SELECT {table.names} FROM {table.name}"  # noqa: S608 - names of our own tables
        if keys is None:
            return self._read(query)
        return self._read(f"{query} WHERE {table.key.name} = ANY({_array(table.key, 'keys')})", {"keys": list(keys)})

    def keys(self, table: Table) -> list[Key]:
        """Return the keys of all rows."""
        return [key for (key,) in self._read(f"SELECT {table.key.name} FROM {table.name}")]  # noqa: S608 - as above

    def changes(self) -> int:
        """Return the number of the last write."""
        found = self._read("SELECT changes FROM record_stores WHERE name = %(store)s", {"store": self._layout.name})
        if not found:
            raise _damaged(self._address, self._layout, "its row in record_stores is not there")
        return int(found[0][0])

    def write(self, *changes: Change) -> None:
        """Make all changes or none."""
        check_once(changes)
        query, given = _statement(changes)
        with self._using():
            if self._epoch is None:
                raise StoreError(
                    f"This scheduler only reads {self._address.shown} ({self._layout.what}). "
                    "Send the request to the scheduler that writes."
                )
            try:
                self._execute(query, given)
            except StorageUnreachable:
                if self._changes is not None:
                    raise  # the server has rolled it back
                # Often only the connection is gone: a restarted server, a firewall that forgot it.
                self._execute(query, given)

    def tidy(self) -> None:
        """Do nothing: old versions of rows are removed by the server."""

    def close(self) -> None:
        """Close the connection."""
        with self._turn:
            self._closed = True
            database.close(self._connection)

    # --- statements --------------------------------------------------------------------------------------------------

    def _execute(self, query: str, given: Mapping[str, Any]) -> None:
        """Execute a write. Afterwards `_changes` is None if the outcome is unknown."""
        before = self._draw() if self._changes is None else self._changes
        connection, self._changes = self._connected(), None
        fields = {**given, "epoch": self._epoch, "store": self._layout.name, "before": before}
        try:
            counted = database.commit(connection, self._address, query, fields)
        except JournalError:
            if not connection.closed:
                self._changes = before
            raise
        if not counted:
            raise self._refused()
        self._changes = before + 1

    def _draw(self) -> int:
        """Draw the next number: what an earlier statement still wants to write is refused from now on."""
        drawn = self._retried(
            lambda connection: database.commit(
                connection, self._address, _DRAW, {"epoch": self._epoch, "store": self._layout.name}
            )
        )
        if not drawn:
            raise self._refused()
        self._changes = int(drawn[0][0])
        return self._changes

    def _refused(self) -> Exception:
        """Return why a write did not find its rows."""
        found = self._retried(
            lambda connection: database.ask(connection, self._address, "SELECT epoch, holder FROM leader")
        )
        if not found or found[0][0] != self._epoch:
            holder = found[0][1] if found and found[0][1] else "another process"
            return WriterDeposed(
                f"{_capital(self._address.shown)} is now written by {holder}, so this scheduler has stopped writing "
                f"{self._layout.what}. Nothing was written."
            )
        return StoreLocked(
            f"Another process of this scheduler uses {self._address.shown} ({self._layout.what}). Stop it first."
        )

    def _read(self, query: str, given: Mapping[str, Any] | None = None) -> list[Row]:
        with self._using():
            return self._retried(lambda connection: database.ask(connection, self._address, query, given))

    def _retried(self, asking: Any) -> list[Row]:
        """Execute a statement that may be executed twice; again if the connection turns out to be lost."""
        connection = self._connected()
        try:
            rows: list[Row] = asking(connection)
        except StorageUnreachable:
            if not connection.closed:
                raise
            rows = asking(self._connected())
        return rows

    def _connected(self) -> BoundedConnection:
        if self._connection.closed:
            self._connection = database.connect(self._address, self._waits)
        return self._connection

    @contextmanager
    def _using(self) -> Iterator[None]:
        with self._turn, _as_store_errors():
            if self._closed:
                raise StoreError(f"{_capital(self._address.shown)} ({self._layout.what}) is closed. Open it again.")
            yield


def _statement(changes: Sequence[Change]) -> tuple[str, dict[str, Any]]:
    """Return one statement for all changes, and its parameters: an array for each column."""
    parts, given = [_LEAD, _COUNT], dict[str, Any]()
    for number, change in enumerate(changes):
        table, key = change.table, change.table.key
        if isinstance(change, Delete):
            name = f"keys_{number}"
            given[name] = list(change.keys)
            part = f"DELETE FROM {table.name} USING counted WHERE {key.name} = ANY({_array(key, name)})"  # noqa: S608 - names of our own tables
        else:
            arrays = [_array(column, f"{column.name}_{number}") for column in table.columns]
            for place, column in enumerate(table.columns):
                given[f"{column.name}_{number}"] = [row[place] for row in change.rows]
            put = ", ".join(f"{column.name} = EXCLUDED.{column.name}" for column in table.columns[1:])
            part = f"""INSERT INTO {table.name} ({table.names})
                SELECT {", ".join(f"given.{column.name}" for column in table.columns)}
                FROM counted, unnest({", ".join(arrays)}) AS given ({table.names})
                ON CONFLICT ({key.name}) DO UPDATE SET {put}"""  # noqa: S608 - names of our own tables
        parts.append(f"change_{number} AS ({part})")
    return f"WITH {', '.join(parts)} SELECT changes FROM counted", given  # noqa: S608 - as above


def _array(column: RecordColumn, name: str) -> str:
    return f"%({name})t::{column.type}[]"


# --- tables ------------------------------------------------------------------------------------------------------------


def _create_if_missing(
    connection: BoundedConnection, address: DatabaseAddress, layout: RecordsLayout, epoch: int
) -> None:
    """Create the tables of a store in one transaction, unless another scheduler has taken over."""
    if _version(connection, address, layout) is not None:
        return
    with database.transaction(connection, address):
        held = f"WITH {_LEAD} SELECT epoch FROM lead"  # noqa: S608 - constants
        if not database.ask(connection, address, held, {"epoch": epoch}):
            raise WriterDeposed(f"{_capital(address.shown)} is now written by another process. Nothing was written.")
        _create(connection, address, layout)


def _create(connection: BoundedConnection, address: DatabaseAddress, layout: RecordsLayout) -> None:
    database.ask(connection, address, _STORES)
    for table in layout.tables:
        columns = ", ".join(
            f"{column.name} {column.type}{'' if column.nullable else ' NOT NULL'}" for column in table.columns
        )
        database.ask(connection, address, f"CREATE TABLE {table.name} ({columns}, PRIMARY KEY ({table.key.name}))")
    insert = "INSERT INTO record_stores (name, version, changes) VALUES (%(store)s, %(version)s, 0)"
    database.ask(connection, address, insert, {"store": layout.name, "version": layout.version})


def has_stores(url: str) -> bool:
    """Whether a database has tables of any store."""
    with _as_store_errors():
        address = DatabaseAddress.parse(url)
        with closing(database.connect(address, Waits())) as connection:
            return any(_version(connection, address, layout) is not None for layout in LAYOUTS)


def load(
    connection: BoundedConnection, address: DatabaseAddress, layout: RecordsLayout, rows: Mapping[str, Sequence[Row]]
) -> None:
    """Create the tables of a store and fill them, within a transaction; then compare them. `rows`: by table."""
    with _as_store_errors():
        if _version(connection, address, layout) is not None:
            raise StoreError(
                f"There are {layout.what} in {address.shown} already. Choose another schema: ?schema=NAME."
            )
        _create(connection, address, layout)
        for table in layout.tables:
            wanted = rows[table.name]
            arrays = ", ".join(_array(column, column.name) for column in table.columns)
            given = {column.name: [row[place] for row in wanted] for place, column in enumerate(table.columns)}
            insert = f"INSERT INTO {table.name} ({table.names}) SELECT * FROM unnest({arrays})"  # noqa: S608 - names of our own tables
            database.ask(connection, address, insert, given)
            stored = database.ask(connection, address, f"SELECT {table.names} FROM {table.name}")  # noqa: S608 - as above
            if sorted(stored) != sorted(wanted):
                raise _damaged(address, layout, "the copy differs from its source")


def _version(connection: BoundedConnection, address: DatabaseAddress, layout: RecordsLayout) -> int | None:
    """Return the version of the tables of a store; None: there are none."""
    query = """SELECT 1 FROM pg_class JOIN pg_namespace ON pg_namespace.oid = relnamespace
        WHERE nspname = %(schema)s AND relname = 'record_stores'"""
    if not database.ask(connection, address, query, {"schema": address.schema}):
        return None
    query = "SELECT version FROM record_stores WHERE name = %(store)s"
    found = database.ask(connection, address, query, {"store": layout.name})
    return int(found[0][0]) if found else None


def _check_version(connection: BoundedConnection, address: DatabaseAddress, layout: RecordsLayout) -> None:
    version = _version(connection, address, layout)
    where = f"{address.shown} ({layout.what})"
    if version is None:
        raise StoreMissing(f"There are no tables in {where} yet. Start a scheduler that writes first.")
    if version > layout.version:
        raise StoreFromFuture(
            f"The tables in {where} have version {version}, and this gpuyard uses version {layout.version}: a newer "
            "one created them. Use that version or a newer one."
        )
    if version < layout.version:
        raise StoreFromPast(
            f"The tables in {where} have version {version}, which this gpuyard no longer reads. "
            "Start gpuyard once with the previous version."
        )


def _damaged(address: DatabaseAddress, layout: RecordsLayout, how: str) -> StoreDamaged:
    where = f"{_capital(address.shown)} ({layout.what})"
    return StoreDamaged(f"{where} is damaged: {how}. {postgres_tables.WAY_OUT}")


@contextmanager
def _as_store_errors() -> Iterator[None]:
    """Convert errors of the database to `StoreError`. WriterDeposed stays what it is: the scheduler has to stop."""
    try:
        yield
    except WriterDeposed:
        raise
    except StorageUnreachable as error:
        raise StoreUnreachable(str(error)) from error
    except StorageFull as error:
        raise StoreFull(str(error)) from error
    except JournalDamaged as error:
        raise StoreDamaged(str(error)) from error
    except JournalFromFuture as error:
        raise StoreFromFuture(str(error)) from error
    except JournalError as error:
        raise StoreError(str(error)) from error


def _capital(sentence: str) -> str:
    return sentence[:1].upper() + sentence[1:]
