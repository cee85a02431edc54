"""Two schedulers and their nodes, each on a host, a disk and a clock of its own if a fault needs that."""

import os
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

from tests.acceptance import pair
from tests.acceptance.pair import Scheduler
from tests.netns import Network, why_no_network
from tests.postgres_server import PostgresServer

NAMES = ("a", "b")
WRONG_CLOCK = Path(__file__).parent / "wrong_clock"
DISK_MIB = 4096
"""The size of the disks of schedulers: in memory, taken only as far as it is used."""


def boot() -> float:
    """Return the clock of /proc/uptime."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Pair(pair.Pair):
    """Two schedulers, and agents that know both."""

    def __init__(self, folder: Path, database: str, network: Network | None, *, disks: bool) -> None:
        """`database`: where the journal is; empty: they replicate it. `disks`: each has a file system of its own."""
        super().__init__(folder, database, network)
        self.join_token = "x" * 32
        self.shifts: dict[str, Path] = {}
        """Schedulers whose wall clock is wrong from their next start on, each with the file that says by how much."""
        self._disks = [folder / name for name in NAMES] if disks else []
        for disk in self._disks:
            disk.mkdir()
            subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={DISK_MIB}m,mode=700", "tmpfs", disk], check=True)

    def storage_of(self, scheduler: Scheduler) -> dict[str, Any]:
        """Events that leave the journal are kept: they are counted at the end."""
        return {"retired_dir": str(self.retired(scheduler.name))}

    def retired(self, name: str) -> Path:
        """Where a scheduler keeps events that its journal does not need any more."""
        return self.folder / f"{name}.retired"

    def of(self, name: str) -> Scheduler:
        """A scheduler by its name."""
        return {"a": self.a, "b": self.b}[name]

    def start_named(self, name: str, role: str = "standby") -> None:
        """Start a scheduler, or start it again."""
        self.start(self.of(name), role)

    def process(self, name: str) -> "subprocess.Popen[bytes]":
        """The process of a scheduler that was started."""
        process = self.of(name).process
        assert process is not None, "it was started"
        return process

    def environment(self, name: str) -> dict[str, str]:
        """The environment without settings of this user."""
        known = {key: value for key, value in super().environment(name).items() if not key.startswith("GPUYARD")}
        known["GPUYARD_SECRETS_KEY"] = self.secrets_key
        if name in self.shifts:
            known |= {"PYTHONPATH": str(WRONG_CLOCK), "WRONG_CLOCK": str(self.shifts[name])}
        return known

    def shift(self, name: str, seconds: float) -> None:
        """Let the wall clock of a scheduler be wrong, at once if it was when it was started."""
        path = self.shifts.setdefault(name, self.folder / f"{name}.clock")
        fresh = path.with_suffix(".new")
        fresh.write_text(f"{seconds:+g}\n")
        fresh.rename(path)

    def fill_disk(self, name: str) -> None:
        """Leave no space on the disk of a scheduler."""
        used = shutil.disk_usage(self.folder / name).used
        self._resize(name, f"{max(1, used >> 10)}k")

    def empty_disk(self, name: str) -> None:
        """Give the disk of a scheduler space again."""
        self._resize(name, f"{DISK_MIB}m")

    def _resize(self, name: str, size: str) -> None:
        subprocess.run(["mount", "-o", f"remount,size={size}", self.folder / name], check=True)

    def end(self) -> None:
        """Stop everything that was started."""
        for name in NAMES:
            if (process := self.of(name).process) is not None and process.poll() is None:
                process.kill()
                process.wait()
        super().end()

    def keep_disks(self) -> None:
        """Copy what is on disks in memory into the folder, and remove the disks."""
        for disk in self._disks:
            kept = disk.with_name(f"{disk.name}.kept")
            shutil.copytree(disk, kept)
            subprocess.run(["umount", disk], check=True)
            disk.rmdir()
            kept.rename(disk)
        self._disks = []


def why_not_here(kind: str) -> str:
    """Return why a kind of fault cannot be caused on this machine, or nothing."""
    if kind.startswith("cut-"):
        return why_no_network()
    if kind.startswith("disk-") and os.geteuid():
        return "A small disk is mounted, which needs root."
    return ""


class Databases:
    """A PostgreSQL server, and a synchronous replica of it if a fault needs that."""

    def __init__(self, network: Network | None, *, replica: bool) -> None:
        self._network = network
        self.primary = PostgresServer(network=network, host=pair.STORE)
        self.replica: PostgresServer | None = None
        self.primary.start()
        if replica:
            self.replica = PostgresServer()
            self.replica.replicate(self.primary)

    @property
    def url(self) -> str:
        """Where the schedulers find their journal."""
        if self._network is not None:
            return self.primary.url_in_network("failover")
        return self.primary.url("failover") if self.replica is None else self.primary.url_with(self.replica, "failover")

    @property
    def own_url(self) -> str:
        """Where this process finds the journal."""
        return self.primary.url("failover")

    def fail_over(self) -> None:
        """Kill the primary, and let the replica take its place."""
        assert self.replica is not None, "this fault needs a replica"
        self.primary.kill()
        self.replica.promote()
        self.primary, self.replica = self.replica, self.primary

    def replicate_again(self) -> None:
        """Make the former primary a synchronous replica of the new one."""
        assert self.replica is not None, "this fault needs a replica"
        self.replica.replicate(self.primary)

    def stop(self) -> None:
        """Stop the servers and remove their folders."""
        for server in (self.primary, self.replica):
            if server is not None:
                server.stop()
