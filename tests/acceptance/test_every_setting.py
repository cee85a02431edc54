"""Every key of every settings file, set to another valid value: one at a time and all at once.

A scheduler is started with it, accepts a task, is stopped, and is started with the next key on the same data, so whatever
a key puts into the journal is read again. An agent is started with it and runs a task. The lists of keys come from the
types of the settings: a new key fails the first test until it has another value here.
"""

import asyncio
import json
import os
import shutil
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import yaml
from msgspec import to_builtins

from gpuyard.live.agent.main import run as run_agent
from gpuyard.live.agent.settings import AgentSettings, load_agent_settings
from gpuyard.live.control_plane.server import serve
from gpuyard.live.control_plane.settings import ServerSettings, TenantEntry, UserEntry, load_server_settings
from gpuyard.live.sdk import Client, Unreachable, connect
from gpuyard.live.wire.config import WrongSettings, keys_of
from tests.acceptance.live import Cluster, running_cluster
from tests.acceptance.waiting import until
from tests.ports import free_port

FOLDER, PORT, CERT, KEY, SCHEDULER = "(folder)", "(port)", "(certificate)", "(key)", "(scheduler)"
"""Filled in when the test runs."""
ADMIN = {"username": "ada", "password": "a long one", "tenant_id": "lab", "role": "admin", "system_user": "nobody"}
TLS = {"server.tls.cert": CERT, "server.tls.key": KEY}
OF_POOL = {
    "gpus": "2:H100:80",
    "cpus": 8,
    "memory_mb": 1024,
    "labels": {"rack": "a"},
    "min": 1,
    "max": 2,
    "price": 1.5,
    "boot_command": "true",
    "release_command": "true",
    "idle": "1m",
    "pressure": "1m",
    "boot_limit": "1m",
    "lost_limit": "1m",
}
POOL_NEEDS = {"gpus": "2:H100:80", "boot_command": "true", "release_command": "true", "max": 2}

OF_SCHEDULER: dict[str, Any] = {
    "server.http_address": "localhost:0",
    "server.grpc_address": "localhost:0",
    "server.host_names": ["gpu.lab.example"],
    "server.public_url": "http://gpu.lab.example:8080",
    "server.plain": True,
    "server.max_connections": 100,
    "server.max_connections_per_address": 50,
    "server.max_channels": 40,
    "server.max_channels_per_user": 30,
    "server.max_channels_per_task": 20,
    "server.max_channels_per_node": 35,
    "server.tls.cert": CERT,
    "server.tls.key": KEY,
    "server.tls.client_ca": CERT,
    "system.host": "localhost",
    "system.port": PORT,
    "system.log_level": "debug",
    "system.log_file": f"{FOLDER}/system.log",
    "scheduler.schedule_interval": "1s",
    "scheduler.interval": 700,
    "scheduler.snapshot_interval": 1,
    "scheduler.pool_interval": "1m",
    "scheduler.algorithm": "round_robin",
    "scheduler.policy_model": f"{FOLDER}/none.npz",
    "scheduler.score": "weighted",
    "scheduler.weights.time": 2,
    "scheduler.weights.energy": 0.5,
    "scheduler.weights.balance": 0,
    "scheduler.weights.fragmentation": 3,
    "scheduler.weights.follow_idle": False,
    "scheduler.preemptive": False,
    "scheduler.preemption_min_run": "5s",
    "scheduler.preemption_limit": 3,
    "scheduler.backfill": "greedy",
    "scheduler.reserve_after": "1h",
    "scheduler.aging": "1m",
    "scheduler.level": "1d",
    "scheduler.defragment": True,
    "scheduler.model_affinity": False,
    "scheduler.task_timeout": 3600,
    "scheduler.grace": "3s",
    "scheduler.max_grace": "1m",
    "scheduler.queue_size": 500,
    "scheduler.members_may_book": True,
    "scheduler.longest_booking": "2d",
    "scheduler.book_ahead": "3d",
    "replication.enabled": True,
    "replication.address": "127.0.0.1:0",
    "replication.peer_address": "127.0.0.1:1",
    "replication.heartbeat_interval": 3,
    "replication.heartbeat_timeout": 9,
    "replication.single_copy_after": "1m",
    "replication.ca": CERT,
    "quota.online_percent": 0.6,
    "quota.batch_percent": 0.4,
    "quota.mode": "borrow",
    "agent.heartbeat_timeout": "20s",
    "agent.join_token": "another",
    "storage.data_dir": f"{FOLDER}/elsewhere",
    "storage.snapshot_dir": f"{FOLDER}/pictures",
    "storage.retired_dir": f"{FOLDER}/retired",
    "storage.shared_storage": f"{FOLDER}/shared",
    "storage.retention": "1d",
    "storage.audit_retention": "2d",
    "storage.checkpoint_retention": "1d",
    "blobs.dir": f"{FOLDER}/blobs",
    "blobs.max_blob_mb": 7,
    "blobs.max_tenant_mb": 70,
    "blobs.retention": "3h",
    "prediction.enabled": False,
    "prediction.model": f"{FOLDER}/none.txt",
    "logging.level": "warn",
    "logging.format": "text",
    "logging.output": f"{FOLDER}/scheduler.log",
    "auth.enabled": True,
    "auth.local_admin": True,
    "auth.token_lifetime": "1h",
    "auth.session_idle": "5m",
    "auth.join_token": "another",
    "users": [ADMIN],
    "pools": {"spare": OF_POOL},
    "tenants": {"lab": {}},
    "gpu.enabled": False,
    "gpu.devices": [0, "GPU-1"],
    "gpu.max_memory_percent": 95,
    "gpu.max_compute_percent": 95,
    "gpu.check_interval": 9,
    "monitor.enabled": False,
    "monitor.interval": 2,
    "monitor.retention": 48,
    "monitor.http_api": False,
    "monitor.http_port": PORT,
    "notifications.hosts": ["*.example.org"],
    "notifications.local": True,
    "notifications.mail": "ops",
    "notifications.mail_domains": ["example.org"],
    "notifications.commands": False,
    "tracing.enabled": True,
    "tracing.endpoint": "http://127.0.0.1:9/v1/traces",
    "alerts.enabled": False,
    "alerts.interval": "1s",
    "alerts.rules": {"gpu_hot": {"threshold": 90, "for": "2m"}},
    "alerts.webhooks": [{"name": "chat", "url": "http://127.0.0.1:9/"}],
    "alerts.mail": [{"name": "ops", "host": "127.0.0.1", "port": 9, "from": "a@b.example", "to": ["c@d.example"]}],
    "alerts.group_interval": "2m",
    "alerts.repeat_interval": "1h",
    "alerts.history": 500,
    "alerts.url": "https://yard.example",
}
OF_TENANT: dict[str, Any] = {
    "max_gpus": 4,
    "max_open_tasks": 5000,
    "max_memory_per_gpu": 16000,
    "priority": 80,
    "class": "online",
    "weight": 2,
    "max_gpus_by_model": {"H100": 2},
    "guaranteed_gpus": 1,
    "gpu_hours": 100,
    "gpu_hours_period": "7d",
    "user": "nobody",
}
OF_AGENT: dict[str, Any] = {
    "agent.id": "another",
    "agent.heartbeat_interval": 1,
    "agent.join_token": "join",
    "agent.address": "127.0.0.1",
    "agent.labels": {"rack": "a1"},
    "agent.away_timeout": "1m",
    "scheduler.plain": True,
    "scheduler.master_address": SCHEDULER,
    "scheduler.standby_address": "127.0.0.1:1",
    "scheduler.addresses": ["127.0.0.1:2"],
    "scheduler.connection_timeout": 3,
    "scheduler.retry_interval": "100ms",
    "scheduler.max_retry_interval": 5,
    "gpu.detection_method": "virtual",
    "gpu.health_check_interval": 1,
    "gpu.virtual": "3:RTX4090:24",
    "gpu.devices": [1],
    "gpu.max_memory_percent": 95,
    "gpu.max_compute_percent": 95,
    "executor.work_dir": f"{FOLDER}/elsewhere",
    "executor.shared_user": True,
    "executor.users": {"somebody": "nobody"},
    "executor.system_users": {"anna": "nobody"},
    "executor.launch_timeout": 20,
    "executor.checkpoint_dir": f"{FOLDER}/checkpoints",
    "executor.blob_cache_mb": 6,
    "executor.output_limit_mb": 5,
    "executor.max_shells_per_task": 3,
    "executor.max_shells": 7,
    "executor.grace": 1,
    "executor.control_groups": "never",
    "executor.docker.socket": "/run/another.sock",
    "executor.docker.default_image": "debian",
    "logging.level": "debug",
    "logging.format": "text",
    "logging.output": f"{FOLDER}/agent.log",
    "tls.ca": CERT,
    "tls.cert": CERT,
    "tls.key": KEY,
}
REFUSED: dict[str, Any] = {
    "scheduler.role": "standby",
    "executor.execution_method": "docker",
}
"""These are refused: the feature is not there yet, or not without more settings."""
NEEDS: dict[str, dict[str, Any]] = {
    **dict.fromkeys(TLS, TLS),
    "server.tls.client_ca": TLS,
    "replication.enabled": {
        "server.http_address": f"127.0.0.1:{PORT}",
        "replication.address": f"127.0.0.1:{PORT}",
        "replication.peer_address": "127.0.0.1:1",
        "storage.data_dir": f"{FOLDER}/replica",
    },
    "replication.heartbeat_interval": {"replication.heartbeat_timeout": 9},
    "auth.enabled": {"users": [ADMIN]},
    "notifications.mail": {
        "alerts.mail": [{"name": "ops", "host": "127.0.0.1", "port": 9, "from": "a@b.example", "to": ["c@d.example"]}]
    },
    "executor.work_dir": {"agent.id": "elsewhere"},
}
"""What must be set beside a key."""
SAID_OTHERWISE = {
    "system.host",
    "system.port",
    "system.log_level",
    "system.log_file",
    "scheduler.interval",
    "agent.join_token",
}
"""Other names of keys that are set, too, when all are set at once."""
OFF = {"alerts.enabled", "gpu.enabled", "monitor.enabled", "monitor.http_api", "prediction.enabled"}
"""These switch off what others set."""
EXCLUDED = {"auth.local_admin", "replication.enabled"}
"""The first cannot be set beside `executor.shared_user` of the agent, whose tasks would be admins. The second makes the data
folder one that a scheduler alone refuses."""
BY_THE_COMMAND = {"logging.level", "logging.format", "logging.output", "tls.ca", "tls.cert", "tls.key"}
"""Read by the command, or of use only together: these are set when all are set at once."""


def nested(flat: dict[str, Any]) -> dict[str, Any]:
    made: dict[str, Any] = {}
    for key, value in flat.items():
        *sections, last = key.split(".")
        place = made
        for section in sections:
            place = place.setdefault(section, {})
        place[last] = value
    return made


def filled(value: Any, folder: Path, **places: Any) -> Any:
    if isinstance(value, str):
        if value == PORT:
            return free_port()
        if PORT in value:
            value = value.replace(PORT, str(free_port()))
        places = {CERT: str(folder / "cert.pem"), KEY: str(folder / "key.pem"), **places}
        return places.get(value, value.replace(FOLDER, str(folder)))
    if isinstance(value, dict):
        return {key: filled(below, folder, **places) for key, below in value.items()}
    return value


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One folder for all, with a certificate."""
    made = tmp_path_factory.mktemp("settings")
    words = "req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost -addext subjectAltName=IP:127.0.0.1"
    made_by = ["openssl", *words.split(), "-keyout", str(made / "key.pem"), "-out", str(made / "cert.pem")]
    if shutil.which("openssl"):
        subprocess.run(made_by, check=True, capture_output=True, timeout=60)
    return made


def needs_openssl(key: str) -> None:
    if "tls" in key and shutil.which("openssl") is None:
        pytest.skip("makes its certificate with openssl")


def test_every_key_has_a_value_to_test() -> None:
    def keys(type_: type) -> set[str]:
        return {".".join(keys) for keys in keys_of(type_)}

    assert OF_SCHEDULER.keys() | (REFUSED.keys() & keys(ServerSettings)) == keys(ServerSettings)
    assert OF_AGENT.keys() | (REFUSED.keys() & keys(AgentSettings)) == keys(AgentSettings)
    assert OF_TENANT.keys() == keys(TenantEntry)
    assert ADMIN.keys() == keys(UserEntry)


def test_every_test_value_differs_from_the_default(tmp_path: Path) -> None:
    for type_, values in ((ServerSettings, OF_SCHEDULER), (AgentSettings, OF_AGENT)):
        default = to_builtins(type_(), enc_hook=_plain)
        for key, value in values.items():
            usual: Any = default
            for step in key.split("."):
                usual = usual[step]
            assert filled(value, tmp_path) != usual, key


def _plain(value: object) -> object:
    return float(value) if isinstance(value, float) else str(value)


@pytest.mark.parametrize("key", REFUSED)
def test_settings_without_what_they_need_are_refused(tmp_path: Path, key: str) -> None:
    path = tmp_path / "settings.yaml"
    path.write_text(json.dumps(nested({key: REFUSED[key]})))
    load = load_agent_settings if key.startswith("executor") else load_server_settings
    with pytest.raises(WrongSettings, match=r"not supported yet|which needs another scheduler"):
        load(path, {})


# --- schedulers -------------------------------------------------------------------------------------------------------


def settings_of(folder: Path, more: dict[str, Any]) -> ServerSettings:
    base: dict[str, Any] = {"server.http_address": "127.0.0.1:0", "server.grpc_address": "127.0.0.1:0"}
    if any(key in more for key in ("system.host", "system.port")):
        base = {"server.grpc_address": "127.0.0.1:0", "system.port": 0}
    base["storage.data_dir"] = str(folder / "data")
    path = folder / "scheduler.yaml"
    path.write_text(yaml.safe_dump(nested(filled({**base, **more}, folder))))
    return load_server_settings(path, {})


async def submitted(settings: ServerSettings, folder: Path) -> tuple[str, int]:
    """Start a scheduler, hand in a task, stop it: the task's id, and how many tasks there are then."""
    until_told, where = asyncio.Event(), asyncio.get_running_loop().create_future()
    serving = asyncio.create_task(serve(settings, started=lambda http, _: where.set_result(http), until=until_told))
    await asyncio.wait({serving, where}, return_when=asyncio.FIRST_COMPLETED, timeout=20)
    if serving.done():
        await serving
    try:
        return await asyncio.wait_for(asyncio.to_thread(handed_in, where.result(), settings, folder), 20)
    finally:
        until_told.set()
        await asyncio.wait_for(serving, 20)


def handed_in(url: str, settings: ServerSettings, folder: Path) -> tuple[str, int]:
    client = client_of(url, settings, folder)
    task = client.submit("true", gpu_count=1, tenant_id="lab")
    return task.id, client.page(limit=1).total


def client_of(url: str, settings: ServerSettings, folder: Path) -> Client:
    ca = str(folder / "cert.pem") if settings.server.tls.cert else None
    url = url.replace("localhost", "127.0.0.1")
    token = connect(url, token="", ca=ca).login("ada", "a long one").token if settings.auth.enabled else ""
    return connect(url, token=token, ca=ca)


def case_of(key: str) -> dict[str, Any]:
    if key in OF_POOL:
        return {"pools": {"spare": {**POOL_NEEDS, key: OF_POOL[key]}}}
    if key in OF_TENANT:
        more = {"gpu_hours": 100} if key == "gpu_hours_period" else {}
        return {"tenants": {"lab": {key: OF_TENANT[key], **more}}}
    return {**NEEDS.get(key, {}), key: OF_SCHEDULER[key]}


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # a pool's command may outlive the test
@pytest.mark.parametrize("key", [*OF_SCHEDULER, *OF_TENANT, *OF_POOL])
def test_a_scheduler_with_this_key_set_accepts_a_task_and_keeps_it_over_a_restart(folder: Path, key: str) -> None:
    needs_openssl(key)
    settings = settings_of(folder, case_of(key))
    task, total = asyncio.run(submitted(settings, folder))
    assert task == f"task-{total}", "a task of a scheduler before was lost"


def test_a_scheduler_with_all_keys_set_accepts_a_task_and_keeps_it_over_a_restart(tmp_path: Path, folder: Path) -> None:
    """As a process, so that logging is set up, too; and an agent with all of its keys set runs the task."""
    needs_openssl("tls")
    every = {key: value for key, value in OF_SCHEDULER.items() if key not in SAID_OTHERWISE | OFF | EXCLUDED}
    http, grpc = free_port(), free_port()
    every |= {
        "server.http_address": f"127.0.0.1:{http}",
        "server.grpc_address": f"127.0.0.1:{grpc}",
        "auth.join_token": "join",
        "tenants": {"lab": OF_TENANT, "default": OF_TENANT},
    }
    made = Cluster(tmp_path)
    path = tmp_path / "scheduler.yaml"
    path.write_text(yaml.safe_dump(_with_certificate(nested(filled(every, tmp_path)), tmp_path, folder)))
    settings = load_server_settings(path, {})
    agent = {**OF_AGENT, "scheduler.master_address": f"127.0.0.1:{grpc}"}
    agent["executor.users"] = {"lab": "root"} if os.geteuid() == 0 else {}
    agent_path = tmp_path / "agent.yaml"
    agent_path.write_text(yaml.safe_dump(_with_certificate(nested(filled(agent, tmp_path)), tmp_path, folder)))
    url = f"https://127.0.0.1:{http}"
    try:
        made.server = made._popen("server", path)
        client = until(lambda: _answers(url, settings, folder), what=f"the scheduler answers\n{made.logs()}")
        first = client.submit("true", gpu_count=1)
        made.agents["all"] = made._popen("agent", agent_path)
        client.wait(first, timeout=30)
        made.stop_server()
        made.server = made._popen("server", path)
        client = until(lambda: _answers(url, settings, folder), what=f"the scheduler answers\n{made.logs()}")
        assert client.task(first).status == "success"
    finally:
        made.end()


def _with_certificate(settings: dict[str, Any], here: Path, there: Path) -> dict[str, Any]:
    """The certificate lies in the folder of all tests."""
    moved: dict[str, Any] = json.loads(
        json.dumps(settings)
        .replace(str(here / "cert.pem"), str(there / "cert.pem"))
        .replace(str(here / "key.pem"), str(there / "key.pem"))
    )
    return moved


def _answers(url: str, settings: ServerSettings, folder: Path) -> Client | None:
    with suppress(Unreachable):
        return client_of(url, settings, folder)
    return None


# --- agents -----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A scheduler without nodes."""
    with running_cluster(tmp_path_factory.mktemp("agents"), nodes=0) as made:
        yield made


@pytest.mark.parametrize("key", [key for key in OF_AGENT if key not in BY_THE_COMMAND])
def test_an_agent_with_this_key_set_runs_a_task(cluster: Cluster, key: str) -> None:
    base = {
        "agent.join_token": cluster.join_token,
        "agent.id": "node",
        "scheduler.master_address": f"127.0.0.1:{cluster.grpc}",
        "gpu.virtual": "2",
        "executor.work_dir": str(cluster.folder / "node"),
    }
    told = filled(
        {**base, **NEEDS.get(key, {}), key: OF_AGENT[key]}, cluster.folder, **{SCHEDULER: f"localhost:{cluster.grpc}"}
    )
    path = cluster.folder / "agent.yaml"
    path.write_text(yaml.safe_dump(nested(told)))
    settings = load_agent_settings(path, {})

    async def story() -> None:
        async with joined(settings):
            client = cluster.client()
            task = await asyncio.to_thread(client.submit, "true", gpu_count=1)
            done = await asyncio.to_thread(lambda: client.wait(task, timeout=20))
            assert (done.status, done.node_id) == ("success", settings.node_id)

    asyncio.run(story())
    cluster.client().remove_node(settings.node_id)


@asynccontextmanager
async def joined(settings: AgentSettings) -> AsyncIterator[None]:
    """An agent in this process, for as long as it is needed."""
    running = asyncio.create_task(run_agent(settings))
    try:
        yield
    finally:
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running
