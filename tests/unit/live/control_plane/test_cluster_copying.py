"""A cluster copied between folders and databases: journal, users, tokens, secrets, documents. PostgreSQL is real."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from gpuyard.cli import main
from gpuyard.core.domain.errors import JournalDamaged, JournalError, JournalLocked, NoJournal
from gpuyard.core.domain.events import TaskHeld
from gpuyard.core.domain.values import TaskId, TenantId
from gpuyard.core.journal.records import JournalEntry
from gpuyard.core.journal.stores.sqlite import SqliteJournal
from gpuyard.live.control_plane.access.principal import Principal, Role
from gpuyard.live.control_plane.access.store import NewToken, User
from gpuyard.live.control_plane.stores.cluster_copying import ClusterCopy, CopiedStores, copy_cluster
from gpuyard.live.control_plane.stores.cluster_stores import ClusterStores, open_cluster_stores
from gpuyard.live.control_plane.stores.database import StoreError
from gpuyard.live.control_plane.stores.documents import drawn
from gpuyard.live.control_plane.stores.secrets_key import KEY_VARIABLE, KeySource, WrongSecretsKey
from tests.postgres_server import PostgresServer

pytest.importorskip("psycopg", reason="psycopg is missing; install the extra dev.")
pytest.importorskip("cryptography", reason="cryptography is missing; install the extra dev.")

import psycopg

from gpuyard.core.journal.stores.postgres import PostgresJournal
from gpuyard.core.journal.stores.postgres_connection import DatabaseAddress
from gpuyard.core.journal.stores.postgres_shared import SharedJournal

ONE = TaskId(1)
HERE = "127.0.0.1"
HIDDEN = "swordfish"
KEY, OTHER_KEY = "0f" * 32, "ff" * 32
EVENTS = 3


@pytest.fixture(autouse=True)
def _no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(KEY_VARIABLE, raising=False)


@pytest.fixture
def url(postgres: PostgresServer) -> str:
    return postgres.url()


def silent(_doing: str, _done: int, _total: int) -> None:
    pass


def copied(source: object, target: object, key_file: Path | None = None, *, journal_only: bool = False) -> ClusterCopy:
    return copy_cluster(str(source), str(target), silent, journal_only=journal_only, key_file=key_file)


def made(folder: Path) -> str:
    """Create the data folder of a cluster with three events, a user, a secret and five documents; return a token."""
    journal = SqliteJournal.open(folder / "journal")
    for task in range(1, EVENTS + 1):
        journal.append([JournalEntry(float(task), TaskHeld(TaskId(task)), "ann")])
    journal.close()
    stores = open_cluster_stores(folder)
    assert isinstance(stores.access.add_user("ann", "open sesame", TenantId("lab"), Role.MEMBER), User)
    token = stores.access.make_token("ann")
    assert isinstance(token, NewToken)
    stores.secrets.put({ONE: {"KEY": HIDDEN}})
    for name in ("join_token", "request_key", "yard_key"):
        drawn(stores.documents, name)
    stores.documents.write("applied.json", b"{}")
    stores.documents.write("pools/a100/nodes.json", b"[]")
    stores.close()
    return token.secret


ALL = CopiedStores(users=1, tokens=1, secrets=1, documents=5)


def keys_in(stores: ClusterStores) -> list[bytes | None]:
    return [stores.documents.read(name) for name in ("join_token", "request_key", "yard_key")]


def check(place: Path | str, token: str, keys: list[bytes | None], key: KeySource | None = None) -> None:
    """Open a cluster as a scheduler does, and find everything in it."""
    if isinstance(place, Path):
        journal = SqliteJournal.open(place / "journal")
        assert journal.head.seq == EVENTS
        journal.close()
        stores = open_cluster_stores(place)
    else:
        shared = SharedJournal.open(place, lease_seconds=1.5)
        assert shared.take_over(shared.leader(), "http://here") == []
        assert shared.head.seq == EVENTS
        stores = open_cluster_stores(url=place, epoch=shared.epoch, key=key)
        shared.close()
    assert isinstance(stores.access.find(token, HERE), Principal)
    assert isinstance(stores.access.check_login("ann", "open sesame", HERE), User)
    assert stores.secrets.get(ONE) == {"KEY": HIDDEN}
    assert keys_in(stores) == keys
    assert stores.documents.read("applied.json") == b"{}"
    assert stores.documents.read("pools/a100/nodes.json") == b"[]"
    stores.secrets.put({TaskId(2): {"KEY": "later"}})
    stores.access.change_user("ann", role=Role.ADMIN)
    stores.close()


def keys_of(folder: Path) -> list[bytes | None]:
    stores = open_cluster_stores(folder)
    found = keys_in(stores)
    stores.close()
    return found


def everything(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def sql(url: str, *statements: str) -> None:
    address = DatabaseAddress.parse(url)
    with psycopg.connect(address.conninfo, autocommit=True, options=f"-c search_path={address.schema}") as connection:
        for statement in statements:
            connection.execute(statement.encode())


def is_empty(url: str) -> bool:
    address = DatabaseAddress.parse(url)
    with psycopg.connect(address.conninfo) as connection:
        found = connection.execute("SELECT 1 FROM pg_namespace WHERE nspname = %s", (address.schema,))
        return found.fetchone() is None


# --- a whole cluster ---------------------------------------------------------------------------------------------------


def test_a_cluster_moves_into_a_database_with_a_new_key_and_back(url: str, tmp_path: Path) -> None:
    token = made(tmp_path / "old")
    keys = keys_of(tmp_path / "old")
    there = copied(tmp_path / "old", url)
    key_file = tmp_path / "old" / "secrets_key"
    assert (there.journal.events, there.stores, there.key) == (EVENTS, ALL, f"the file {key_file}")
    back = copied(url, tmp_path / "new", key_file)
    assert (back.journal.head, back.stores, back.key) == (there.journal.head, ALL, "")
    check(url, token, keys, KeySource(key_file))
    check(tmp_path / "new", token, keys)
    check(tmp_path / "old", token, keys)
    assert "secrets_key" not in everything(tmp_path / "new")


def test_secrets_are_encrypted_with_the_key_of_the_environment(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = made(tmp_path / "old")
    monkeypatch.setenv(KEY_VARIABLE, KEY)
    assert copied(tmp_path / "old", url, tmp_path / "unused").key == f"the environment variable {KEY_VARIABLE}"
    assert not (tmp_path / "unused").exists()
    check(url, token, keys_of(tmp_path / "old"), KeySource(environment={KEY_VARIABLE: KEY}))


@pytest.mark.parametrize("kind", ["folder", "database"])
def test_a_cluster_is_copied_to_a_place_of_the_same_kind(
    postgres: PostgresServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setenv(KEY_VARIABLE, KEY)
    token = made(tmp_path / "old")
    source: Path | str = tmp_path / "old"
    target: Path | str = tmp_path / "new"
    if kind == "database":
        source, target = postgres.url(), postgres.url()
        copied(tmp_path / "old", source)
    assert copied(source, target).stores == ALL
    check(target, token, keys_of(tmp_path / "old"))


def test_the_data_folder_of_a_scheduler_that_led_may_be_the_target(url: str, tmp_path: Path) -> None:
    """Its archive and history stay, and its key is found."""
    token = made(tmp_path / "old")
    copied(tmp_path / "old", url)
    folder = tmp_path / "of_scheduler"
    for name in ("audit", "snapshots", "pools/a100"):
        (folder / name).mkdir(parents=True)
    for name in ("archive.sqlite", "archive.sqlite-wal", "history.sqlite", "clock.json"):
        (folder / name).write_bytes(b"kept")
    (tmp_path / "old" / "secrets_key").rename(folder / "secrets_key")
    assert copied(url, folder).stores == ALL
    assert (folder / "archive.sqlite").read_bytes() == b"kept"
    check(folder, token, keys_of(tmp_path / "old"))


def test_a_cluster_without_users_is_copied_and_its_source_is_not_changed(url: str, tmp_path: Path) -> None:
    SqliteJournal.open(tmp_path / "old" / "journal").close()
    before = everything(tmp_path / "old")
    (tmp_path / "key").write_text(KEY)
    (tmp_path / "key").chmod(0o600)
    assert copied(tmp_path / "old", url, tmp_path / "key").stores == (0, 0, 0, 0)
    assert everything(tmp_path / "old") == before


def test_a_database_in_which_nothing_is_encrypted_needs_no_key(url: str, tmp_path: Path) -> None:
    made(tmp_path / "old")
    copied(tmp_path / "old", url)
    sql(url, "DELETE FROM secrets", "DELETE FROM documents WHERE sealed = 1")
    assert copied(url, tmp_path / "new").stores == CopiedStores(users=1, tokens=1, secrets=0, documents=2)


# --- a journal alone ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("source", ["old", "old/journal"])
def test_only_the_journal_is_copied_if_wanted_or_if_there_is_nothing_else(
    url: str, tmp_path: Path, source: str
) -> None:
    made(tmp_path / "old")
    alone = source == "old"
    assert copied(tmp_path / source, tmp_path / "new", journal_only=alone).stores is None
    assert "head" in everything(tmp_path / "new")
    assert copied(tmp_path / source, url, journal_only=alone).stores is None
    assert copied(url, tmp_path / "back").stores is None
    assert everything(tmp_path / "back") == everything(tmp_path / "new")


# --- what is refused ---------------------------------------------------------------------------------------------------


def test_a_database_is_not_read_without_its_key(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made(tmp_path / "old")
    copied(tmp_path / "old", url)
    (tmp_path / "target").mkdir()
    with pytest.raises(WrongSecretsKey, match=r"is missing from the file .*or name its file: --secrets-key FILE\.$"):
        copied(url, tmp_path / "target")
    with pytest.raises(WrongSecretsKey, match=r"is missing from the file .*lost\. "):
        copied(url, tmp_path / "target", tmp_path / "lost")
    monkeypatch.setenv(KEY_VARIABLE, OTHER_KEY)
    with pytest.raises(WrongSecretsKey, match="is not the one of the secrets in"):
        copied(url, tmp_path / "target")
    monkeypatch.setenv(KEY_VARIABLE, "short")
    with pytest.raises(WrongSecretsKey, match="must contain 32 bytes"):
        copied(url, tmp_path / "target")
    assert everything(tmp_path / "target") == []


def test_a_key_that_is_none_is_refused_before_the_copy(url: str, tmp_path: Path) -> None:
    made(tmp_path / "old")
    (tmp_path / "old" / "secrets_key").write_text("short")
    (tmp_path / "old" / "secrets_key").chmod(0o600)
    with pytest.raises(WrongSecretsKey, match="must contain 32 bytes"):
        copied(tmp_path / "old", url)
    assert is_empty(url)


def test_a_scheduler_that_runs_is_not_copied(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made(tmp_path / "old")
    journal = SqliteJournal.open(tmp_path / "old" / "journal")
    with pytest.raises(JournalLocked, match=rf"Process {os.getpid()} writes the journal in .* Stop it first"):
        copied(tmp_path / "old", url)
    journal.close()
    assert is_empty(url)

    copied(tmp_path / "old", url)
    from gpuyard.core.journal.stores import postgres_connection

    short = postgres_connection.Waits(lock_seconds=0.1)
    monkeypatch.setattr(postgres_connection, "Waits", lambda: short)
    shared = PostgresJournal.open(url)
    with pytest.raises(JournalLocked, match="Stop it first"):
        copied(url, tmp_path / "new", tmp_path / "old" / "secrets_key")
    shared.close()
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("takes_over", [True, False])
def test_a_scheduler_that_takes_over_during_the_copy_ends_it(url: str, tmp_path: Path, takes_over: bool) -> None:
    """Its session ends ours if it can; otherwise the row of the leader has changed."""
    made(tmp_path / "old")
    copied(tmp_path / "old", url)

    def begin(doing: str, _done: int, _total: int) -> None:
        if doing != "checked":
            return
        if takes_over:
            PostgresJournal.open(url, take_over=True).close()
        else:
            sql(url, "UPDATE leader SET beat = beat + 1")

    key_file = tmp_path / "old" / "secrets_key"
    with pytest.raises(JournalError, match=r"was lost|has begun to write the journal"):
        copy_cluster(url, str(tmp_path / "new"), begin, key_file=key_file)
    assert everything(tmp_path / "new") == []


@pytest.mark.parametrize(
    "inside", ["journal/head", "access.sqlite", "join_token", "pools/a100/nodes.json", "thesis.tex"]
)
def test_a_folder_that_is_in_use_is_refused_and_left_alone(tmp_path: Path, inside: str) -> None:
    made(tmp_path / "old")
    path = tmp_path / "target" / inside
    path.parent.mkdir(parents=True)
    path.touch()
    before = everything(tmp_path / "target")
    shown = inside.removesuffix("/head")
    with pytest.raises(StoreError, match=rf"is not an empty folder: it contains {shown}\. Copy to a new one"):
        copied(tmp_path / "old", tmp_path / "target")
    assert everything(tmp_path / "target") == before


def test_a_database_that_is_in_use_is_refused(url: str, tmp_path: Path) -> None:
    made(tmp_path / "old")
    copied(tmp_path / "old", url)
    with pytest.raises(JournalError, match="There is a journal in"):
        copied(tmp_path / "old", url)
    sql(url, "DROP TABLE journal, leader, events, snapshots")
    with pytest.raises(StoreError, match=r"There are users and tokens in .* already"):
        copied(tmp_path / "old", url)


def test_places_without_a_cluster_are_named(url: str, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(
        NoJournal, match=r"There is no journal in .*empty\. If its scheduler has the journal in a database"
    ):
        copied(tmp_path / "empty", url)
    with pytest.raises(NoJournal, match="There is no journal in the database"):
        copied(url, tmp_path / "new")
    assert is_empty(url)
    assert not (tmp_path / "new").exists()


# --- interruptions -----------------------------------------------------------------------------------------------------


def failing(*_: object) -> None:
    raise StoreError("the disk broke")


@pytest.mark.parametrize("where", ["documents", "the head"])
def test_an_error_leaves_the_folder_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    token = made(tmp_path / "old")
    keys = keys_of(tmp_path / "old")
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / "archive.sqlite").touch()
    with monkeypatch.context() as patched:
        if where == "documents":
            patched.setattr("gpuyard.live.control_plane.stores.documents.FolderDocuments.write", failing)
        else:
            patched.setattr("gpuyard.core.journal.stores.head.HeadFile.create", failing)
        with pytest.raises(StoreError, match="the disk broke"):
            copied(tmp_path / "old", tmp_path / "new")
    assert everything(tmp_path / "new") == ["archive.sqlite"]
    copied(tmp_path / "old", tmp_path / "new")
    check(tmp_path / "new", token, keys)


def test_an_error_leaves_the_database_as_it_was(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made(tmp_path / "old")
    with monkeypatch.context() as patched:
        patched.setattr("gpuyard.live.control_plane.stores.cluster_copying.check_value", failing)
        with pytest.raises(StoreError, match="the disk broke"):
            copied(tmp_path / "old", url)
    assert is_empty(url)
    assert copied(tmp_path / "old", url).stores == ALL


KILLED = """
import os, signal, sys
from pathlib import Path
from gpuyard.core.journal.stores.head import HeadFile
from gpuyard.live.control_plane.stores import cluster_copying, postgres_records

def kill(*_):
    os.kill(os.getpid(), signal.SIGKILL)

HeadFile.create = staticmethod(kill)
loaded = postgres_records.load
postgres_records.load = lambda *words: (loaded(*words), words[2].name == "documents" and kill())
cluster_copying.copy_cluster(sys.argv[1], sys.argv[2], lambda *_: None)
"""


def killed_at_its_end(source: Path, target: Path | str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", KILLED, str(source), str(target)], check=False, capture_output=True, timeout=60
    )
    assert done.returncode == -signal.SIGKILL, done.stderr


def test_a_folder_of_a_killed_copy_is_not_a_cluster_and_the_next_copy_says_what_to_remove(tmp_path: Path) -> None:
    made(tmp_path / "old")
    killed_at_its_end(tmp_path / "old", tmp_path / "new")
    with pytest.raises(JournalDamaged, match="head is missing"):
        SqliteJournal.open(tmp_path / "new" / "journal")
    message = (
        r"contains a copy that was interrupted: its journal has no file head\. Remove access.sqlite, applied.json, "
        r"join_token, journal, pools/a100/nodes.json, request_key, secrets.sqlite, yard_key there, and copy again"
    )
    with pytest.raises(StoreError, match=message):
        copied(tmp_path / "old", tmp_path / "new")


def test_a_killed_copy_leaves_a_database_empty(url: str, tmp_path: Path) -> None:
    made(tmp_path / "old")
    killed_at_its_end(tmp_path / "old", url)
    assert is_empty(url)
    assert copied(tmp_path / "old", url).stores == ALL


# --- the command -------------------------------------------------------------------------------------------------------


def call(monkeypatch: pytest.MonkeyPatch, *words: object) -> int:
    monkeypatch.setattr(sys, "argv", ["gpuyard", "journal", "copy", *map(str, words)])
    return main()


def test_the_command_lists_what_was_copied(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made(tmp_path / "old")
    assert call(monkeypatch, "--from", tmp_path / "old", "--to", url) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("Copied 3 events and 0 snapshots.")
    assert lines[1] == "Copied 1 user, 1 token, the secrets of 1 task and 5 documents."
    assert lines[2] == (
        f"The secrets are encrypted with the key in the file {tmp_path}/old/secrets_key. All schedulers of the "
        "database need it."
    )
    key = ("--secrets-key", tmp_path / "old" / "secrets_key")
    assert call(monkeypatch, "--from", url, "--to", tmp_path / "new", *key, "--json") == 0
    assert '"users":1,"tokens":1,"secrets":1,"documents":5}' in capsys.readouterr().out


def test_the_command_explains_a_missing_key_in_one_sentence(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made(tmp_path / "old")
    copied(tmp_path / "old", url)
    assert call(monkeypatch, "--from", url, "--to", tmp_path / "new") == 1
    said = capsys.readouterr().err
    assert said.startswith("gpuyard: The key of the secrets in ")
    assert said.count("\n") == 1
