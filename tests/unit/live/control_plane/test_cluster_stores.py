"""The small stores in PostgreSQL: take-over, restarts of the server, keys, versions. The server is real."""

import stat
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from gpuyard.core.domain.errors import WriterDeposed
from gpuyard.core.domain.pool import PoolNodeState
from gpuyard.core.domain.values import NodeId, TaskId, TenantId
from gpuyard.live.control_plane.access.principal import Principal, Role
from gpuyard.live.control_plane.access.store import NewToken, User
from gpuyard.live.control_plane.stores.cluster_stores import ClusterStores, cipher_of, open_cluster_stores
from gpuyard.live.control_plane.stores.database import (
    StoreDamaged,
    StoreError,
    StoreFromFuture,
    StoreFromPast,
    StoreMissing,
    StoreUnreachable,
)
from gpuyard.live.control_plane.stores.documents import KEY_CHECK, Document, drawn
from gpuyard.live.control_plane.stores.secrets_key import (
    KEY_VARIABLE,
    AesGcmCipher,
    KeySource,
    WrongSecretsKey,
    check_value,
)
from gpuyard.live.control_plane.stores.system_users import SystemUsers
from gpuyard.live.pool.command import CommandProvider
from tests.acceptance.waiting import until
from tests.postgres_server import PostgresServer

pytest.importorskip("psycopg", reason="psycopg is missing; install the extra dev.")
pytest.importorskip("cryptography", reason="cryptography is missing; install the extra dev.")

import psycopg

from gpuyard.core.journal.stores import postgres_connection as database
from gpuyard.core.journal.stores.postgres import PostgresJournal
from gpuyard.core.journal.stores.postgres_connection import DatabaseAddress, Waits

SHORT = Waits(connect_seconds=2, lock_seconds=0.3, statement_seconds=1.0, answer_seconds=1.5)
KEY = KeySource(environment={KEY_VARIABLE: "0f" * 32})
LAB = TenantId("lab")
ONE, TWO = TaskId(1), TaskId(2)
HERE = "127.0.0.1"
HIDDEN = "swordfish"


@contextmanager
def session(url: str) -> Iterator[psycopg.Connection[tuple[Any, ...]]]:
    """A connection of a person with psql."""
    address = DatabaseAddress.parse(url)
    with psycopg.connect(address.conninfo, autocommit=True, options=f"-c search_path={address.schema}") as connection:
        yield connection


def sql(url: str, statement: str) -> list[tuple[Any, ...]]:
    with session(url) as connection:
        cursor = connection.execute(statement.encode())
        return cursor.fetchall() if cursor.description else []


def everything(url: str) -> list[list[tuple[Any, ...]]]:
    tables = ("users", "tokens", "secrets", "documents", "record_stores")
    return [sql(url, f"SELECT * FROM {table} ORDER BY 1") for table in tables]


def next_epoch(url: str) -> int:
    """The epoch of another scheduler that takes over the journal."""
    journal = PostgresJournal.open(url, take_over=True)
    journal.close()
    return journal.epoch


def leading(url: str, key: KeySource = KEY) -> ClusterStores:
    return open_cluster_stores(url=url, epoch=next_epoch(url), key=key, waits=SHORT)


def add_ann(stores: ClusterStores) -> NewToken:
    assert isinstance(stores.access.add_user("ann", "open sesame", LAB, Role.MEMBER), User)
    made = stores.access.make_token("ann")
    assert isinstance(made, NewToken)
    return made


@pytest.fixture
def url(postgres: PostgresServer) -> str:
    return postgres.url()


# --- a successor -------------------------------------------------------------------------------------------------------


def test_a_successor_has_all_of_it(url: str, tmp_path: Path) -> None:
    first = leading(url)
    made = add_ann(first)
    first.secrets.put({ONE: {"KEY": HIDDEN}})
    join_token = drawn(first.documents, "join_token")
    SystemUsers.over(Document(first.documents, "system_users.json")).set("ann", "ann_unix")
    pool = Document(first.documents, "pools/a100/nodes.json")
    provider = CommandProvider(tmp_path / "a", "a100", "true", "true", document=pool)
    provider.boot([NodeId("pool-1")])
    until(lambda: provider.nodes()[0].state is PoolNodeState.READY)
    first.close()

    second = leading(url)
    assert isinstance(second.access.find(made.secret, HERE), Principal)
    assert isinstance(second.access.check_login("ann", "open sesame", HERE), User)
    assert second.secrets.get(ONE) == {"KEY": HIDDEN}
    assert drawn(second.documents, "join_token") == join_token
    assert SystemUsers.over(Document(second.documents, "system_users.json")).of("ann") == "ann_unix"
    pool = Document(second.documents, pool.name)
    nodes = CommandProvider(tmp_path / "b", "a100", "true", "true", document=pool).nodes()
    assert [it.node for it in nodes] == ["pool-1"]
    second.close()


def test_a_deposed_writer_writes_nothing(url: str) -> None:
    old = leading(url)
    made = add_ann(old)
    old.secrets.put({ONE: {"KEY": "v"}})
    new = leading(url)
    before = everything(url)
    writes: list[Callable[[], object]] = [
        lambda: old.access.revoke_token(made.token.id),
        lambda: old.secrets.put({TWO: {"KEY": "w"}}),
        lambda: old.secrets.drop([ONE]),
        lambda: old.documents.write("applied.json", b"{}"),
    ]
    for write in writes:
        with pytest.raises(WriterDeposed, match="Nothing was written"):
            write()
    with pytest.raises(WriterDeposed):
        open_cluster_stores(url=url, epoch=1, key=KEY)
    assert everything(url) == before
    old.close()
    new.access.revoke_token(made.token.id)
    new.close()


def test_a_take_over_waits_for_a_write_that_has_begun(url: str) -> None:
    """The lock of a write on the row of the leader is held until its commit."""
    stores = leading(url)
    with session(url) as other:
        other.execute("BEGIN")
        other.execute("SELECT 1 FROM record_stores WHERE name = 'documents' FOR UPDATE")
        writing = threading.Thread(target=lambda: stores.documents.write("applied.json", b"{}"))
        writing.start()
        waiting = "SELECT 1 FROM pg_locks WHERE NOT granted AND locktype = 'transactionid'"
        while writing.is_alive() and not sql(url, waiting):
            pass
        with session(url) as taking, pytest.raises(psycopg.errors.LockNotAvailable):
            taking.execute("SELECT 1 FROM leader FOR UPDATE NOWAIT")
        other.execute("ROLLBACK")
    writing.join()
    stores.documents.refresh()
    stores.close()


def test_a_standby_sees_changes_and_changes_nothing_until_it_leads(url: str) -> None:
    leader = leading(url)
    standby = open_cluster_stores(url=url, key=KEY, waits=SHORT)
    standby.refresh()
    assert not standby.refresh()
    made = add_ann(leader)
    leader.secrets.put({ONE: {"KEY": "v"}})
    leader.documents.write("applied.json", b"{}")
    assert standby.refresh()
    assert not standby.refresh()
    assert isinstance(standby.access.find(made.secret, HERE), Principal)
    assert standby.secrets.get(ONE) == {"KEY": "v"}
    assert standby.documents.read("applied.json") == b"{}"
    with pytest.raises(StoreError, match="only reads"):
        standby.access.revoke_token(made.token.id)

    leader.access.remove_user("ann")
    standby.lead(next_epoch(url))
    assert standby.access.user("ann") is None
    standby.documents.write("applied.json", b"[]")
    with pytest.raises(WriterDeposed):
        leader.documents.write("applied.json", b"0")
    leader.close()
    standby.close()


def test_a_standby_without_tables_says_what_to_do(url: str) -> None:
    next_epoch(url)
    with pytest.raises(StoreError, match="Start a scheduler that writes first"):
        open_cluster_stores(url=url, key=KEY)


# --- a server that goes away -------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_server_that_restarts_between_two_writes_is_found_again(postgres: PostgresServer, url: str) -> None:
    stores = leading(url)
    add_ann(stores)
    stores.secrets.put({ONE: {"KEY": "v"}})
    postgres.crash()
    with pytest.raises(StoreUnreachable):
        stores.access.change_user("ann", role=Role.ADMIN)
    postgres.start()
    assert isinstance(stores.access.change_user("ann", role=Role.ADMIN), User)
    stores.documents.write("applied.json", b"{}")
    assert stores.secrets.get(ONE) == {"KEY": "v"}
    assert sql(url, "SELECT username, role FROM users") == [("ann", "admin")]
    stores.close()


def test_a_lost_connection_is_replaced_within_the_call(url: str) -> None:
    stores = leading(url)
    own = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'gpuyard journal'"
    for name in ("a.json", "b.json"):
        sql(url, own)
        stores.documents.write(name, b"1")
        sql(url, own)
        assert not stores.documents.refresh() or stores.documents.read(name) == b"1"
    assert stores.documents.names() == ["a.json", "b.json"]
    stores.close()


def test_a_change_of_unknown_outcome_is_read_again_before_the_next(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server has committed, and the answers to the write and to its repetition are lost."""
    stores = leading(url)
    add_ann(stores)
    records: Any = stores.access._records
    execute = records._execute

    def lossy(query: str, given: dict[str, Any]) -> None:
        execute(query, given)
        records._changes = None
        raise StoreUnreachable

    with monkeypatch.context() as patched:
        patched.setattr(records, "_execute", lossy)
        with pytest.raises(StoreUnreachable):
            stores.access.remove_user("ann")
    assert stores.access.user("ann") is not None
    stores.access.write_uses()
    assert stores.access.user("ann") is None
    stores.close()


def test_a_statement_that_the_server_still_has_cannot_overwrite_a_later_write(url: str) -> None:
    from gpuyard.live.control_plane.stores import postgres_records as module
    from gpuyard.live.control_plane.stores.cluster_records import Put
    from gpuyard.live.control_plane.stores.record_layouts import DOCUMENTS

    stores = leading(url)
    records: Any = stores.documents._records  # type: ignore[attr-defined]
    query, given = module._statement([Put(DOCUMENTS, [("applied.json", b"old", 0)])])
    late = {**given, "epoch": records._epoch, "store": "documents", "before": records._changes}
    records._changes = None  # its connection was lost
    stores.documents.write("applied.json", b"new")
    assert database.ask(records._connection, records._address, query, late) == []
    assert sql(url, "SELECT content FROM documents WHERE name = 'applied.json'") == [(b"new",)]
    stores.close()


# --- secrets and their key ---------------------------------------------------------------------------------------------


def test_secrets_are_encrypted_for_their_task(url: str) -> None:
    stores = leading(url)
    stores.secrets.put({ONE: {"NAME": HIDDEN}, TWO: {"NAME": "other"}})
    join_token = drawn(stores.documents, "join_token")
    stored = repr(everything(url))
    assert HIDDEN not in stored
    assert "NAME" not in stored
    assert join_token not in stored
    sql(url, "UPDATE secrets SET named = (SELECT named FROM secrets WHERE task = 1) WHERE task = 2")
    assert stores.secrets.get(ONE) == {"NAME": HIDDEN}
    with pytest.raises(StoreDamaged, match="task 2"):
        stores.secrets.get(TWO)
    stores.close()


def test_a_new_database_gets_a_private_key_file(url: str, tmp_path: Path) -> None:
    key = KeySource(tmp_path / "keys" / "secrets_key", {})
    stores = leading(url, key)
    stores.secrets.put({ONE: {"KEY": "v"}})
    stores.close()
    assert key.file is not None
    assert stat.S_IMODE(key.file.stat().st_mode) == 0o600
    stores = leading(url, key)
    assert stores.secrets.get(ONE) == {"KEY": "v"}
    stores.close()


def test_a_lost_or_wrong_key_is_refused_at_opening_and_nothing_is_changed(url: str, tmp_path: Path) -> None:
    stores = leading(url)
    stores.secrets.put({ONE: {"KEY": "v"}})
    stores.close()
    before = everything(url)[:4]
    wrong = KeySource(environment={KEY_VARIABLE: "ff" * 32})
    with pytest.raises(
        WrongSecretsKey, match=r"is not the one of the secrets in .*Copy the key from another scheduler"
    ):
        leading(url, wrong)
    for lost in (KeySource(tmp_path / "lost", {}), KeySource(None, {})):
        with pytest.raises(
            WrongSecretsKey,
            match=r"is missing from .*GPUYARD_SECRETS_KEY.*If it is lost, delete what it encrypts \(DELETE FROM \w+\.secrets;",
        ):
            leading(url, lost)
        with pytest.raises(WrongSecretsKey, match=r"is missing from"):
            open_cluster_stores(url=url, key=lost)
    assert not list(tmp_path.iterdir())
    assert everything(url)[:4] == before

    sql(url, "DELETE FROM documents WHERE sealed = 1")
    with pytest.raises(WrongSecretsKey, match="which holds encrypted values"):
        leading(url, wrong)
    sql(url, "DELETE FROM secrets")
    leading(url, wrong).close()


@pytest.mark.parametrize("said", ["", "short", "0f" * 31, "zz" * 32, "ü" * 44])
def test_what_is_not_a_key_is_refused(tmp_path: Path, said: str) -> None:
    path = tmp_path / "key"
    path.write_text(said)
    path.chmod(0o600)
    with pytest.raises(WrongSecretsKey, match="must contain 32 bytes"):
        KeySource(path, {}).read()


def test_a_key_is_hex_or_base64_and_private(tmp_path: Path) -> None:
    path = tmp_path / "key"
    for said in ("ff" * 32, "/" * 42 + "8=", "_" * 42 + "8"):
        path.write_text(f"{said}\n")
        path.chmod(0o600)
        assert KeySource(path, {}).read() == b"\xff" * 32
    assert "ff" * 32 not in repr(KeySource(None, {KEY_VARIABLE: "ff" * 32}))
    path.chmod(0o644)
    with pytest.raises(WrongSecretsKey, match="chmod 600"):
        KeySource(path, {}).read()


def test_secrets_that_could_not_be_deleted_are_not_given_to_the_next_task_of_that_number(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    stores = leading(url)
    stores.secrets.put({ONE: {"KEY": HIDDEN}})

    def unreachable(*_: object) -> None:
        raise StoreUnreachable

    with monkeypatch.context() as patched:
        patched.setattr(stores.secrets._records, "write", unreachable)
        with pytest.raises(StoreUnreachable):
            stores.secrets.drop([ONE])
    assert stores.secrets.get(ONE) == {}
    stores.secrets.put({TWO: {"KEY": "v"}})
    assert sql(url, "SELECT task FROM secrets") == [(2,)]
    stores.close()


# --- versions ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("version", "error"), [(0, StoreFromPast), (2, StoreFromFuture)])
def test_tables_of_another_version_are_refused(url: str, version: int, error: type[StoreError]) -> None:
    leading(url).close()
    sql(url, f"UPDATE record_stores SET version = {version} WHERE name = 'secrets'")
    with pytest.raises(error, match=rf"secrets of tasks\) have version {version}"):
        leading(url)
    with pytest.raises(error):
        open_cluster_stores(url=url, key=KEY)


@pytest.mark.parametrize("after", range(3))
def test_a_cluster_that_is_founded_in_this_moment_is_not_taken_for_one_without_its_key(after: int) -> None:
    cipher = AesGcmCipher(bytes.fromhex("0f" * 32))

    class Founded:
        """Rows of a store: empty for the first questions, then what the founder has written."""

        shown = "a new database"
        asked = 0

        def rows(self, table: object, keys: list[str] | None = None) -> list[tuple[str, bytes, int]]:
            del table
            rows = [(KEY_CHECK, check_value(cipher), 1), ("join_token", b"hidden", 1)] if self._is_founded() else []
            return [row for row in rows if keys is None or row[0] in keys]

        def keys(self, table: object) -> list[int]:
            del table
            return [1] if self._is_founded() else []

        def _is_founded(self) -> bool:
            Founded.asked += 1
            return Founded.asked > after

    store: Any = Founded()
    try:
        assert cipher_of(store, store, KEY).unseal(cipher.seal(b"text", "name"), "name") == b"text"
    except StoreMissing:
        assert after == 2, "it is tried again"
