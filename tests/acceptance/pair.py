"""Two schedulers that share a journal, as processes that a test starts, kills and asks."""

import json
import subprocess
import urllib.error
import urllib.request
from contextlib import suppress
from pathlib import Path
from typing import Any

from gpuyard.live.sdk import Client, ClusterError, connect
from tests.acceptance.live import GPUYARD, Cluster
from tests.acceptance.waiting import until
from tests.netns import HERE, Network
from tests.ports import free_port

SECONDS = 60.0
SECRETS_KEY = "5a" * 32
ADMIN, PASSWORD = "admin", "only for tests"
STORE, NODES, MORE_NODES = "store", "nodes", "more-nodes"
HOSTS = ("a", "b", NODES, MORE_NODES, STORE)
"""The hosts of a network for two schedulers, their nodes and their database."""


class Scheduler:
    """One of the schedulers: its ports, and its process while it runs."""

    def __init__(self, name: str, address: str) -> None:
        self.name = self.folder = name
        self.address = address
        self.http, self.grpc, self.replication = free_port(), free_port(), free_port()
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://{self.address}:{self.http}"

    def health(self) -> dict[str, Any]:
        with urllib.request.urlopen(f"{self.url}/health", timeout=10) as answer:
            told: dict[str, Any] = json.load(answer)
            return told

    def leads(self) -> bool:
        return self.has("master")

    def follows(self) -> bool:
        return self.has("standby")

    def has(self, role: str, status: str = "ok") -> bool:
        with suppress(OSError):
            told = self.health()
            return (told["role"], told["status"]) == (role, status)
        return False


class Pair(Cluster):
    """Two schedulers that share a journal, and agents that know both."""

    def __init__(self, folder: Path, database: str = "", network: Network | None = None) -> None:
        """`database`: where the journal is; without it the schedulers replicate it.

        `network`: has `HOSTS`; each process is on its own one. Clients then log in, because they are not on loopback.
        """
        super().__init__(folder)
        self.database = database
        self.network = network
        self._token: str | None = None
        self.replication: dict[str, Any] = {}
        """More settings of the replication, for schedulers that are started from now on."""
        self.a, self.b = (Scheduler(name, self._address(name)) for name in ("a", "b"))
        self.secrets_key = SECRETS_KEY
        self.witness: subprocess.Popen[bytes] | None = None

    def storage_of(self, scheduler: Scheduler) -> dict[str, Any]:  # noqa: ARG002 - for those who need them
        """More settings of the storage of a scheduler."""
        return {}

    def start(self, scheduler: Scheduler, role: str = "standby", *options: str) -> None:
        other = self.b if scheduler is self.a else self.a
        settings: dict[str, Any] = {
            "server": {
                "http_address": f"{scheduler.address}:{scheduler.http}",
                "grpc_address": f"{scheduler.address}:{scheduler.grpc}",
            },
            "scheduler": {"role": role},
            "storage": {"data_dir": str(self.folder / scheduler.folder), **self.storage_of(scheduler)},
            "auth": {"join_token": self.join_token},
            "logging": {"format": "text", "output": str(self.folder / f"{scheduler.name}.log")},
        }
        if self.network is not None:
            settings["server"]["plain"] = settings["auth"]["enabled"] = True
            settings["users"] = [{"username": ADMIN, "password": PASSWORD, "role": "admin"}]
        if self.database:
            settings["storage"]["shared_storage"] = self.database
        else:
            settings["replication"] = {
                "enabled": True,
                "address": f"{scheduler.address}:{scheduler.replication}",
                "peer_address": f"{other.address}:{other.replication}",
                **self.replication,
            }
        path = self._write(f"{scheduler.name}.yaml", settings)
        scheduler.process = self._popen("server", path, *options, within=self._within(scheduler.name))

    def start_agent(self, name: str, gpus: int = 4, *, kind: str = "RTX4090:24", **executor: Any) -> None:
        """Start an agent with so many virtual GPUs, or start it again; every second one is on the host `MORE_NODES`."""
        path = self._write(f"{name}.yaml", self.agent_settings(name, f"{gpus}:{kind}", executor))
        self.agents[name] = self._popen("agent", path, within=self._within(_host_of_node(name)))

    def agent_settings(self, name: str, gpus: str, executor: dict[str, Any]) -> dict[str, Any]:
        settings = super().agent_settings(name, gpus, executor)
        settings["agent"]["address"] = self._address(_host_of_node(name))
        settings["scheduler"] = {
            "master_address": f"{self.a.address}:{self.a.grpc}",
            "standby_address": f"{self.b.address}:{self.b.grpc}",
        }
        if self.network is not None:
            settings["scheduler"]["plain"] = settings["executor"]["shared_user"] = True
        return settings

    def _address(self, host: str) -> str:
        return "127.0.0.1" if self.network is None else self.network.address(host)

    def _within(self, host: str) -> tuple[str, ...]:
        return () if self.network is None else self.network.within(host)

    def environment(self, name: str) -> dict[str, str]:
        return {**super().environment(name), "GPUYARD_SECRETS_KEY": self.secrets_key}

    def start_witness(self) -> None:
        """Start a process that votes and does nothing else."""
        addresses = ",".join(f"{each.address}:{each.replication}" for each in (self.a, self.b))
        options = (
            "--scheduler",
            addresses,
            "--data-dir",
            str(self.folder / "witness"),
            "--join-token",
            self.join_token,
        )
        with (self.folder / "witness.err").open("ab") as errors:
            self.witness = subprocess.Popen(
                [*self._within(HERE), *GPUYARD, "witness", *options],
                stdin=subprocess.DEVNULL,
                stdout=errors,
                stderr=errors,
                env=self.environment("witness"),
                start_new_session=True,
            )

    @property
    def addresses(self) -> str:
        """The addresses of both for clients."""
        return f"{self.a.url},{self.b.url}"

    def token(self) -> str | None:
        """The token of an administrator; None: this user is one by itself, on loopback."""
        if self.network is not None and self._token is None:
            self._token = until(self._login, SECONDS, "the administrator logs in")
        return self._token

    def _login(self) -> str | None:
        """None: the user does not exist yet; the first scheduler that leads adds it in a moment."""
        with connect(self.addresses) as client, suppress(ClusterError):
            return client.login(ADMIN, PASSWORD).token
        return None

    def client(self) -> Client:
        client = connect(self.addresses, token=self.token())
        self._clients.append(client)
        return client

    def end(self) -> None:
        for process in (self.a.process, self.b.process, self.witness):
            if process is not None and process.poll() is None:
                process.kill()
                process.wait()
        super().end()

    def until(self, ready: Any, what: str) -> None:
        try:
            until(ready, SECONDS, what)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.logs()}") from None

    def until_complete(self) -> None:
        """Wait until the other scheduler has every event and there are enough voters, so that either may be lost."""
        if self.database:
            return

        def is_complete() -> bool:
            told = [self.replication_of(scheduler) for scheduler in (self.a, self.b)]
            return all(each.get("problems") == [] and len(each["in_sync"]) == 2 for each in told)

        self.until(is_complete, "either scheduler may be lost")

    def replication_of(self, scheduler: Scheduler) -> dict[str, Any]:
        """What a scheduler says about the replication; empty: nothing."""
        with suppress(OSError):
            status, content, _ = ask(scheduler.url, "/api/v1/replication", token=self._token)
            told: dict[str, Any] = json.loads(content) if status == 200 else {}
            return told
        return {}


def _host_of_node(name: str) -> str:
    """Every second node, by the number at the end of its name, is on the other host."""
    return (MORE_NODES, NODES)[int(name.rpartition("-")[2]) % 2]


def ask(
    url: str, path: str, method: str = "GET", body: Any = None, token: str | None = None
) -> tuple[int, Any, dict[str, str]]:
    """Send one request to one scheduler, and follow no redirection."""

    class Stay(urllib.request.HTTPRedirectHandler):
        def redirect_request(self, *_: Any) -> None:
            return None

    data = None if body is None else json.dumps(body).encode()
    headers = {"content-type": "application/json", **({"authorization": f"Bearer {token}"} if token else {})}
    request = urllib.request.Request(f"{url}{path}", data, headers, method=method)
    try:
        with urllib.request.build_opener(Stay).open(request, timeout=20) as answer:
            return answer.status, answer.read(), {name.lower(): value for name, value in answer.headers.items()}
    except urllib.error.HTTPError as error:
        return error.code, error.read(), {name.lower(): value for name, value in error.headers.items()}
