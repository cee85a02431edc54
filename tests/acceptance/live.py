"""A cluster of real processes for tests: a scheduler and agents, each with its settings file, that can be killed."""

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import yaml

from gpuyard.live.sdk import Client, ClusterError, connect
from tests.acceptance.waiting import until
from tests.ports import free_port

GPUYARD = [sys.executable, "-m", "gpuyard.cli"]


class Cluster:
    """One scheduler and some agents on this machine."""

    def __init__(self, folder: Path, *, scheduler: dict[str, Any] | None = None) -> None:
        self._clients: list[Client] = []
        self.folder = folder
        self.http, self.grpc = free_port(), free_port()
        self.server: subprocess.Popen[bytes] | None = None
        self.agents: dict[str, subprocess.Popen[bytes]] = {}
        self.join_token = "join"
        self._more = scheduler or {}

    # --- starting ----------------------------------------------------------------------------------------------------

    def start_server(self, *options: str) -> None:
        """Start the scheduler, or start it again."""
        self.server = self._popen("server", self._write("scheduler.yaml", self.server_settings()), *options)

    def server_settings(self) -> dict[str, Any]:
        """The settings file of the scheduler."""
        return {
            "server": {"http_address": f"127.0.0.1:{self.http}", "grpc_address": f"127.0.0.1:{self.grpc}"},
            "storage": {"data_dir": str(self.folder / "data")},
            "auth": {"join_token": self.join_token},
            "quota": {"mode": "borrow"},
            "logging": {"format": "text", "output": str(self.folder / "server.log")},
            **self._more,
        }

    def start_agent(self, name: str, gpus: int = 4, *, kind: str = "RTX4090:24", **executor: Any) -> None:
        """Start an agent with so many virtual GPUs of a kind, or start it again."""
        settings = self.agent_settings(name, f"{gpus}:{kind}", executor)
        self.agents[name] = self._popen("agent", self._write(f"{name}.yaml", settings))

    def agent_settings(self, name: str, gpus: str, executor: dict[str, Any]) -> dict[str, Any]:
        """The settings file of an agent."""
        return {
            "agent": {"id": name, "join_token": self.join_token, "address": "127.0.0.1"},
            "scheduler": {
                "master_address": f"127.0.0.1:{self.grpc}",
                "retry_interval": "200ms",
                "max_retry_interval": "1s",
            },
            "gpu": {"detection_method": "virtual", "virtual": gpus},
            "executor": {"work_dir": str(self.folder / name), **executor},
            "logging": {"format": "text", "output": str(self.folder / f"{name}.log")},
        }

    def environment(self, name: str) -> dict[str, str]:  # noqa: ARG002 - for those who hurt one process only
        """The environment of a process; `name` is that of its settings file."""
        return dict(os.environ)

    def _write(self, name: str, settings: dict[str, Any]) -> Path:
        path = self.folder / name
        path.write_text(yaml.safe_dump(settings))
        return path

    def _popen(self, verb: str, path: Path, *options: str, within: tuple[str, ...] = ()) -> "subprocess.Popen[bytes]":
        errors = (self.folder / f"{path.stem}.err").open("ab")
        with errors:
            return subprocess.Popen(
                [*within, *GPUYARD, verb, "--config", str(path), *options],
                stdin=subprocess.DEVNULL,
                stdout=errors,
                stderr=errors,
                env=self.environment(path.stem),
                start_new_session=True,
            )

    def client(self) -> Client:
        """A client of this cluster; it is closed with the cluster."""
        client = connect(f"http://127.0.0.1:{self.http}")
        self._clients.append(client)
        return client

    def ready(self, nodes: int, seconds: float = 40.0) -> Client:
        """Wait until the scheduler answers and so many nodes are online."""
        client = self.client()

        def online() -> bool:
            with suppress(ClusterError):
                return sum(node.status == "online" for node in client.nodes().nodes) >= nodes
            return False

        try:
            until(online, seconds, f"{nodes} nodes online")
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.logs()}") from None
        return client

    def count(self, status: str) -> int:
        """How many tasks are in one of these states."""
        address = f"http://127.0.0.1:{self.http}/api/v1/tasks?limit=1&status={status}"
        with urllib.request.urlopen(address, timeout=10) as answer:
            return int(json.load(answer)["total"])

    # --- faults ------------------------------------------------------------------------------------------------------

    def supervisor(self, name: str) -> int | None:
        """The process id of a node's supervisor."""
        folder = str(self.folder / name / "supervisor").encode()
        for entry in Path("/proc").iterdir():
            with suppress(OSError):
                words = (entry / "cmdline").read_bytes().split(b"\0") if entry.name.isdigit() else []
                if b"gpuyard.live.agent.supervisor" in words and folder in words and b"watch" not in words:
                    return int(entry.name)
        return None

    def kill(self, process: "subprocess.Popen[bytes] | int | None", how: signal.Signals = signal.SIGKILL) -> None:
        """Send a signal to a process of ours."""
        if process is None:
            return
        pid = process if isinstance(process, int) else process.pid
        if isinstance(process, subprocess.Popen) and process.poll() is not None:
            return
        with suppress(ProcessLookupError):
            os.kill(pid, how)
        if isinstance(process, subprocess.Popen) and how is signal.SIGKILL:
            process.wait()

    def kill_node(self, name: str) -> None:
        """The whole node at once: agent, supervisor and everything they started."""
        self.kill(self.agents[name])
        mine = str(self.folder / name)
        for _ in range(10):  # a process that is about to execute a command does not show yet whose it is
            found = self._processes_of(mine)
            for pid in found:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            if not found:
                return

    def _processes_of(self, folder: str) -> list[int]:
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit() and int(entry.name) != os.getpid():
                with suppress(OSError):
                    words = (entry / "cmdline").read_bytes() + b"\0" + (entry / "environ").read_bytes()
                    if folder.encode() + b"\0" in words or folder.encode() + b"/" in words:
                        found.append(int(entry.name))
        return found

    # --- ending ------------------------------------------------------------------------------------------------------

    def stop_server(self) -> None:
        """Stop it as Ctrl-C does."""
        assert self.server is not None
        self.kill(self.server, signal.SIGCONT)
        self.kill(self.server, signal.SIGTERM)
        self.server.wait(20)

    def kill_server(self) -> None:
        """Stop it as a shutdown of the machine does."""
        self.kill(self.server)

    def stop_agent(self, name: str) -> None:
        """Stop it on purpose: it announces how long it will be absent."""
        self.kill(self.agents[name], signal.SIGTERM)
        self.agents[name].wait(20)

    def end(self) -> None:
        """Stop everything that this cluster started."""
        for client in self._clients:
            client.close()
        for process in (self.server, *self.agents.values()):
            if process is not None and process.poll() is None:
                process.kill()
                process.wait()
        give_up_at = time.monotonic() + 5
        while (left := self._processes_of(str(self.folder))) and time.monotonic() < give_up_at:
            for pid in left:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.02)

    def logs(self) -> str:
        """The ends of all logs, for a test that failed."""
        paths = sorted([*self.folder.glob("*.log"), *self.folder.glob("*.err")])
        return "\n".join(f"--- {path.name}\n{path.read_text(errors='replace')[-3000:]}" for path in paths)


@contextmanager
def running_cluster(folder: Path, nodes: int = 1, gpus: int = 4, **scheduler: Any) -> Iterator[Cluster]:
    """Yield a running cluster; stop it at the end of the test."""
    made = Cluster(folder, scheduler=scheduler)
    try:
        made.start_server()
        for place in range(nodes):
            made.start_agent(f"node-{place + 1}", gpus)
        made.ready(nodes)
        yield made
    finally:
        made.end()
