"""A real cluster for tests: `gpuyard up` on free ports in its own process, stopped at the end with all its tasks."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from gpuyard.live.sdk import Client, connect
from tests.acceptance.waiting import PATIENCE_SECONDS, until

GPUYARD = str(Path(sys.executable).with_name("gpuyard"))


class CliCluster:
    """One data folder and the processes that use it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.url = ""
        self.process: subprocess.Popen[str] | None = None
        self.env = {name: value for name, value in os.environ.items() if not name.startswith("GPUYARD_")}
        self.env["XDG_CONFIG_HOME"] = str(folder / "config")
        self.env["GPUYARD_LANG"] = "en"

    def up(self, *options: str) -> None:
        """Start it and wait until its node has joined."""
        if self.process is not None:
            self._ended()  # it was stopped
        words = ["up", "--data-dir", str(self.folder / "data"), "--http-address", "127.0.0.1:0"]
        words += ["--grpc-address", "127.0.0.1:0", "--virtual-gpus", "4:RTX4090:24", "--json", *options]
        errors = (self.folder / "up.err").open("ab")
        with errors:
            self.process = subprocess.Popen(
                [GPUYARD, *words], env=self.env, stdout=subprocess.PIPE, stderr=errors, text=True, cwd=self.folder
            )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, (self.folder / "up.err").read_text()
        self.url = json.loads(line)["http"]
        self.env["GPUYARD_SERVER"] = self.url
        until(lambda: [node for node in self.client().nodes().nodes if node.status == "online"], what="the node joins")

    def client(self, token: str = "") -> Client:
        """A client of the cluster."""
        return connect(self.url, token=token)

    def call(
        self, *words: str, given: str | None = None, env: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run one command to its end."""
        return subprocess.run(
            [GPUYARD, *words],
            env={**self.env, **(env or {})},
            input=given,
            stdin=subprocess.DEVNULL if given is None else None,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
            cwd=self.folder,
        )

    def does(self, *words: str, given: str | None = None) -> str:
        """Run a command that must succeed; return its output."""
        done = self.call(*words, given=given)
        assert done.returncode == 0, f"{words}: {done.stderr}"
        assert "\x1b" not in done.stdout
        return done.stdout

    def agents(self) -> list[int]:
        """Process ids of the agents below our `up`."""
        assert self.process is not None
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        return [int(pid) for pid in children if b"agent_process" in Path(f"/proc/{pid}/cmdline").read_bytes()]

    @property
    def last_words(self) -> str:
        """The last line our `up` wrote."""
        return (self.folder / "up.err").read_text().splitlines()[-1]

    def interrupt(self) -> int:
        """Ctrl-C, and its exit code."""
        assert self.process is not None
        self.process.send_signal(signal.SIGINT)
        return self._ended()

    def kill(self) -> None:
        """Kill it without warning."""
        assert self.process is not None
        self.process.kill()
        self._ended()

    def _ended(self) -> int:
        assert self.process is not None
        code = self.process.wait(PATIENCE_SECONDS)
        assert self.process.stdout is not None
        self.process.stdout.close()
        self.process = None
        return code

    def end(self) -> None:
        """Stop everything that this cluster started."""
        self.call("down", "--data-dir", str(self.folder / "data"), "--stop-tasks")
        if self.process is not None:
            if self.process.poll() is None:
                self.process.kill()
            self._ended()


@contextmanager
def running_cluster(folder: Path) -> Iterator[CliCluster]:
    """Yield a running cluster."""
    cluster = CliCluster(folder)
    try:
        cluster.up()
        yield cluster
    finally:
        cluster.end()
