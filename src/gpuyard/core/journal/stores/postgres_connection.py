"""Connections to PostgreSQL in which every wait is bounded and every failure is a journal error.

PostgreSQL's own time limits are not enough. `statement_timeout` ends before the commit: a commit that waits for a disk
or for a synchronous replica waits without limit, and `tcp_user_timeout` does not help while the server's kernel answers.
So the client has a limit of its own for every answer (`Waits.answer_seconds`), after which it closes the connection.

A closed connection means that the outcome of the last statement is unknown; after every other error the server has
rolled it back.
"""

import re
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager, suppress
from threading import Lock
from typing import Any, NamedTuple, TypeVar
from urllib.parse import parse_qsl, urlencode

from gpuyard.core.domain.errors import JournalDamaged, JournalError, StorageFull, StorageUnreachable

try:
    import psycopg
    from psycopg import conninfo
except ImportError as missing:
    raise JournalError("A journal in PostgreSQL needs psycopg: pip install 'gpuyard[postgres]'.") from missing

OLDEST_SERVER = 14
_SCHEMA_NAME = re.compile(r"[a-z_][a-z0-9_]{0,62}")
_NOT_IN_TIME = {"55P03", "57014"}
_CONFLICTS = {"40001", "40P01"}
_DAMAGED = {"XX001", "XX002"}
_KEEPALIVE = {"idle": 10, "interval": 5, "count": 3}

Row = tuple[Any, ...]
Ask = Callable[[str, Mapping[str, Any] | None], list[Row]]
"""Executes one statement and returns its rows."""
T = TypeVar("T")


class Waits(NamedTuple):
    """How long to wait for the database, in seconds. Each is a limit; none is a pause."""

    connect_seconds: int = 5
    """For a connection, to each of the hosts in the address."""
    lock_seconds: float = 5.0
    """For a lock that another session holds."""
    statement_seconds: float = 10.0
    """For a statement on the server, without its commit."""
    answer_seconds: float = 15.0
    """For the answer to a statement, with its commit, by the clock of this process."""

    def longer(self, factor: float) -> "Waits":
        """Return limits for large statements: a snapshot, the retiring of a segment."""
        return self._replace(
            statement_seconds=factor * self.statement_seconds, answer_seconds=factor * self.answer_seconds
        )


class DatabaseAddress(NamedTuple):
    """Where a journal is: a database, and the schema in it that holds its tables."""

    conninfo: str
    schema: str
    shown: str
    """The address without a password, for messages."""

    @classmethod
    def parse(cls, url: str) -> "DatabaseAddress":
        """Parse postgresql://USER@HOST/DATABASE?schema=NAME; libpq's other parameters may follow."""
        try:
            base, _, parameters = url.partition("?")  # urlunsplit would make postgresql:/NAME of postgresql:///NAME
            query = parse_qsl(parameters, keep_blank_values=True)
            schema = dict(query).get("schema", "gpuyard")
            rest = urlencode([(name, value) for name, value in query if name != "schema"])
            plain = f"{base}?{rest}" if rest else base
            known = conninfo.conninfo_to_dict(plain)
        except (ValueError, psycopg.Error) as error:
            raise JournalError(f"The address of the database cannot be read: {_first_line(error)}.") from None
        if not _SCHEMA_NAME.fullmatch(schema):
            raise JournalError(f"schema={schema} is not a name of lower-case letters, digits and underscores.")
        host = known.get("host") or known.get("hostaddr") or "localhost"
        shown = f"{known.get('dbname') or 'the default database'} on {host}, schema {schema}"
        return cls(plain, schema, f"the database {shown}")


class BoundedConnection(psycopg.Connection[Row]):
    """A connection whose every answer has a time limit."""

    answer_seconds = Waits().answer_seconds
    warned = ""
    """The last warning of the server since the beginning of a commit that has to be durable."""

    def wait(self, gen: Any, *args: Any, **kwargs: Any) -> Any:
        """Wait for an answer, at most for `answer_seconds`; afterwards the connection is closed."""
        return super().wait(_limited(gen, time.monotonic() + self.answer_seconds), *args, **kwargs)


class _NoAnswer(Exception):
    """Internal to this module: the time limit of an answer has passed."""


def _limited(gen: Generator[Any, Any, T], until: float) -> Generator[Any, Any, T]:
    """Pass on everything between a generator of psycopg and its driver, which resumes it now and then without news."""
    try:
        wanted = next(gen)
        while True:
            ready = yield wanted
            if not ready and time.monotonic() >= until:
                raise _NoAnswer
            wanted = gen.send(ready)
    except StopIteration as done:
        result: T = done.value
        return result


def connect(address: DatabaseAddress, waits: Waits) -> BoundedConnection:
    """Connect; every commit of the connection is durable when it returns. Raises StorageUnreachable."""
    given = conninfo.conninfo_to_dict(address.conninfo)
    settings = {
        "search_path": address.schema,
        "lock_timeout": f"{_milliseconds(waits.lock_seconds)}",
        "statement_timeout": f"{_milliseconds(waits.statement_seconds)}",
        "idle_in_transaction_session_timeout": f"{_milliseconds(waits.answer_seconds)}",
        "default_transaction_isolation": r"read\ committed",
        "client_min_messages": "warning",
        "client_connection_check_interval": "5000",
        **{f"tcp_keepalives_{name}": f"{value}" for name, value in _KEEPALIVE.items()},
    }
    options = " ".join([str(given.get("options", "")), *(f"-c {name}={value}" for name, value in settings.items())])
    defaults: dict[str, Any] = {
        "application_name": "gpuyard journal",
        "connect_timeout": waits.connect_seconds,
        "target_session_attrs": "read-write",
        "tcp_user_timeout": _milliseconds(waits.answer_seconds),
        "keepalives_idle": _KEEPALIVE["idle"],
        "keepalives_interval": _KEEPALIVE["interval"],
        "keepalives_count": _KEEPALIVE["count"],
    }
    connection: BoundedConnection | None = None
    with as_journal_errors(address, None):
        connection = BoundedConnection.connect(
            conninfo.make_conninfo(**{**defaults, **given, "options": options.strip()}),
            autocommit=True,
            prepare_threshold=2,
        )
    assert connection is not None
    connection.answer_seconds = waits.answer_seconds
    try:
        _check_server(connection, address)
    except BaseException:
        close(connection)
        raise
    return connection


def _check_server(connection: BoundedConnection, address: DatabaseAddress) -> None:
    if connection.info.server_version < OLDEST_SERVER * 10_000:
        raise JournalError(
            f"{_capital(address.shown)} runs PostgreSQL {connection.info.server_version // 10_000}; "
            f"gpuyard needs {OLDEST_SERVER} or newer."
        )
    (durable,) = ask(connection, address, "SELECT current_setting('fsync'), current_setting('synchronous_commit')")
    if durable[0] != "on":
        raise JournalError(
            f"{_capital(address.shown)} runs with fsync = {durable[0]}: a power loss could damage it. Set fsync = on."
        )
    if durable[1] in {"off", "local"}:  # a default of the server, the database or the role
        ask(connection, address, "SET synchronous_commit = on")
    connection.add_notice_handler(lambda notice: _note(connection, notice))


def _note(connection: BoundedConnection, notice: Any) -> None:
    if notice.severity_nonlocalized == "WARNING":
        connection.warned = str(notice.message_primary)


def ask(
    connection: BoundedConnection, address: DatabaseAddress, query: str, params: Mapping[str, Any] | None = None
) -> list[Row]:
    """Execute one statement, in a transaction of its own unless one is open; return its rows."""
    with as_journal_errors(address, connection):
        cursor = connection.execute(query.encode(), params, binary=True)
        return cursor.fetchall() if cursor.description else []


def commit(connection: BoundedConnection, address: DatabaseAddress, query: str, params: Mapping[str, Any]) -> list[Row]:
    """Execute one statement in a transaction of its own; when this returns, it is durable, on replicas as well."""
    connection.warned = ""
    rows = ask(connection, address, query, params)
    _refuse_warned(connection, address)
    return rows


def _refuse_warned(connection: BoundedConnection, address: DatabaseAddress) -> None:
    """Treat a warning like a lost answer: a commit whose wait for a replica was cancelled succeeds with a warning.

    The commit can then still be lost with its server. What is written after it in the same way is not durable without it.
    """
    if connection.warned:
        close(connection)
        raise StorageUnreachable(f"{_capital(address.shown)} warned: {connection.warned}. Try again.")


def asker(connection: BoundedConnection, address: DatabaseAddress) -> Ask:
    """Return a function that executes statements on this connection."""
    return lambda query, params: ask(connection, address, query, params)


class LastingConnection:
    """A connection for queries, shared by all threads; it is opened when it is needed, and again when it was lost."""

    def __init__(self, address: DatabaseAddress, waits: Waits) -> None:
        self._address = address
        self._waits = waits
        self._mutex = Lock()
        self._connection: BoundedConnection | None = None
        self._closed = False

    def __call__(self, query: str, params: Mapping[str, Any] | None = None) -> list[Row]:
        """Execute a query, a second time if the connection turns out to be lost."""
        with self._mutex:
            if self._closed:
                raise JournalError("The journal is closed. Open it again.")
            if self._connection is not None and not self._connection.closed:
                try:
                    return ask(self._connection, self._address, query, params)
                except StorageUnreachable:
                    if not self._connection.closed:
                        raise
            self._connection = connect(self._address, self._waits)
            return ask(self._connection, self._address, query, params)

    def close(self) -> None:
        """Close the connection for good."""
        with self._mutex:
            self._closed = True
            close(self._connection)


@contextmanager
def transaction(connection: BoundedConnection, address: DatabaseAddress) -> Iterator[None]:
    """Execute several statements, all or none; at the end they are durable, on replicas as well."""
    with as_journal_errors(address, connection), connection.transaction():
        yield
        connection.warned = ""
    _refuse_warned(connection, address)


@contextmanager
def as_journal_errors(address: DatabaseAddress, connection: BoundedConnection | None) -> Iterator[None]:
    """Convert errors of psycopg to journal errors. The connection is closed if the outcome of a statement is unknown."""
    try:
        yield
    except _NoAnswer:
        close(connection)
        raise StorageUnreachable(f"{_capital(address.shown)} did not answer in time. Try again.") from None
    except psycopg.Error as error:
        raise _translated(address, connection, error) from error
    except KeyboardInterrupt:
        close(connection)
        raise


def _translated(address: DatabaseAddress, connection: BoundedConnection | None, error: psycopg.Error) -> JournalError:
    state, said = error.sqlstate or "", _first_line(error)
    fatal = error.diag.severity_nonlocalized in {"FATAL", "PANIC"}
    silent = not state and isinstance(error, psycopg.OperationalError | psycopg.InterfaceError)
    if connection is None or connection.closed or fatal or silent or state.startswith(("08", "57P")):
        close(connection)
        lost = "cannot be reached" if connection is None else "was lost"
        subject = address.shown if connection is None else f"The connection to {address.shown}"
        return StorageUnreachable(f"{_capital(subject)} {lost}: {said}. Try again.")
    if state == "25006":
        close(connection)
        return StorageUnreachable(f"{_capital(address.shown)} is read-only, as a replica is. Try again.")
    if state in _NOT_IN_TIME:
        return StorageUnreachable(f"{_capital(address.shown)} did not finish in time ({said}). Nothing was written.")
    if state in _CONFLICTS:
        return StorageUnreachable(f"{_capital(address.shown)} refused a conflicting write ({said}). Try again.")
    if state == "53100":
        return StorageFull(f"No space is left for {address.shown}. Nothing was written; free disk space and try again.")
    if state.startswith("53"):
        return StorageUnreachable(f"{_capital(address.shown)} is out of resources ({said}). Nothing was written.")
    if state in _DAMAGED:
        return JournalDamaged(f"{_capital(address.shown)} is damaged: {said}. Restore it from a backup.")
    return JournalError(f"{_capital(address.shown)} cannot be used: {said}.")


def close(connection: BoundedConnection | None) -> None:
    """Close a connection; one that is closed already is left alone."""
    if connection is not None:
        with suppress(psycopg.Error):
            connection.close()


def _milliseconds(seconds: float) -> int:
    return max(1, round(1000 * seconds))


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0].rstrip(".")


def _capital(sentence: str) -> str:
    return sentence[:1].upper() + sentence[1:]
