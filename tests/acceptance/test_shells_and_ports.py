"""Shells beside tasks and TCP ports of tasks, with real processes; and who may use them."""

import http.server
import json
import os
import signal
import socket
import subprocess
import threading
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from gpuyard.live.agent.supervisor import console_holder
from gpuyard.live.sdk import Client, ClusterError, Refused, Task, connect
from gpuyard.live.sdk.console import ConsoleEvent, ConsoleExit, ConsoleGap, ConsoleOutput, TaskConsole
from gpuyard.live.wire.channel_frames import SUBPROTOCOL
from tests.acceptance.cli_cluster import GPUYARD
from tests.acceptance.live import Cluster, running_cluster
from tests.acceptance.terminals import PROMPT, environment, person
from tests.acceptance.waiting import until
from tests.ports import free_port

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with running_cluster(tmp_path_factory.mktemp("shells")) as made:
        yield made


@contextmanager
def running(client: Client, command: str, folder: Path, **more: object) -> Iterator[Task]:
    """A task that runs, until the block is left."""
    task = client.submit(command, gpus=1, work_dir=str(folder), **more)  # type: ignore[call-overload]
    until(lambda: client.task(task).started_at, what="it runs")
    try:
        yield task
    finally:
        client.cancel(task)


def test_a_shell_has_the_gpus_folder_and_user_of_the_task_and_ends_with_it(cluster: Cluster) -> None:
    client = cluster.client()
    inside = cluster.folder / "inside"
    inside.mkdir()
    with running(client, "exec sleep 600", inside, env={"MARKED": "yes", "LEFT_IN": str(inside)}) as task:
        with person(cluster, "shell", task.id, "env", f"PS1={PROMPT}", "bash", "--norc", size=(31, 87)) as one:
            one.types(
                "echo gpu=$CUDA_VISIBLE_DEVICES task=$GPUYARD_TASK_ID marked=$MARKED term=$TERM; pwd; stty size; id -u"
            )
            gpu = client.task(task).allocated_gpus[0].partition("/")[2]
            one.sees(f"gpu={gpu} task={task.id.removeprefix('task-')} marked=yes term=xterm-256color")
            one.sees(str(inside))
            one.sees("31 87")
            one.sees(str(os.getuid()))
            one.sees(PROMPT)
            one.types("sleep 300")
            one.presses("c")
            one.sees(PROMPT)
            one.types("exit 9")
            assert one.ends() == 9
        assert client.task(task).status == "running"
        with person(
            cluster, "shell", task.id, "sh", "-c", "echo begun; trap '' HUP TERM; sleep 500 & wait; sleep 500"
        ) as one:
            one.sees("begun")
            client.cancel(task)
            one.ends(60)
        assert client.wait(task, timeout=60).status == "cancelled"
    until(lambda: not _left_in(inside), 30, "nothing is left of it")


def _left_in(folder: Path) -> list[int]:
    mark = f"LEFT_IN={folder}".encode()
    found = []
    for entry in Path("/proc").iterdir():
        with suppress(OSError):
            if entry.name.isdigit() and mark in (entry / "environ").read_bytes().split(b"\0"):
                found.append(int(entry.name))
    return found


def test_a_shell_beside_a_terminal_and_across_a_killed_agent(tmp_path: Path) -> None:
    with running_cluster(tmp_path) as own:
        client = own.client()
        with running(client, "exec sleep 600", tmp_path, console={"terminal": True}, env={"OF": "terminal"}) as task:
            with person(own, "shell", "--linger", "30", task.id, "bash", "--norc", "--noediting") as one:
                one.types("of=$OF; echo begun=$of")
                one.sees("begun=terminal")
                own.kill(own.agents["node-1"])
                one.types("echo kept=$of")
                own.start_agent("node-1")
                one.sees("kept=terminal")
                one.types("exit")
                assert one.ends() == 0
            with person(own, "shell", "--linger", "0", task.id, "sh", "-c", "echo $$; exec sleep 500") as one:
                pid = int(one.sees_like(r"(\d+)\r\n").group(1))
                os.kill(one.pid, signal.SIGKILL)
            until(lambda: not Path(f"/proc/{pid}").exists(), 30, "the shell without a client is closed")


def test_a_shell_of_an_ended_task_and_a_wrong_program_are_refused(cluster: Cluster) -> None:
    client = cluster.client()
    ended = client.submit("true", gpus=1)
    client.wait(ended, timeout=60)
    with person(cluster, "shell", ended.id) as one:
        assert one.ends() == 1
        assert "has ended" in one.rest
    with running(client, "exec sleep 600", cluster.folder) as task:
        with person(cluster, "shell", task.id, "no-such-shell") as one:
            assert one.ends() == 127
            assert "no-such-shell" in one.rest
        with person(cluster, "attach", task.id) as one:
            assert one.ends() == 1
            assert "without a terminal" in one.rest


# --- a shell begins once ------------------------------------------------------------------------------------------------


def shell_of(client: Client, task: Task, session: str, line: str) -> TaskConsole:
    """A client of the shell with this name."""
    query: dict[str, object] = {"session": session, "command": json.dumps(["sh", "-c", line]), "linger": 30}
    path = f"/api/v1/tasks/{task.id}/shell"
    return TaskConsole(lambda: client.connection.upgrade(path, query, subprotocol=SUBPROTOCOL), received=0)


def events_until_exit(console: TaskConsole) -> list[ConsoleEvent]:
    """What a connected client gets until the command has ended."""
    events: list[ConsoleEvent] = []

    def ended() -> bool:
        events.extend(console.read())
        return any(isinstance(event, ConsoleExit) for event in events)

    until(ended, what="it ends")
    return events


def shell_files(cluster: Cluster, kind: str) -> list[Path]:
    """The sockets or records of shells."""
    return list(cluster.folder.rglob(f"*.shells/*.{kind}"))


def test_a_shell_that_has_ended_is_not_begun_again_by_a_client_that_comes_back(
    cluster: Cluster, tmp_path: Path
) -> None:
    client, runs = cluster.client(), tmp_path / "runs"
    line = f"echo ran >> {runs}; echo said; exit 4"
    with running(client, "exec sleep 600", cluster.folder) as task:
        console = shell_of(client, task, "comesback", line)
        console.connect()
        assert events_until_exit(console) == [ConsoleOutput(b"said\r\n"), ConsoleExit(4, None)]
        console.close()
        until(lambda: not shell_files(cluster, "sock"), what="its holder has ended")
        for _ in range(2):
            console.connect()
            assert events_until_exit(console) == [ConsoleExit(4, None)], "how it has ended is known"
            console.close()
        late = shell_of(client, task, "comesback", line)
        late.connect()
        assert events_until_exit(late) == [ConsoleGap(6), ConsoleExit(4, None)]
        late.close()
        assert runs.read_text() == "ran\n"
    until(lambda: not shell_files(cluster, "json"), what="nothing is left of it after the end of the task")


def test_a_shell_begins_once_and_waits_for_a_client_that_is_late(cluster: Cluster, tmp_path: Path) -> None:
    """The request for the shell comes three times, and its client says something only after the command has ended."""
    client, runs = cluster.client(), tmp_path / "runs"
    line = f"echo ran >> {runs}; echo said; exit 4"
    with running(client, "exec sleep 600", cluster.folder) as task:
        late = [shell_of(cluster.client(), task, "comeslate", line) for _ in range(3)]
        with ThreadPoolExecutor(3) as pool:
            sockets = list(pool.map(lambda one: one._open_socket(), late))
        until(lambda: any(record.stat().st_size for record in shell_files(cluster, "json")), what="it has ended")
        silent_until = time.monotonic() + console_holder.FLUSH_SECONDS + 1
        until(lambda: time.monotonic() > silent_until, what="the client says nothing for longer than it was waited for")
        late[0].connect()
        assert events_until_exit(late[0]) == [ConsoleOutput(b"said\r\n"), ConsoleExit(4, None)]
        for one in (*sockets, late[0]):
            one.close()
        assert runs.read_text() == "ran\n"


def test_a_limit_is_told_at_once_with_the_way_out(tmp_path: Path) -> None:
    made = Cluster(tmp_path)
    made._more = {"server": {**made.server_settings()["server"], "max_channels_per_task": 3}}
    try:
        made.start_server()
        made.start_agent("node-1", max_shells_per_task=2)
        client = made.ready(1)
        with (
            running(client, "exec sleep 600", tmp_path) as task,
            person(made, "shell", task.id, "cat") as one,
            person(made, "shell", task.id, "cat") as two,
        ):
            for open_one in (one, two):
                open_one.types("here")
                open_one.sees("here\r\nhere")
            with person(made, "shell", task.id) as third:
                assert third.ends() == 1
                assert "has 2 shells open" in third.rest.replace("\r\n", " ")
            with person(made, "shell", task.id) as again:
                assert again.ends() == 1
            one.presses("d")
            assert one.ends() == 0
            with person(made, "shell", task.id, "echo", "room") as fourth:
                fourth.sees("room")
                assert fourth.ends() == 0
        server = client.submit(SERVER.format(port=(port := free_port())), gpus=1, work_dir=str(tmp_path))
        until(lambda: _listens(client, server, port), what="it listens")
        connections = [client.forward(server, port) for _ in range(3)]
        with pytest.raises(Refused, match=r"has 3 terminals, shells and connections to ports open.*Close some first"):
            client.forward(server, port)
        with person(made, "shell", server.id) as one:
            assert one.ends(20) == 1, "it does not try again for fifteen minutes"
            assert "server.max_channels_per_task" in one.rest
        for connection in connections:
            connection.close()
        until(lambda: _opens(client, server, port), what="there is room again")
    finally:
        made.end()


def _opens(client: Client, task: Task, port: int) -> bool:
    with suppress(Refused):
        client.forward(task, port).close()
        return True
    return False


# --- neighbors ----------------------------------------------------------------------------------------------------------


def test_clients_that_do_not_read_hold_up_only_themselves(cluster: Cluster) -> None:
    """Shells that print without an end and downloads, whose clients read nothing; and a terminal on the same node."""
    client = cluster.client()
    port = free_port()
    endless = f"import socket;s=socket.create_server(('127.0.0.1',{port}))\nwhile True:\n c,_=s.accept()\n import threading;threading.Thread(target=lambda c=c:[c.sendall(bytes(65536)) for _ in range(1<<20)],daemon=True).start()"
    with running(client, f'exec python3 -c "{endless}"', cluster.folder) as task:
        until(lambda: _listens(client, task, port), what="it listens")
        stuck = [shell_of(client, task, f"floods{number:02}", "yes") for number in range(6)]
        for shell in stuck:
            shell.connect()
        downloads = [client.forward(task, port) for _ in range(6)]
        with person(cluster, "shell", task.id, "cat") as one:
            for word in range(20):
                one.types(f"word-{word}")
                one.sees(f"word-{word}\r\nword-{word}\r\n", seconds=20)
            one.presses("d")
            assert one.ends() == 0
        for shell in stuck:
            shell.close()
        for download in downloads:
            download.close()


def test_a_client_that_pings_and_does_not_read_is_disconnected(cluster: Cluster) -> None:
    """The answers to its pings would take memory of the scheduler without a limit."""
    client = cluster.client()
    with running(client, "exec sleep 600", cluster.folder) as task:
        hostile = shell_of(client, task, "pingpong", "cat")._open_socket()
        raw = hostile._socket
        raw.settimeout(30)
        pings = (b"\x89\xfd" + bytes(4) + bytes(125)) * 500
        assert _is_broken_by(raw, pings, 1000), "64 MB of pings were answered"
        hostile.close()


def _is_broken_by(line: socket.socket, data: bytes, times: int) -> bool:
    """Send this many times; return whether the other side closes the connection."""
    with suppress(ConnectionError):
        for _ in range(times):
            line.sendall(data)
        return False
    return True


# --- ports --------------------------------------------------------------------------------------------------------------

SERVER = "cd /tmp && exec python3 -c \"import http.server as h; s=h.ThreadingHTTPServer(('127.0.0.1', {port}), h.SimpleHTTPRequestHandler); s.serve_forever()\""


def _listens(client: Client, task: Task, port: int) -> bool:
    with suppress(ClusterError):
        return port in {one.port for one in client.ports(task).ports}
    return False


def test_a_port_of_the_task_is_reached_and_no_other_one(cluster: Cluster) -> None:
    client = cluster.client()
    port, local = free_port(), free_port()
    foreign = http.server.ThreadingHTTPServer(("127.0.0.1", 0), http.server.SimpleHTTPRequestHandler)
    threading.Thread(target=foreign.serve_forever, daemon=True).start()
    with running(client, SERVER.format(port=port), cluster.folder) as task:
        until(lambda: _listens(client, task, port), what="it listens")
        assert str(port) in _call(cluster, "forward", task.id).stdout
        assert f'"port":{port}' in _call(cluster, "forward", task.id, "--json").stdout.replace(" ", "")
        words = ["forward", task.id, f"{local}:{port}"]
        with subprocess.Popen(
            [GPUYARD, *words], env=environment(cluster), stdout=subprocess.PIPE, text=True
        ) as forwarding:
            assert forwarding.stdout is not None
            assert f"127.0.0.1:{local}" in forwarding.stdout.readline()
            for _ in range(3):
                with urllib.request.urlopen(f"http://127.0.0.1:{local}/", timeout=20) as answer:
                    assert answer.status == 200
            forwarding.send_signal(signal.SIGTERM)
            assert forwarding.wait(20) == 130
        for wrong in (foreign.server_port, cluster.http, cluster.grpc, 22):
            with pytest.raises(Refused, match=f"listens on port {wrong}") as refused:
                client.forward(task, wrong)
            assert refused.value.code == "NotListening"
    foreign.shutdown()
    foreign.server_close()


def test_stdio_carries_one_connection_and_its_half_close(cluster: Cluster) -> None:
    client = cluster.client()
    port = free_port()
    program = (
        f"import socket;s=socket.create_server(('127.0.0.1',{port}))\n"
        "while True:\n c,_=s.accept();c.sendall(b'banner ')\n d=b''\n while (p:=c.recv(65536)): d+=p\n"
        " c.sendall(str(len(d)).encode()+b' bytes');c.close()\n"
    )
    with running(client, f'exec python3 -c "{program}"', cluster.folder) as task:
        until(lambda: _listens(client, task, port), what="it listens")
        done = subprocess.run(
            [GPUYARD, "forward", "--stdio", task.id, str(port)], input=b"x" * 2_000_000, capture_output=True,
            env=environment(cluster), timeout=60, check=False,
        )  # fmt: skip
        assert (done.returncode, done.stdout) == (0, b"banner 2000000 bytes"), done.stderr


def test_a_port_in_use_here_names_another_one(cluster: Cluster) -> None:
    client = cluster.client()
    with socket.create_server(("127.0.0.1", 0)) as taken, running(client, "sleep 600", cluster.folder) as task:
        port = taken.getsockname()[1]
        done = _call(cluster, "forward", task.id, str(port))
        assert done.returncode == 1
        assert f"{port + 1}:{port}" in done.stderr
        assert _call(cluster, "forward", task.id, "99999").returncode == 2
        assert "listens on no port" in _call(cluster, "forward", task.id).stderr


def _call(cluster: Cluster, *words: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [GPUYARD, *words], env=environment(cluster), capture_output=True, text=True, timeout=60, check=False,
        stdin=subprocess.DEVNULL, cwd=cluster.folder,
    )  # fmt: skip


# --- access -------------------------------------------------------------------------------------------------------------

USERS = [("root", "admin", None), ("ann", "member", "blue"), ("bob", "member", "blue"), ("eve", "member", "red")]


def test_only_owner_and_admins_type_and_other_tenants_see_nothing(tmp_path: Path) -> None:
    users = [
        {"username": name, "password": f"password of {name}", "role": role, **({"tenant_id": tenant} if tenant else {})}
        for name, role, tenant in USERS
    ]
    made = Cluster(tmp_path, scheduler={"auth": {"enabled": True, "join_token": "join"}, "users": users})
    try:
        made.start_server()
        made.start_agent("node-1", shared_user=True)
        url = f"http://127.0.0.1:{made.http}"
        root = until(lambda: _logged_in(url, "root"), what="the scheduler answers")
        until(lambda: any(node.status == "online" for node in root.nodes().nodes), what="the node joins")
        ann, bob, eve = (until(lambda name=name: _logged_in(url, name)) for name in ("ann", "bob", "eve"))  # type: ignore[misc]
        with running(ann, "exec cat", tmp_path, console={"terminal": True}) as task:
            for client, allowed in ((ann, True), (root, True)):
                console = client.console(task, steal=True)
                console.connect()
                until(lambda console=console: console.read() is not None and console.attached)  # type: ignore[misc]
                assert console.writes is allowed
                console.close()
            watching = bob.console(task, read_only=True)
            watching.connect()
            until(lambda: watching.read() is not None and watching.attached)
            assert not watching.writes
            watching.close()
            for call in (
                bob.console(task).connect,
                bob.shell(task).connect,
                lambda: bob.forward(task, 80),
                lambda: bob.ports(task),
            ):
                with pytest.raises(Refused) as refused:
                    call()
                assert (refused.value.status, refused.value.code) == (403, "NotOwner")
            for call in (
                eve.console(task, read_only=True).connect,
                eve.shell(task).connect,
                lambda: eve.forward(task, 80),
            ):
                with pytest.raises(Refused) as refused:
                    call()
                assert refused.value.status == 404
            nobody = connect(url)
            with pytest.raises(Refused) as refused:
                nobody.console(task).connect()
            assert refused.value.status == 401
    finally:
        made.end()


def _logged_in(url: str, name: str) -> Client | None:
    with suppress(ClusterError):
        return connect(url, token=connect(url).login(name, f"password of {name}").token)
    return None


@pytest.mark.parametrize(
    ("headers", "status"),
    [({"Host": "evil.example"}, 403), ({"Origin": "http://evil.example"}, 403), ({}, 101)],
)
def test_host_and_origin_of_a_websocket_are_checked(cluster: Cluster, headers: dict[str, str], status: int) -> None:
    with running(cluster.client(), "exec cat", cluster.folder, console={"terminal": True}) as task:
        asked = {
            "Host": f"127.0.0.1:{cluster.http}", "Connection": "Upgrade", "Upgrade": "websocket",
            "Sec-WebSocket-Version": "13", "Sec-WebSocket-Key": "AAAAAAAAAAAAAAAAAAAAAA==", **headers,
        }  # fmt: skip
        head = f"GET /api/v1/tasks/{task.id}/console HTTP/1.1\r\n" + "".join(f"{n}: {v}\r\n" for n, v in asked.items())
        with socket.create_connection(("127.0.0.1", cluster.http), timeout=20) as raw:
            raw.sendall(head.encode() + b"\r\n")
            assert raw.recv(4096).split()[1] == str(status).encode()


def test_a_plain_request_is_told_to_ask_for_an_upgrade(cluster: Cluster) -> None:
    with running(cluster.client(), "exec cat", cluster.folder, console={"terminal": True}) as task:
        with pytest.raises(Refused, match="WebSocket") as refused:
            cluster.client().connection.send("GET", f"/api/v1/tasks/{task.id}/console")
        assert refused.value.status == 426
