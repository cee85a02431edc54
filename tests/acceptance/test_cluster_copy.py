"""A cluster moves from a data folder into PostgreSQL and back with `gpuyard journal copy`: real processes."""

import json
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpuyard.live.sdk import Client, ClusterError
from tests.acceptance.live import GPUYARD, Cluster
from tests.acceptance.waiting import until
from tests.postgres_server import PostgresServer

pytest.importorskip("psycopg", reason="psycopg is missing; install the extra dev.")
pytest.importorskip("cryptography", reason="cryptography is missing; install the extra dev.")

SECONDS = 60.0
HIDDEN = "swordfish"


class MovingCluster(Cluster):
    """One scheduler whose data folder and database change, with the settings and the ports staying the same."""

    def __init__(self, folder: Path, **more: Any) -> None:
        super().__init__(folder, scheduler=more)
        self.storage: dict[str, str] = {"data_dir": str(folder / "old")}

    def server_settings(self) -> dict[str, Any]:
        """The settings file of the scheduler, where the storage is now."""
        user = {"username": "ann", "password": "open sesame", "tenant_id": "lab", "role": "user"}
        return {**super().server_settings(), "users": [user], "storage": self.storage}

    def environment(self, name: str) -> dict[str, str]:
        """Without a key of the secrets: the files in the data folders count."""
        return {key: value for key, value in super().environment(name).items() if key != "GPUYARD_SECRETS_KEY"}

    def starts(self) -> Client:
        self.start_server()
        client = self.client()

        def leads() -> bool:
            with suppress(ClusterError):
                health = client.health()
                return (health.role, health.status) == ("master", "ok")
            return False

        self.until(leads, "the scheduler leads")
        return client

    def copies(self, source: str, target: str, *words: str) -> "subprocess.CompletedProcess[str]":
        command = [*GPUYARD, "journal", "copy", "--from", source, "--to", target, *words]
        return subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=SECONDS, env=self.environment("copy")
        )

    def moves_to(self, target: str, storage: dict[str, str], *words: str, killed: bool = False) -> dict[str, Any]:
        """Stop or kill the scheduler and copy the cluster; return what was copied."""
        source = self.storage.get("shared_storage", self.storage["data_dir"])
        running = self.copies(source, target, *words)
        assert running.returncode == 1
        assert "Stop it first." in running.stderr
        if killed:
            self.kill_server()
        else:
            self.stop_server()
        done = self.copies(source, target, *words, "--json")
        assert done.returncode == 0, done.stderr
        self.storage = storage
        copied: dict[str, Any] = json.loads(done.stdout)
        return copied

    def until(self, ready: Any, what: str) -> None:
        try:
            until(ready, SECONDS, what)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.logs()}") from None

    def asks_with(self, token: str) -> int:
        """Ask for the tasks with a token; return the status of the answer."""
        headers = {"authorization": f"Bearer {token}"}
        request = urllib.request.Request(f"http://127.0.0.1:{self.http}/api/v1/tasks", headers=headers)
        try:
            with urllib.request.urlopen(request, timeout=10) as answer:
                return int(answer.status)
        except urllib.error.HTTPError as error:
            return error.code


@pytest.fixture
def database(postgres: PostgresServer) -> str:
    return postgres.url()


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[MovingCluster]:
    made = MovingCluster(tmp_path, auth={})  # the join token is drawn
    try:
        yield made
    finally:
        made.end()


def waiting_for(path: Path) -> str:
    return f'until [ -e {path} ]; do sleep 0.05; done; echo "sees $PASSWORD"'


@pytest.mark.slow
def test_a_cluster_moves_into_a_database_and_back_to_a_new_folder(cluster: MovingCluster, database: str) -> None:
    folder = cluster.folder
    client = cluster.starts()
    cluster.join_token = (folder / "old" / "join_token").read_text().strip()
    cluster.start_agent("node-1", 1)
    cluster.until(lambda: client.nodes().total == 1, "the agent has joined")
    token = client.create_token(username="ann").token
    first, second, third = (
        client.submit(waiting_for(folder / f"go-{number}"), gpu_count=1, secrets={"PASSWORD": f"{HIDDEN}-{number}"})
        for number in (1, 2, 3)
    )
    cluster.until(lambda: client.task(first).status == "running", "the first task runs")
    client.set_quota(0.4)
    assert (cluster.asks_with(token), cluster.asks_with("gy_unknown")) == (200, 401)
    keys = {name: (folder / "old" / name).read_text() for name in ("join_token", "request_key", "yard_key")}

    def check(client: Client, ended: Any, running: Any) -> None:
        """The agent is back, the task that ran all the time ends, and the next one sees its secret."""
        assert cluster.asks_with(token) == 200
        assert client.login("ann", "open sesame").token
        assert client.quota().online_percent == 0.4
        cluster.until(lambda: client.nodes().nodes[0].status == "online", "the agent is back")
        assert (client.task(ended).status, client.task(running).status) == ("running", "pending")
        (folder / f"go-{ended.id.removeprefix('task-')}").touch()
        told = client.wait(ended)
        assert (told.status, told.attempts) == ("success", 1)
        assert b"".join(client.logs(ended)).decode() == f"sees {HIDDEN}-{ended.id.removeprefix('task-')}\n"
        cluster.until(lambda: client.task(running).status == "running", "the next task runs")

    copied = cluster.moves_to(database, {"shared_storage": database, "data_dir": str(folder / "old")}, killed=True)
    assert copied["head"]["seq"] == copied["events"] > 0
    assert (copied["users"], copied["tokens"], copied["secrets"]) == (1, 1, 3)
    client = cluster.starts()
    check(client, first, second)

    key_file = ("--secrets-key", str(folder / "old" / "secrets_key"))
    copied = cluster.moves_to(str(folder / "new"), {"data_dir": str(folder / "new")}, *key_file)
    assert (copied["users"], copied["secrets"]) == (1, 2)
    assert {name: (folder / "new" / name).read_text() for name in keys} == keys
    client = cluster.starts()
    check(client, second, third)
    (folder / "go-3").touch()
    assert client.wait(third).status == "success"
    assert b"".join(client.logs(third)).decode() == f"sees {HIDDEN}-3\n"
    cluster.stop_agent("node-1")
    cluster.start_agent("node-1", 1)
    assert client.wait(client.submit("true", gpu_count=1)).status == "success"
    assert "registration_refused" not in (folder / "node-1.log").read_text()


@pytest.mark.slow
def test_the_data_folder_of_the_scheduler_that_led_is_the_way_back_with_ended_tasks_and_pools(
    tmp_path: Path, database: str
) -> None:
    start = " ".join([*GPUYARD, "agent", "--config", str(tmp_path / "agent.yaml")])
    pool = {
        "gpus": "1:RTX4090:24",
        "boot_command": f"GPUYARD_AGENT__ID={{node}} GPUYARD_EXECUTOR__WORK_DIR={tmp_path}/{{node}} {start} "
        f"& echo $! > {tmp_path}/{{node}}.pid",
        "release_command": f"kill $(cat {tmp_path}/{{node}}.pid) && rm {tmp_path}/{{node}}.pid",
        "idle": "2s",
    }
    cluster = MovingCluster(tmp_path, scheduler={"pool_interval": "200ms"}, pools={"pool": pool})
    cluster.storage = {"shared_storage": database, "data_dir": str(tmp_path / "of_scheduler")}
    try:
        client = cluster.starts()
        (tmp_path / "agent.yaml").write_text(
            yaml.safe_dump(
                {
                    "agent": {"join_token": cluster.join_token, "address": "127.0.0.1"},
                    "scheduler": {"master_address": f"127.0.0.1:{cluster.grpc}", "retry_interval": "200ms"},
                    "gpu": {"detection_method": "virtual", "virtual": "1:RTX4090:24"},
                    "logging": {"format": "text", "output": str(tmp_path / "agents.log")},
                }
            )
        )
        first = client.wait(client.submit("true", gpu_count=1))
        task = client.submit(waiting_for(tmp_path / "go"), gpu_count=1)
        cluster.until(lambda: client.task(task).status == "running", "the task runs on a booted node")

        folder = str(tmp_path / "of_scheduler")
        assert cluster.moves_to(folder, {"data_dir": folder}, killed=True)["documents"] >= 4
        client = cluster.starts()
        (tmp_path / "go").touch()
        assert (client.wait(task).status, client.task(task).attempts) == ("success", 1)
        assert [each.id for each in client.tasks(status="success")] == [task.id, first.id]
        cluster.until(lambda: client.nodes().total == 0, "the booted node is released")
        assert not list(tmp_path.glob("pool-*.pid"))
    finally:
        cluster.end()
