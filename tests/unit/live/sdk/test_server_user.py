"""On loopback any user can listen on the scheduler's port: nothing is sent before the listener's user is known."""

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from io import StringIO
from pathlib import Path

import pytest

from gpuyard import cli
from gpuyard.live.sdk import Unreachable, UntrustedServer, connect
from gpuyard.live.sdk.errors import WrongAddress
from gpuyard.live.sdk.tokens import store_server_user, stored_server_user
from tests.unit.live.sdk.fake_server import Answering, fake_server, task

NOBODY = 65534
ROGUE = """
import os, socket, sys
listening = socket.create_server(("127.0.0.1", int(sys.argv[1])))
os.setgroups([]); os.setgid(65534); os.setuid(65534)
port = listening.getsockname()[1]
listening.close()
listening = socket.create_server(("127.0.0.1", port))
print(port, flush=True)
while True:
    line, _ = listening.accept()
    line.settimeout(10)
    try:
        got = line.recv(65536)
    except OSError:
        got = b""
    print("GOT", got, flush=True)
    if got:
        line.sendall(b"HTTP/1.1 401 No\\r\\nContent-Length: 0\\r\\n\\r\\n")
    line.close()
"""


@pytest.fixture(autouse=True)
def _nothing_from_outside(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("GPUYARD_SERVER", "GPUYARD_TOKEN", "GPUYARD_CA", "GPUYARD_SERVER_USER"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))


class Rogue:
    """Another user who listens at the scheduler's port."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        assert process.stdout is not None
        self._said = process.stdout
        self.url = f"http://127.0.0.1:{int(self._said.readline())}"

    def got(self) -> str:
        return self._said.readline().removeprefix("GOT ").strip()


@contextmanager
def another_user_listens(port: int = 0) -> Iterator[Rogue]:
    """At this port; 0: at a free one."""
    if os.geteuid() != 0:
        pytest.skip("only root can be another user")
    words = [sys.executable, "-c", ROGUE, str(port)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield Rogue(process)
        finally:
            process.kill()


@pytest.fixture
def rogue() -> Iterator[Rogue]:
    with another_user_listens() as listening:
        yield listening


def test_another_user_at_the_schedulers_port_gets_no_token_no_password_and_no_secret(rogue: Rogue) -> None:
    cluster = connect(rogue.url, token="gy_secret")
    for ask in (
        cluster.quota,
        lambda: cluster.login("alice", "password"),
        lambda: cluster.submit("true", secrets={"KEY": "value"}),
        lambda: list(cluster.logs(7)),
    ):
        with pytest.raises(
            UntrustedServer, match=r"belongs to the system user .nobody..*gpuyard login --server-user nobody"
        ):
            ask()
        assert rogue.got() == "b''"


def test_an_accepted_user_is_contacted(rogue: Rogue, monkeypatch: pytest.MonkeyPatch) -> None:
    def is_asked(server_user: str | None = None) -> bool:
        with pytest.raises(Exception, match=r".") as raised:
            connect(rogue.url, token="gy_secret", server_user=server_user).quota()
        rogue.got()
        return not isinstance(raised.value, UntrustedServer)

    assert is_asked("nobody")
    assert is_asked(str(NOBODY))
    assert is_asked("any")
    assert not is_asked("daemon")
    monkeypatch.setenv("GPUYARD_SERVER_USER", "nobody")
    assert is_asked()
    monkeypatch.delenv("GPUYARD_SERVER_USER")
    store_server_user("http://127.0.0.1:1", "nobody")
    assert not is_asked()
    store_server_user(rogue.url, "nobody")
    assert is_asked()


def test_login_stores_who_may_run_the_scheduler_and_logout_forgets_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    url = "http://127.0.0.1:1"
    for words in (["--server-user", "gpuyard"], ["--forget"]):
        monkeypatch.setattr(sys, "argv", ["gpuyard", "login", "--server", url, *words])
        monkeypatch.setattr(sys, "stdin", StringIO())
        assert cli.main() == 0
        assert stored_server_user(url) == ("gpuyard" if "--forget" not in words else None)
    assert "gpuyard is now trusted to run the scheduler" in capsys.readouterr().err


def test_a_user_who_does_not_exist_is_named() -> None:
    def answers(line: Answering) -> None:
        line.say(task())

    with fake_server(answers) as server, pytest.raises(WrongAddress, match="no system user no-such-user"):
        connect(server.url, server_user="no-such-user").task(7)


def test_a_listener_that_does_not_accept_connections_is_not_waited_for_forever() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        with pytest.raises(Unreachable, match=r"did not answer within 0\.3 seconds"):
            connect(url, timeout_seconds=0.3).quota()


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.3", "localhost"])
def test_our_own_server_is_trusted_under_every_name(host: str) -> None:
    def answers(line: Answering) -> None:
        line.say(task())

    with fake_server(answers, host="0.0.0.0") as server:
        assert connect(server.url.replace("127.0.0.1", host), token="gy_x").task(7).id == "task-7"
