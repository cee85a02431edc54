"""`gpuyard forward`: TCP ports of a running task at ports of this machine, through the scheduler.

Each connection here is one WebSocket to the scheduler and one connection on the node, so a slow or broken one does not
disturb the others. Only ports on which the task itself listens can be reached.
"""

import os
import re
import select
import signal
import socket
import sys
import threading
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from gpuyard.cli.input.options import JsonOption, ServerOption, TokenOption, client
from gpuyard.cli.input.task_selection import TaskArgument, task_named

if TYPE_CHECKING:
    from gpuyard.live.sdk import Client, Task
    from gpuyard.live.sdk.websocket import ClientWebSocket

PART_BYTES = 64 * 1024
LOOK_SECONDS = 1.0
_PORTS = re.compile(r"(?:(?P<local>[0-9]{1,5}):)?(?P<remote>[0-9]{1,5})")
HIGHEST = 65_535


class _Forwarding(NamedTuple):
    """A port here and the port of the task behind it."""

    local: int
    remote: int


def forward(
    task_id: TaskArgument,
    ports: Annotated[
        list[str] | None,
        typer.Argument(metavar="[[LOCAL:]PORT...]", help="Ports of the task, such as 8888 or 8080:8888."),
    ] = None,
    stdio: Annotated[
        bool, typer.Option("--stdio", help="Connect one port with standard input and output, as ssh's ProxyCommand.")
    ] = False,
    as_json: JsonOption = False,
    server: ServerOption = None,
    token: TokenOption = None,
) -> None:
    """Make TCP ports of a running task available here; without a port, list those on which it listens."""
    wanted = [_read(word) for word in ports or ()]
    if stdio and len(wanted) != 1:
        raise typer.BadParameter("give exactly one port with --stdio", param_hint="'--stdio'")
    cluster = client(server, token)
    task = cluster.task(task_named(cluster, task_id))
    if not wanted:
        _list(cluster, task, as_json=as_json)
        return
    cluster = cluster.without_waiting()
    if stdio:
        _carry(cluster.forward(task, wanted[0].remote), 0, 1)
        return
    _check(cluster, task, wanted)
    _serve(cluster, task, wanted, as_json=as_json)


def _read(word: str) -> _Forwarding:
    found = _PORTS.fullmatch(word)
    if found is None or not all(1 <= int(port) <= HIGHEST for port in found.groups() if port):
        raise typer.BadParameter(
            f"{word!r} is not a port such as 8888, or 8080:8888 for port 8080 here", param_hint="'PORT'"
        )
    return _Forwarding(int(found["local"] or found["remote"]), int(found["remote"]))


def _list(cluster: "Client", task: "Task", *, as_json: bool) -> None:
    from gpuyard.cli.output.printing import print_json

    found = cluster.ports(task)
    if as_json:
        print_json(found)
    elif not found.ports:
        print(f"gpuyard: {task.id} listens on no port.", file=sys.stderr)
    for one in () if as_json else found.ports:
        typer.echo(f"{one.port:<6} {one.command} (pid {one.pid})")


def _check(cluster: "Client", task: "Task", wanted: list[_Forwarding]) -> None:
    """Report ports on which the task does not listen yet; they work as soon as it does."""
    known = {one.port for one in cluster.ports(task).ports}
    for one in wanted:
        if one.remote not in known:
            others = ", ".join(map(str, sorted(known))) or "none"
            words = f"{task.id} does not listen on port {one.remote} yet; ports on which it listens: {others}."
            print(f"gpuyard: {words}", file=sys.stderr)


def _serve(cluster: "Client", task: "Task", wanted: list[_Forwarding], *, as_json: bool) -> None:
    """Accept connections until Ctrl-C or the end of the task."""
    from gpuyard.cli.output.errors import complain
    from gpuyard.cli.output.printing import print_json

    listeners: dict[int, tuple[socket.socket, _Forwarding]] = {}
    for one in wanted:
        try:
            listener = socket.create_server(("127.0.0.1", one.local), backlog=64)
        except OSError as error:
            message = f"Port {one.local} of this machine cannot be used ({error.strerror}); give another one: {one.local + 1}:{one.remote}"
            complain(message, code="PortInUse", as_json=as_json)
            raise typer.Exit(1) from None
        listeners[listener.fileno()] = listener, one
        if as_json:
            print_json({"task_id": task.id, "local": one.local, "port": one.remote})
        else:
            typer.echo(f"http://127.0.0.1:{one.local} is port {one.remote} of {task.id}")
    sys.stdout.flush()
    ended = threading.Event()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    threading.Thread(target=_wait_for_end, args=(cluster, task, ended), daemon=True).start()
    while not ended.is_set():
        for number in select.select(list(listeners), [], [], LOOK_SECONDS)[0]:
            listener, one = listeners[number]
            connection, _ = listener.accept()
            threading.Thread(target=_connect, args=(cluster, task, one, connection), daemon=True).start()
    print(f"gpuyard: {task.id} has ended.", file=sys.stderr)


def _wait_for_end(cluster: "Client", task: "Task", ended: threading.Event) -> None:
    from gpuyard.core.domain.errors import GpuyardError

    try:
        cluster.wait(task)
    except GpuyardError as error:
        print(f"gpuyard: {error}", file=sys.stderr)
    ended.set()


def _connect(cluster: "Client", task: "Task", one: _Forwarding, connection: socket.socket) -> None:
    from gpuyard.core.domain.errors import GpuyardError

    with connection:
        try:
            _carry(cluster.forward(task, one.remote), connection.fileno(), connection.fileno(), connection)
        except GpuyardError as error:
            print(f"gpuyard: port {one.remote}: {error}", file=sys.stderr, flush=True)
        except OSError:
            return  # the program here has closed its connection


def _carry(there: "ClientWebSocket", reading: int, writing: int, connection: socket.socket | None = None) -> None:
    """Carry bytes in both directions until both have ended."""
    reads, writes = True, True
    try:
        while reads or writes:
            poll = select.poll()
            poll.register(there.fileno(), select.POLLIN | (select.POLLOUT if there.wants_to_write else 0))
            if reads and not there.is_full:
                poll.register(reading, select.POLLIN)
            ready = {number for number, _ in poll.poll(0 if there.has_pending else 5000)}
            if reading in ready:
                data = os.read(reading, PART_BYTES)
                there.send(data)  # an empty message is the end
                reads = bool(data)
            there.flush()
            for message in there.read():
                if message:
                    _write(writing, message)
                    continue
                writes = False
                if connection is not None:
                    connection.shutdown(socket.SHUT_WR)
            if there.ended:
                return
    finally:
        there.close()


def _write(descriptor: int, data: bytes) -> None:
    while data:
        data = data[os.write(descriptor, data) :]
