"""A small real HTTP server with scripted answers that can misbehave: it disconnects, stalls, or is not gpuyard."""

import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs

import msgspec

from gpuyard.core.domain.placement import Placement
from gpuyard.core.domain.task import Resources, TaskSpec
from gpuyard.core.domain.values import TaskId, TaskStatus, TenantId
from gpuyard.live.wire.task_answers import answer_of


@dataclass
class Asked:
    """One request as it came."""

    method: str
    path: str
    headers: dict[str, str]
    body: Any
    connection: int


Behaviour = Callable[["Answering"], None]


@dataclass
class FakeServer:
    """What the server does and what it was asked."""

    behaviour: Behaviour
    url: str = ""
    asked: list[Asked] = field(default_factory=list)
    connections: int = 0


class Answering(BaseHTTPRequestHandler):
    """One connection."""

    protocol_version = "HTTP/1.1"
    fake_server: FakeServer
    asked: Asked

    def setup(self) -> None:
        super().setup()
        self.fake_server.connections += 1
        self.number = self.fake_server.connections

    def _serve(self) -> None:
        length = int(self.headers.get("Content-Length", 0))
        raw = self.rfile.read(length) if length else b""
        body = json.loads(raw) if raw else None
        self.asked = Asked(self.command, self.path, dict(self.headers), body, self.number)
        self.fake_server.asked.append(self.asked)
        self.fake_server.behaviour(self)

    def say(self, value: object, status: int = 200) -> None:
        body = value if isinstance(value, bytes) else msgspec.json.encode(value)
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def begin_stream(self) -> None:
        self.send_response(200)
        self.send_header("Connection", "close")
        self.end_headers()
        self.close_connection = True

    def hang_up(self) -> None:
        self.close_connection = True
        self.connection.shutdown(socket.SHUT_RDWR)

    def log_message(self, *_: object) -> None:
        """Quiet."""


for method in ("GET", "POST", "PUT", "PATCH", "DELETE"):
    setattr(Answering, f"do_{method}", Answering._serve)


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *_: object) -> None:
        """A disconnect is not an error here."""


@contextmanager
def fake_server(behaviour: Behaviour, port: int = 0, host: str = "127.0.0.1") -> Iterator[FakeServer]:
    """A server on a free port."""
    made = FakeServer(behaviour)
    handler = type("Handler", (Answering,), {"fake_server": made})
    with _Server((host, port), handler) as server:
        made.url = f"http://127.0.0.1:{server.server_address[1]}"
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        try:
            yield made
        finally:
            server.shutdown()


def task(number: int = 7, status: TaskStatus = TaskStatus.PENDING, **changed: Any) -> Any:
    """What a scheduler says about a task."""
    told = answer_of(
        TaskId(number),
        TaskSpec(TenantId("default"), Resources(gpus=1), command="true"),
        status=status,
        priority=50,
        submitted_at=1_700_000_000.0,
        started_at=None,
        finished_at=None,
        exit_code=None,
        signal=None,
        attempts=0,
        placement=Placement(()),
        reason=None,
        reason_code=None,
        created_by="alice",
    )
    return msgspec.structs.replace(told, **changed)


FOREIGN_CREATED_AT = "2026-01-01T00:00:00.000000Z"


def another_cluster(line: Answering, *, number: int = 7) -> None:
    """Answers as a scheduler with other data, in which the number is another task."""
    path, _, query = line.asked.path.partition("?")
    meant = parse_qs(query).get("created_at", [FOREIGN_CREATED_AT])
    foreign = task(number, TaskStatus.SUCCESS, created_at=FOREIGN_CREATED_AT, attempts=1, started_at=FOREIGN_CREATED_AT)
    if path == "/api/v1/events":
        line.say(refusal("NotReady", "not now"), 409)
    elif meant != [FOREIGN_CREATED_AT]:
        line.say(refusal("AnotherTask", f"task-{number} is another task here.", "created_at"), 404)
    elif path.endswith("/logs"):
        line.say(b"FOREIGN OUTPUT\n")
    else:
        line.say(foreign)


def refusal(code: str, message: str, about: str | None = None) -> dict[str, Any]:
    """An error answer."""
    return {"error": {"code": code, "message": message, "field": about}}
