"""Starting a whole scheduler."""

import asyncio
import os
import shutil
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import grpc.aio
import pytest

from gpuyard.core.domain.errors import JournalError
from gpuyard.core.journal.records import Position
from gpuyard.core.journal.stores.sqlite import SqliteJournal
from gpuyard.live.control_plane import server
from gpuyard.live.control_plane.access.store import AccessStore, User
from gpuyard.live.control_plane.server import JOIN_TOKEN_FILE, SchedulerStartError, join_token, serve
from gpuyard.live.control_plane.settings import (
    AuthSection,
    PredictionSection,
    ServerSection,
    ServerSettings,
    StorageSection,
    TenantEntry,
    UserEntry,
    load_server_settings,
)
from gpuyard.live.control_plane.stores.system_users import SystemUsers
from gpuyard.live.sdk import Client, connect
from gpuyard.live.wire import agents_pb2 as pb
from gpuyard.live.wire.config import Address, WrongSettings
from gpuyard.live.wire.loopback_peer import shared_user_label
from gpuyard.live.wire.rpc import AgentsStub
from gpuyard.testing.fake_node import FakeNode, register_node
from tests.unit.live.control_plane.clusters import run


def test_a_join_token_is_created_once_and_private_even_after_a_kill_while_it_was_written(tmp_path: Path) -> None:
    settings = ServerSettings(storage=StorageSection(data_dir=str(tmp_path)))
    path = tmp_path / JOIN_TOKEN_FILE
    path.touch()
    drawn = join_token(settings)
    assert len(drawn) > 20
    assert drawn == join_token(settings) == path.read_text().strip()
    assert path.stat().st_mode & 0o077 == 0


@pytest.mark.slow
@pytest.mark.parametrize(("enabled", "runs"), [(True, 3), (False, None)])
def test_a_restarted_scheduler_knows_past_run_times_unless_prediction_is_off(
    tmp_path: Path, *, enabled: bool, runs: int | None
) -> None:
    settings = ServerSettings(
        server=ServerSection(http_address=Address("127.0.0.1:0"), grpc_address=Address("127.0.0.1:0")),
        storage=StorageSection(data_dir=str(tmp_path)),
        prediction=PredictionSection(enabled=enabled),
    )

    def lives(client: Client) -> None:
        for _ in range(3):
            client.wait(client.submit("true", gpu_count=1))

    async def story() -> None:
        async with _served(settings) as (client, agents):
            node = FakeNode("n1", 2, join_token=join_token(settings), runs_for=0.05)
            playing = asyncio.create_task(node.play(agents))
            await asyncio.to_thread(lives, client)
            playing.cancel()
        async with _served(settings) as (client, _):
            task = await asyncio.to_thread(client.submit, "true", gpu_count=1)
            assert task.predicted_from == runs

    run(story)


def test_a_failed_start_ends_with_the_reason_instead_of_hanging(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Any fault of the journal at the start: here the first settings cannot be written."""
    settings = ServerSettings(
        server=ServerSection(http_address=Address("127.0.0.1:0"), grpc_address=Address("127.0.0.1:0")),
        storage=StorageSection(data_dir=str(tmp_path)),
        tenants={"lab": TenantEntry(max_gpus=1)},
    )
    append = SqliteJournal.append_encoded

    def refuses_tenants(journal: SqliteJournal, payloads: Sequence[bytes]) -> Position:
        if any(b"TenantSet" in payload for payload in payloads):
            raise JournalError("The disk has gone.")
        return append(journal, payloads)

    monkeypatch.setattr(SqliteJournal, "append_encoded", refuses_tenants)

    async def story() -> None:
        async with asyncio.timeout(5):
            await serve(settings)

    with pytest.raises(JournalError, match="The disk has gone"):
        run(story)


@asynccontextmanager
async def _served(settings: ServerSettings) -> AsyncIterator[tuple[Client, str]]:
    """A scheduler, a client of it, and where agents find it."""
    until, where = asyncio.Event(), asyncio.get_running_loop().create_future()
    serving = asyncio.create_task(
        serve(settings, started=lambda http, grpc: where.set_result((http, grpc)), until=until)
    )
    await asyncio.wait((serving, where), return_when=asyncio.FIRST_COMPLETED)
    if serving.done():
        await serving  # it has failed
    http, port = await where
    try:
        yield connect(http), f"127.0.0.1:{port}"
    finally:
        until.set()
        await serving


def test_a_scheduler_with_login_and_without_an_admin_does_not_start(tmp_path: Path) -> None:
    settings = ServerSettings(
        server=ServerSection(http_address=Address("127.0.0.1:0"), grpc_address=Address("127.0.0.1:0")),
        storage=StorageSection(data_dir=str(tmp_path)),
        auth=AuthSection(enabled=True),
    )
    with pytest.raises(SchedulerStartError, match=r"no user is an admin.*auth.local_admin: true"):
        run(lambda: serve(settings))


@pytest.mark.slow
def test_an_admin_who_is_only_in_the_store_counts_if_the_file_names_members(tmp_path: Path) -> None:
    data, file = tmp_path / "data", tmp_path / "scheduler.yaml"
    file.write_text(
        f"storage: {{data_dir: {data}}}\nserver: {{http_address: '127.0.0.1:0', grpc_address: '127.0.0.1:0'}}\n"
        "auth: {enabled: true}\nusers: [{username: bob, password: secret-1}]\n"
    )
    with pytest.raises(WrongSettings, match="contains an administrator"):
        load_server_settings(file, {})
    off = ServerSettings(
        server=ServerSection(http_address=Address("127.0.0.1:0"), grpc_address=Address("127.0.0.1:0")),
        storage=StorageSection(data_dir=str(data)),
    )

    async def keeps_ada_as(role: str) -> None:
        async with _served(off) as (client, _):
            if role == "member":
                await asyncio.to_thread(partial(client.add_user, "ada", "correct horse", tenant_id="lab"))
            else:
                await asyncio.to_thread(partial(client.change_user, "ada", role=role))

    async def started() -> None:
        async with _served(load_server_settings(file, {})):
            pass

    run(lambda: keeps_ada_as("member"))
    with pytest.raises(SchedulerStartError, match="no user is an admin"):
        run(lambda: serve(load_server_settings(file, {})))
    run(lambda: keeps_ada_as("admin"))
    run(started)


@pytest.mark.slow
@pytest.mark.parametrize("lost", ["access.sqlite", "journal"])
def test_the_file_is_applied_again_if_the_store_it_was_applied_to_is_lost(tmp_path: Path, lost: str) -> None:
    """Users of the file live in access.sqlite, its tenants in the journal."""
    settings = ServerSettings(
        server=ServerSection(http_address=Address("127.0.0.1:0"), grpc_address=Address("127.0.0.1:0")),
        storage=StorageSection(data_dir=str(tmp_path)),
        auth=AuthSection(enabled=True),
        users=[UserEntry(username="ada", password="correct horse", role="admin")],
        tenants={"lab": TenantEntry(max_gpus=3)},
    )

    def limits(client: Client) -> list[int | None]:
        login = client.login("ada", "correct horse")
        with connect(client.connection.server, token=login.token) as ada:
            return [tenant.max_gpus for tenant in ada.tenants().tenants if tenant.id == "lab"]

    async def starts() -> None:
        async with _served(settings) as (client, _):
            assert await asyncio.to_thread(limits, client) == [3]

    run(starts)
    for path in tmp_path.glob(f"{lost}*"):
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    run(starts)


def test_a_scheduler_that_refuses_one_folder_has_created_none(tmp_path: Path) -> None:
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    settings = ServerSettings(
        server=ServerSection(http_address=Address("127.0.0.1:0"), grpc_address=Address("127.0.0.1:0")),
        storage=StorageSection(data_dir=str(tmp_path / "data"), snapshot_dir=str(tmp_path / "open" / "shown")),
    )
    with pytest.raises(SchedulerStartError, match="is writable by other users"):
        run(lambda: serve(settings))
    assert not (tmp_path / "data").exists()
    assert list((tmp_path / "open").iterdir()) == []


@pytest.mark.slow
def test_a_node_whose_tasks_would_be_admins_is_refused_and_prevents_such_a_start(
    tmp_path: Path,
) -> None:
    """executor.shared_user on this machine and auth.local_admin exclude each other, whichever comes first."""

    def told(local_admin: bool, folder: str) -> ServerSettings:
        return ServerSettings(
            server=ServerSection(http_address=Address("127.0.0.1:0"), grpc_address=Address("127.0.0.1:0")),
            storage=StorageSection(data_dir=str(tmp_path / folder)),
            auth=AuthSection(enabled=True, local_admin=local_admin, join_token="a token of 24 letters..."),
            users=[UserEntry(username="ada", password="correct horse", role="admin")],
        )

    async def joins(settings: ServerSettings, labels: dict[str, str]) -> None:
        async with _served(settings) as (_, agents), grpc.aio.insecure_channel(agents) as channel:
            node = pb.Registration(node=pb.Node(id="n1", cpus=1, labels=labels), instance="n1")
            await register_node(AgentsStub(channel), node, settings.join_token)

    shared, elsewhere = dict([shared_user_label(os.getuid())]), {"gpuyard/shared_user": f"{os.getuid()}@another"}
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        run(lambda: joins(told(local_admin=True, folder="a"), shared))
    assert "Remove auth.local_admin" in str(refused.value.details())
    run(lambda: joins(told(local_admin=True, folder="a"), elsewhere))
    run(lambda: joins(told(local_admin=False, folder="b"), shared))
    with pytest.raises(SchedulerStartError, match=r"Node n1 .*auth\.local_admin"):
        run(lambda: serve(told(local_admin=True, folder="b")))


def test_an_existing_data_folder_is_made_private_with_everything_in_it(tmp_path: Path) -> None:
    data, shown = tmp_path / "data", tmp_path / "shown"
    for folder in (data, shown):
        folder.mkdir(mode=0o755)
    settings = ServerSettings(
        server=ServerSection(http_address=Address("127.0.0.1:0"), grpc_address=Address("127.0.0.1:0")),
        storage=StorageSection(data_dir=str(data), snapshot_dir=str(shown)),
    )

    async def story() -> None:
        async with _served(settings) as (client, _):
            await asyncio.to_thread(client.submit, "true", gpu_count=1)

    run(story)
    assert (shown / "state.json").exists()
    everything = [data, shown, *data.rglob("*"), *shown.rglob("*")]
    assert [str(path) for path in everything if path.stat().st_mode & 0o077] == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
@pytest.mark.parametrize("which", ["data_dir", "snapshot_dir"])
def test_a_scheduler_does_not_start_on_a_folder_of_another_user(tmp_path: Path, which: str) -> None:
    (tmp_path / "theirs").mkdir()
    os.chown(tmp_path / "theirs", 65534, 65534)
    folders: dict[str, Any] = {"data_dir": str(tmp_path / "data"), which: str(tmp_path / "theirs")}
    settings = ServerSettings(
        server=ServerSection(http_address=Address("127.0.0.1:0"), grpc_address=Address("127.0.0.1:0")),
        storage=StorageSection(data_dir=folders["data_dir"], snapshot_dir=folders.get("snapshot_dir", "")),
    )
    with pytest.raises(SchedulerStartError, match=f"belongs to another user .* Set storage.{which} to"):
        run(lambda: serve(settings))


@pytest.mark.slow
def test_a_changed_password_stays_until_the_file_has_another_one(tmp_path: Path) -> None:
    def start(password: str) -> AccessStore:
        settings = ServerSettings(
            storage=StorageSection(data_dir=str(tmp_path)),
            users=[UserEntry(username="bob", password=password, tenant_id="lab", role="admin")],
        )
        access = AccessStore.open(tmp_path / "access.sqlite")
        server.add_users(access, SystemUsers.open(tmp_path / "system_users.json"), settings)
        return access

    access = start("the file's password")
    access.set_password("bob", "a password of his own")
    access.close()
    access = start("the file's password")
    assert isinstance(access.check_login("bob", "a password of his own", "127.0.0.1"), User)
    access.close()
    access = start("another one in the file")
    assert isinstance(access.check_login("bob", "another one in the file", "127.0.0.1"), User)
    access.close()
    assert b"password" not in (tmp_path / "applied_users.json").read_bytes()
