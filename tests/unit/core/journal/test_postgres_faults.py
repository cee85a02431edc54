"""Faults of a journal in PostgreSQL: lost connections, several writers, slow answers, damage. The server is real."""

import gzip
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from gpuyard.core.domain.errors import (
    EventsRetired,
    JournalDamaged,
    JournalError,
    JournalFromFuture,
    JournalLocked,
    NoJournal,
    StorageUnreachable,
    WriterDeposed,
)
from gpuyard.core.domain.events import TaskHeld
from gpuyard.core.domain.values import TaskId
from gpuyard.core.journal.port import AuditRetention
from gpuyard.core.journal.records import GENESIS, JournalEntry, Position, Snapshot
from gpuyard.core.journal.stores.sqlite import read_folder
from tests.postgres_server import PostgresServer

pytest.importorskip("psycopg", reason="psycopg is missing; install the extra dev.")

import psycopg

from gpuyard.core.journal.stores import postgres_connection as database
from gpuyard.core.journal.stores.postgres import PostgresJournal
from gpuyard.core.journal.stores.postgres_connection import DatabaseAddress, Waits
from gpuyard.core.journal.stores.postgres_follower import PostgresFollower

SHORT = Waits(connect_seconds=2, lock_seconds=0.3, statement_seconds=1.0, answer_seconds=1.5)
PATIENCE_SECONDS = 60.0


def held(*tasks: int) -> list[JournalEntry]:
    return [JournalEntry(float(task), TaskHeld(TaskId(task))) for task in tasks]


def tasks_in(journal: PostgresJournal) -> list[int]:
    return [record.event.task for record in journal.read() if isinstance(record.event, TaskHeld)]


@contextmanager
def session(url: str) -> Iterator[psycopg.Connection[tuple[Any, ...]]]:
    """A connection of a person with psql."""
    address = DatabaseAddress.parse(url)
    with psycopg.connect(address.conninfo, autocommit=True, options=f"-c search_path={address.schema}") as connection:
        yield connection


def sql(url: str, *statements: str) -> list[tuple[Any, ...]]:
    rows: list[tuple[Any, ...]] = []
    with session(url) as connection:
        for statement in statements:
            cursor = connection.execute(statement.encode())
            rows = cursor.fetchall() if cursor.description else []
    return rows


def until(ready: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not ready():
        assert time.monotonic() < deadline, "it does not happen"
        time.sleep(0.01)


def append_at_last(journal: PostgresJournal, batch: list[JournalEntry]) -> Position:
    """Append as the scheduler does: the same events again until they are written."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        try:
            return journal.append(batch)
        except StorageUnreachable:
            assert time.monotonic() < deadline, "the database does not come back"


class LossyRelay:
    """Relays connections to the socket of a server, and can lose an answer after the server has given it."""

    def __init__(self, folder: Path, server: PostgresServer) -> None:
        self.folder = folder
        self._server = server
        self.refuses = False
        self.loses_next = False
        self._sockets: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(folder / ".s.PGSQL.5432"))
        self._listener.listen()
        self._accepting = threading.Thread(target=self._accept)
        self._accepting.start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.socket(socket.AF_UNIX)
                self._sockets += [client, server]
                try:
                    if self.refuses:
                        raise ConnectionRefusedError
                    server.connect(str(self._server.socket))
                except OSError:
                    _shut(client)
                    continue
                for source, target, is_answer in ((client, server, False), (server, client, True)):
                    self._threads.append(threading.Thread(target=self._pump, args=(source, target, is_answer)))
                    self._threads[-1].start()

    def _pump(self, source: socket.socket, target: socket.socket, is_answer: bool) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                if is_answer and self.loses_next:
                    self.loses_next = False
                    break
                target.sendall(data)
        _shut(source, target)

    def close(self) -> None:
        _shut(self._listener, *self._sockets)
        for thread in (self._accepting, *self._threads):
            thread.join(PATIENCE_SECONDS)
        for each in (self._listener, *self._sockets):
            each.close()


def _shut(*sockets: socket.socket) -> None:
    for each in sockets:
        with suppress(OSError):
            each.shutdown(socket.SHUT_RDWR)


@pytest.fixture
def relay(tmp_path: Path, postgres: PostgresServer) -> Iterator[LossyRelay]:
    made = LossyRelay(tmp_path, postgres)
    yield made
    made.close()


@pytest.fixture
def url(postgres: PostgresServer) -> str:
    return postgres.url()


# --- an append whose outcome is unknown --------------------------------------------------------------------------------


def test_an_append_that_was_written_before_its_answer_was_lost_is_not_repeated(
    postgres: PostgresServer, relay: LossyRelay
) -> None:
    journal = PostgresJournal.open(postgres.url("written_and_lost", folder=relay.folder))
    journal.append(held(1))
    relay.loses_next = relay.refuses = True
    with pytest.raises(StorageUnreachable):
        journal.append(held(2, 3))
    assert journal.head.seq == 1
    postgres.crash()
    with pytest.raises(StorageUnreachable):
        journal.append(held(2, 3))
    postgres.start()
    assert sql(postgres.url("written_and_lost"), "SELECT count(*) FROM events") == [(3,)]
    relay.refuses = False

    assert journal.append(held(2, 3)).seq == 3
    assert journal.append(held(4)).seq == 4
    assert tasks_in(journal) == [1, 2, 3, 4]
    journal.close()


def test_a_lost_answer_alone_is_found_out_within_the_call(postgres: PostgresServer, relay: LossyRelay) -> None:
    journal = PostgresJournal.open(postgres.url(folder=relay.folder))
    relay.loses_next = True
    assert journal.append(held(1, 2)).seq == 2
    assert tasks_in(journal) == [1, 2]
    journal.close()


def test_an_append_that_the_server_did_not_finish_is_repeated(postgres: PostgresServer, url: str) -> None:
    journal = PostgresJournal.open(url)
    journal.append(held(1))
    failed: list[Exception] = []

    def append() -> None:
        try:
            journal.append(held(2))
        except JournalError as error:
            failed.append(error)

    blocker = psycopg.connect(DatabaseAddress.parse(url).conninfo)
    blocker.execute(f"SELECT 1 FROM {DatabaseAddress.parse(url).schema}.leader FOR UPDATE".encode())
    thread = threading.Thread(target=append)
    thread.start()
    until(
        lambda: sql(url, "SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%WITH lead%'")
    )
    postgres.crash()
    thread.join(PATIENCE_SECONDS)
    blocker.close()
    assert isinstance(failed[0], StorageUnreachable)
    postgres.start()
    assert sql(url, "SELECT count(*) FROM events") == [(1,)]

    assert journal.append(held(2)).seq == 2
    assert tasks_in(journal) == [1, 2]
    journal.close()


def test_other_events_in_place_of_the_interrupted_ones_are_refused(postgres: PostgresServer, relay: LossyRelay) -> None:
    journal = PostgresJournal.open(postgres.url(folder=relay.folder))
    relay.loses_next = relay.refuses = True
    with pytest.raises(StorageUnreachable):
        journal.append(held(1))
    relay.refuses = False
    with pytest.raises(JournalError, match="Other events were given"):
        journal.append(held(2))
    with pytest.raises(JournalError, match="Open the journal again"):
        journal.append(held(1))
    journal.close()


def test_nothing_acknowledged_is_lost_or_doubled_while_the_server_crashes(postgres: PostgresServer, url: str) -> None:
    journal = PostgresJournal.open(url)
    acknowledged: list[Position] = []
    ends = threading.Event()

    def write() -> None:
        while not ends.is_set():
            first = journal.head.seq + 1
            acknowledged.append(append_at_last(journal, held(*range(first, first + 1 + first % 7))))

    thread = threading.Thread(target=write)
    thread.start()
    for _ in range(3):
        reached = len(acknowledged)
        until(lambda reached=reached: len(acknowledged) > reached + 20)  # type: ignore[misc]
        postgres.crash()
        postgres.start()
    ends.set()
    thread.join(PATIENCE_SECONDS)
    head = acknowledged[-1]
    journal.close()

    journal = PostgresJournal.open(url, witness=head)
    assert journal.head == head
    assert tasks_in(journal) == list(range(1, head.seq + 1))
    journal.close()


# --- several writers ---------------------------------------------------------------------------------------------------


def test_a_second_writer_is_refused_and_told_who_writes(url: str) -> None:
    journal = PostgresJournal.open(url)
    with pytest.raises(JournalLocked, match=f"written by process {os.getpid()} on"):
        PostgresJournal.open(url, waits=SHORT)
    journal.append(held(1))
    journal.close()
    journal = PostgresJournal.open(url)
    assert journal.epoch == 2
    journal.close()


def test_a_deposed_writer_inserts_nothing_and_is_told(url: str) -> None:
    old = PostgresJournal.open(url)
    old.append(held(1))
    new = PostgresJournal.open(url, take_over=True)
    assert new.epoch == old.epoch + 1
    for _ in range(2):
        with pytest.raises(WriterDeposed, match="taken over by process"):
            old.append(held(2))
    assert new.append(held(3)).seq == 2
    assert tasks_in(new) == [1, 3]
    assert sql(url, "SELECT seq, epoch FROM events ORDER BY seq") == [(1, 1), (2, 2)]
    old.close()
    new.close()


def test_a_deposed_writer_saves_no_snapshot_and_retires_nothing(url: str) -> None:
    old = PostgresJournal.open(url, segment_events=1)
    heads = [old.append(held(task)) for task in (1, 2)]
    for head in heads:
        old.save_snapshot(Snapshot(head, "old"))
    new = PostgresJournal.open(url, take_over=True)
    with pytest.raises(WriterDeposed):
        old.save_snapshot(Snapshot(heads[1], "late"))
    with pytest.raises(WriterDeposed):
        old.retire()
    assert [snapshot.state for snapshot in new.usable_snapshots()] == ["old", "old"]
    assert new.verify() == 2
    old.close()
    new.close()


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ("session = session + 1", WriterDeposed),
        ("epoch = epoch + 1", WriterDeposed),
        ("epoch = epoch - 1", JournalDamaged),
        ("seq = seq - 1", JournalDamaged),
        (r"hash = '\x00112233445566778899aabbccddeeff'", JournalDamaged),
    ],
)
def test_an_append_proves_epoch_session_position_and_hash(url: str, change: str, error: type[JournalError]) -> None:
    journal = PostgresJournal.open(url)
    journal.append(held(1, 2))
    sql(url, f"UPDATE leader SET {change}")
    with pytest.raises(error):
        journal.append(held(3))
    assert sql(url, "SELECT count(*) FROM events") == [(2,)]
    journal.close()


PAUSED = """
import sys
from gpuyard.core.domain.errors import JournalError
from gpuyard.core.domain.events import TaskHeld
from gpuyard.core.journal.records import JournalEntry
from gpuyard.core.journal.stores.postgres import PostgresJournal

journal = PostgresJournal.open(sys.argv[1])
for line in sys.stdin:
    try:
        print(journal.append([JournalEntry(1.0, TaskHeld(int(line)))]).seq, flush=True)
    except JournalError as error:
        print(error.code, flush=True)
"""


def test_a_writer_that_was_paused_during_a_take_over_can_do_nothing_when_it_wakes_up(url: str) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", PAUSED, url], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as paused:
        assert paused.stdin is not None
        assert paused.stdout is not None
        print(1, file=paused.stdin, flush=True)
        assert paused.stdout.readline() == "1\n"
        paused.send_signal(signal.SIGSTOP)
        print(2, file=paused.stdin, flush=True)

        journal = PostgresJournal.open(url, take_over=True)
        assert journal.append(held(3)).seq == 2
        paused.send_signal(signal.SIGCONT)
        assert paused.stdout.readline() == "WriterDeposed\n"
        print(4, file=paused.stdin, flush=True)
        assert paused.stdout.readline() == "WriterDeposed\n"
        paused.stdin.close()
    assert tasks_in(journal) == [1, 3]
    journal.close()


def test_writers_that_depose_each_other_leave_one_history(url: str) -> None:
    written: list[int] = []
    rounds = 12

    def fight(first: int) -> None:
        for number in range(first, first + 1000 * rounds, 1000):
            with suppress(WriterDeposed, StorageUnreachable):
                journal = PostgresJournal.open(url, take_over=True)
                try:
                    for task in range(number, number + 3):
                        journal.append(held(task))
                        written.append(task)
                finally:
                    journal.close()

    threads = [threading.Thread(target=fight, args=(100_000 * (1 + each),)) for each in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_SECONDS)
    journal = PostgresJournal.open(url)
    assert sorted(tasks_in(journal)) == sorted(written)
    epochs = [epoch for (epoch,) in sql(url, "SELECT epoch FROM events ORDER BY seq")]
    assert epochs == sorted(epochs)
    journal.close()


def test_a_statement_that_the_server_still_has_cannot_write_after_the_next_session(url: str) -> None:
    journal = PostgresJournal.open(url, waits=SHORT)
    journal.append(held(1))
    ((backend,),) = sql(
        url, "SELECT pid FROM pg_stat_activity WHERE query LIKE '%WITH lead%' AND pid <> pg_backend_pid()"
    )
    os.kill(backend, signal.SIGSTOP)
    try:
        assert append_at_last(journal, held(2)).seq == 2
    finally:
        os.kill(backend, signal.SIGCONT)
    until(lambda: not sql(url, f"SELECT 1 FROM pg_stat_activity WHERE pid = {backend}"))
    assert append_at_last(journal, held(3)).seq == 3
    assert tasks_in(journal) == [1, 2, 3]
    journal.close()


# --- slow answers ------------------------------------------------------------------------------------------------------


def test_a_lock_that_is_not_released_delays_an_append_and_nothing_is_written(url: str) -> None:
    journal = PostgresJournal.open(url, waits=SHORT)
    with session(url) as blocker, blocker.transaction():
        blocker.execute("SELECT 1 FROM leader FOR UPDATE")
        with pytest.raises(StorageUnreachable, match="Nothing was written"):
            journal.append(held(1))
    assert journal.append(held(1)).seq == 1
    assert tasks_in(journal) == [1]
    journal.close()


@contextmanager
def absent_replica(url: str) -> Iterator[None]:
    """Every commit waits for a replica that does not exist."""
    admin = "SET synchronous_commit = local"
    ended = threading.Event()
    with session(url) as probe:
        probe.execute("CREATE TABLE IF NOT EXISTS public.probe (n integer)")

        def commit() -> None:
            while not ended.is_set():
                probe.execute("INSERT INTO public.probe VALUES (1)")

        thread = threading.Thread(target=commit)
        sql(url, admin, "ALTER SYSTEM SET synchronous_standby_names = 'absent'", "SELECT pg_reload_conf()")
        waits = f"SELECT 1 FROM pg_stat_activity WHERE pid = {probe.info.backend_pid} AND wait_event = 'SyncRep'"
        thread.start()
        try:
            until(lambda: sql(url, waits))  # the setting has reached the process that decides
            yield
        finally:
            ended.set()
            sql(url, admin, "ALTER SYSTEM RESET synchronous_standby_names", "SELECT pg_reload_conf()")
            thread.join(PATIENCE_SECONDS)


def test_a_commit_that_waits_for_a_replica_is_given_up_in_time_and_found_later(url: str) -> None:
    journal = PostgresJournal.open(url, waits=SHORT)
    with absent_replica(url), pytest.raises(StorageUnreachable):
        journal.append(held(1))
    assert append_at_last(journal, held(1)).seq == 1
    assert tasks_in(journal) == [1]
    journal.close()


def test_the_limit_of_the_server_for_statements_does_not_end_a_commit_and_the_limit_of_the_client_does(
    url: str,
) -> None:
    PostgresJournal.open(url).close()
    connection = database.connect(address := DatabaseAddress.parse(url), SHORT._replace(statement_seconds=0.3))
    with absent_replica(url), pytest.raises(StorageUnreachable, match="did not answer in time"):
        database.ask(connection, address, "UPDATE leader SET holder = holder")
    assert connection.closed


def test_a_commit_whose_wait_for_a_replica_was_cancelled_is_not_acknowledged(url: str) -> None:
    journal = PostgresJournal.open(url, waits=SHORT._replace(answer_seconds=30.0))
    outcome: list[object] = []

    def append() -> None:
        try:
            outcome.append(journal.append(held(1)))
        except JournalError as error:
            outcome.append(error)

    cancelled: list[tuple[Any, ...]] = []
    cancel = """SELECT pg_cancel_backend(pid), query FROM pg_stat_activity
        WHERE wait_event = 'SyncRep' AND application_name = 'gpuyard journal'"""
    with absent_replica(url):
        thread = threading.Thread(target=append)
        thread.start()
        while thread.is_alive():  # the append, and then the statement that finds out what became of it
            cancelled += sql(url, "SET synchronous_commit = local", cancel)
            thread.join(0.05)
    assert "WITH lead" in cancelled[0][1]
    assert "session = session + 1" in cancelled[-1][1]
    assert isinstance(outcome[0], StorageUnreachable)
    assert append_at_last(journal, held(1)).seq == 1
    assert tasks_in(journal) == [1]
    journal.close()


def test_a_server_that_accepts_no_connection_is_given_up_in_time(postgres: PostgresServer, url: str) -> None:
    assert postgres.process is not None
    postgres.process.send_signal(signal.SIGSTOP)
    try:
        with pytest.raises(StorageUnreachable, match="cannot be reached"):
            PostgresJournal.open(url, waits=SHORT)
    finally:
        postgres.process.send_signal(signal.SIGCONT)


def test_readers_connect_again_when_their_connection_was_lost(url: str) -> None:
    journal = PostgresJournal.open(url)
    journal.append(held(1, 2))
    assert tasks_in(journal) == [1, 2]
    sql(url, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'gpuyard journal'")
    assert tasks_in(journal) == [1, 2]
    assert journal.append(held(3)).seq == 3
    journal.close()


# --- the server and its tables -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("version", "error", "message"),
    [(3, JournalFromFuture, "a newer one created them"), (0, JournalError, "gpuyard journal copy")],
)
def test_tables_of_another_version_are_refused_with_the_way_out(
    url: str, version: int, error: type[JournalError], message: str
) -> None:
    PostgresJournal.open(url).close()
    sql(url, f"UPDATE journal SET version = {version}")
    for opening in (PostgresJournal.open, PostgresFollower.open):
        with pytest.raises(error, match=message):
            opening(url)
    assert sql(url, "SELECT epoch FROM leader") == [(1,)]


def test_a_server_that_does_not_sync_is_refused(url: str) -> None:
    sql(url, "ALTER SYSTEM SET fsync = off", "SELECT pg_reload_conf()")
    try:
        until(lambda: sql(url, "SHOW fsync") == [("off",)])
        with pytest.raises(JournalError, match="Set fsync = on"):
            PostgresJournal.open(url)
    finally:
        sql(url, "ALTER SYSTEM RESET fsync", "SELECT pg_reload_conf()")
        until(lambda: sql(url, "SHOW fsync") == [("on",)])


def test_commits_are_durable_although_the_role_says_otherwise(url: str) -> None:
    sql(url, "ALTER ROLE gpuyard SET synchronous_commit = off")
    try:
        connection = database.connect(address := DatabaseAddress.parse(url), Waits())
        assert database.ask(connection, address, "SHOW synchronous_commit") == [("on",)]
        connection.close()
    finally:
        sql(url, "ALTER ROLE gpuyard RESET synchronous_commit")


def test_every_wait_of_the_server_has_a_limit(url: str) -> None:
    connection = database.connect(address := DatabaseAddress.parse(url), Waits())
    for name in ("lock_timeout", "statement_timeout", "idle_in_transaction_session_timeout"):
        ((value,),) = database.ask(connection, address, f"SHOW {name}")
        assert value not in {"0", ""}
    connection.close()


def test_a_database_without_a_journal_is_not_changed_by_a_reader(url: str) -> None:
    with pytest.raises(NoJournal):
        PostgresFollower.open(url)
    assert sql(url, f"SELECT 1 FROM pg_namespace WHERE nspname = '{DatabaseAddress.parse(url).schema}'") == []


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ("postgresql://localhost/db?schema=Lab", "lower-case"),
        ("postgresql://localhost/db?colour=red", "cannot be read"),
        ("postgresql://localhost:port/db", "invalid|cannot be"),
    ],
)
def test_a_wrong_address_is_an_error_that_names_it(wrong: str, message: str) -> None:
    with pytest.raises(JournalError, match=message):
        PostgresJournal.open(wrong, waits=SHORT)


def test_an_address_without_a_host_stays_as_it_is() -> None:
    for url in ("postgresql:///gpuyard", "postgresql:///gpuyard?connect_timeout=3", "postgresql://a,b/db?host=c"):
        address = DatabaseAddress.parse(f"{url}{'&' if '?' in url else '?'}schema=lab")
        assert (address.conninfo, address.schema) == (url, "lab")


def test_messages_do_not_contain_the_password(tmp_path: Path) -> None:
    with pytest.raises(StorageUnreachable, match="cannot be reached") as error:
        PostgresJournal.open(f"postgresql://me:geheim@/db?host={tmp_path}", waits=SHORT)
    assert "geheim" not in str(error.value)


# --- damage ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (r"UPDATE events SET payload = '\x7b7d' WHERE seq = 3", "damaged at event 3: it does not fit its hash"),
        (r"UPDATE events SET hash = hash || '\x00' WHERE seq = 3", "damaged at event 3"),
        ("DELETE FROM events WHERE seq = 3", "damaged at event 3: it is not there"),
        ("DELETE FROM events WHERE seq = 5", "damaged at event 5"),
        ("DELETE FROM events WHERE seq = 1", "damaged at event 1: it is not there"),
        ("DELETE FROM leader", "one row"),
        ("UPDATE leader SET seq = 4", "damaged at event 4"),
        ("UPDATE leader SET hash = (SELECT hash FROM events WHERE seq = 4)", "another event"),
        ("INSERT INTO events SELECT 6, epoch, payload, hash FROM events WHERE seq = 5", "events end at 6"),
    ],
)
def test_a_damaged_journal_is_refused_and_left_as_it_is(url: str, damage: str, message: str) -> None:
    journal = PostgresJournal.open(url)
    journal.append(held(1, 2, 3, 4, 5))
    journal.close()
    sql(url, damage)
    with pytest.raises(JournalDamaged, match=message):
        PostgresJournal.open(url)
    assert sql(url, "SELECT max(epoch) FROM leader") in ([(1,)], [(None,)])


def test_damage_before_the_newest_snapshot_is_found_when_it_is_read(url: str) -> None:
    journal = PostgresJournal.open(url)
    journal.save_snapshot(Snapshot(journal.append(held(1, 2, 3)), {}))
    journal.close()
    sql(url, r"UPDATE events SET payload = '\x7b7d' WHERE seq = 2")
    journal = PostgresJournal.open(url)
    with pytest.raises(JournalDamaged, match="damaged at event 2"):
        journal.verify()
    with pytest.raises(JournalDamaged, match="damaged at event 2"):
        list(journal.read())
    journal.close()


def test_a_damaged_snapshot_is_noted_and_the_older_one_is_used(url: str) -> None:
    journal = PostgresJournal.open(url)
    for task in (1, 2):
        journal.save_snapshot(Snapshot(journal.append(held(task)), {"last": task}))
    journal.close()
    sql(url, r"UPDATE snapshots SET document = '\x1f8b' WHERE seq = 2")
    journal = PostgresJournal.open(url)
    assert "snapshot at event 2 cannot be read" in journal.notes[0]
    assert [snapshot.state for snapshot in journal.usable_snapshots()] == [{"last": 1}]
    journal.close()


def test_a_database_that_was_set_back_is_noticed_by_writer_witness_and_follower(url: str) -> None:
    journal = PostgresJournal.open(url)
    journal.append(held(1))
    head = journal.append(held(2))
    follower = PostgresFollower.open(url)
    back = "UPDATE leader SET seq = 1, hash = (SELECT hash FROM events WHERE seq = 1)"
    sql(url, back, "DELETE FROM events WHERE seq = 2")
    with pytest.raises(JournalDamaged, match="older state of the database was restored"):
        journal.append(held(3))
    journal.close()
    with pytest.raises(JournalDamaged, match="an external witness records that the journal went to event 2"):
        PostgresJournal.open(url, witness=head)
    with pytest.raises(JournalDamaged, match="earlier than event 2"):
        follower.tail(head)
    follower.close()


# --- following and retiring --------------------------------------------------------------------------------------------


def test_a_follower_sees_every_event_once_and_in_order(url: str) -> None:
    journal = PostgresJournal.open(url, segment_events=2)
    follower = PostgresFollower.open(url)
    assert follower.tail(GENESIS) == ([], GENESIS)
    journal.append(held(1, 2, 3))
    records, reached = follower.tail(GENESIS, most=2)
    assert [record.seq for record in records] == [1, 2]
    records, reached = follower.tail(reached, most=2)
    assert ([record.seq for record in records], reached) == ([3], journal.head)

    for task in (4, 5):
        journal.save_snapshot(Snapshot(journal.append(held(task)), {}))
    assert journal.retire() == 4
    assert [record.seq for record in follower.tail(journal.position_at(4) or GENESIS)[0]] == [5]
    with pytest.raises(EventsRetired) as gone:
        follower.tail(reached)
    assert gone.value.oldest == 5
    follower.close()
    journal.close()


def test_retired_events_are_packed_like_those_of_sqlite_and_the_audit_is_kept(url: str, tmp_path: Path) -> None:
    journal = PostgresJournal.open(url, segment_events=2)
    for task in range(1, 7):
        head = journal.append([JournalEntry(float(task), TaskHeld(TaskId(task)), "alice" if task == 3 else "")])
        journal.save_snapshot(Snapshot(head, {}))
    audit = AuditRetention(tmp_path / "audit", lambda record: record.by == "alice")

    assert journal.retire(into=tmp_path / "retired", audit=audit) == 4
    assert [record.seq for record in read_folder(tmp_path / "retired")] == [1, 2, 3, 4]
    (kept,) = (tmp_path / "audit").iterdir()
    assert kept.name == "audit-000000000003.jsonl.gz"
    assert b'"alice"' in gzip.decompress(kept.read_bytes())
    assert [record.seq for record in journal.read(4)] == [5, 6]
    journal.close()
    journal = PostgresJournal.open(url)
    assert journal.position_at(4) is not None
    assert journal.position_at(3) is None
    assert journal.verify() == 2
    journal.close()


def test_a_reader_whose_events_are_retired_meanwhile_is_told(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpuyard.core.journal.stores.postgres_tables.CHUNK", 2)
    journal = PostgresJournal.open(url, segment_events=1)
    for task in range(1, 9):
        journal.save_snapshot(Snapshot(journal.append(held(task)), {}))
    reader = journal.read()
    assert next(reader).seq == 1
    assert journal.retire() == 7
    with pytest.raises(EventsRetired) as gone:
        list(reader)
    assert gone.value.oldest == 8
    journal.close()
