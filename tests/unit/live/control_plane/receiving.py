"""Real servers on loopback that receive notifications, or fail to."""

import asyncio
import json
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import takewhile
from typing import Any

from tests.ports import free_port


class WebhookServer:
    """Keeps what is posted to it. `status` may be changed at any time."""

    def __init__(self) -> None:
        self.bodies: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.status = 200
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if outer.status < 300:
                    outer.headers.append(dict(self.headers.items()))
                    outer.bodies.append(json.loads(body))
                self.send_response(outer.status)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                return

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/alerts?key=1"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05})
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(10)

    def statuses(self) -> list[str]:
        return [body["status"] for body in self.bodies]


@contextmanager
def webhook_server() -> Iterator[WebhookServer]:
    server = WebhookServer()
    try:
        yield server
    finally:
        server.close()


@contextmanager
def hanging_server() -> Iterator[tuple[int, Callable[[], int]]]:
    """Accepts connections, reads and never answers: its port, and how many connections there were."""
    listening = socket.create_server(("127.0.0.1", 0))
    accepted: list[socket.socket] = []

    def serve() -> None:
        while True:
            try:
                accepted.append(listening.accept()[0])
            except OSError:
                return

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield listening.getsockname()[1], lambda: len(accepted)
    finally:
        listening.shutdown(socket.SHUT_RDWR)
        listening.close()
        thread.join(10)
        for each in accepted:
            each.close()


class SmtpServer:
    """A real SMTP server that keeps the messages, with STARTTLS and a login if it is given a certificate."""

    def __init__(self, certificate: ssl.SSLContext | None = None) -> None:
        from aiosmtpd.controller import Controller
        from aiosmtpd.smtp import AuthResult

        self.messages: list[bytes] = []
        self.recipients: list[list[str]] = []
        self.logins: list[tuple[bytes, bytes]] = []

        async def handle_data(_server: object, _session: object, envelope: Any) -> str:
            self.messages.append(envelope.content)
            self.recipients.append(envelope.rcpt_tos)
            return "250 OK"

        def authenticate(*arguments: Any) -> AuthResult:
            data = arguments[-1]
            self.logins.append((data.login, data.password))
            return AuthResult(success=data.password == b"correct horse", handled=False)

        handler = type("Handler", (), {"handle_DATA": staticmethod(handle_data)})()
        more: dict[str, Any] = (
            {
                "tls_context": certificate,
                "require_starttls": True,
                "authenticator": authenticate,
                "auth_required": True,
            }
            if certificate
            else {}
        )
        self._controller = Controller(handler, hostname="127.0.0.1", port=free_port(), **more)
        self._controller.start()
        self.port: int = self._controller.port

    def close(self) -> None:
        self._controller.stop()


class CurtSmtpServer:
    """Speaks just enough SMTP to fail in chosen ways, with TLS from the first byte or STARTTLS if it has a certificate."""

    def __init__(
        self,
        certificate: ssl.SSLContext | None = None,
        *,
        starttls: bool = False,
        refuses: str = "",
        ends_after_message: bool = False,
        goes_on: threading.Event | None = None,
    ) -> None:
        self.messages: list[bytes] = []
        self.shakes_hands = threading.Event()
        """It is the server's turn in the handshake; it waits for `goes_on`."""
        self._certificate = certificate
        self._starttls = starttls
        self._refuses = refuses
        self._ends = ends_after_message
        self._goes_on = goes_on
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listening.getsockname()[1]
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def served(self) -> None:
        """Wait until the connection has ended."""
        self._thread.join(20)
        assert not self._thread.is_alive()

    def close(self) -> None:
        with suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        self.served()

    def _serve(self) -> None:
        with suppress(OSError):
            connection = self._listening.accept()[0]
            with connection:
                connection.settimeout(20)
                if self._certificate is not None and not self._starttls:
                    connection = self._encrypted(connection)
                with connection:
                    connection.sendall(b"220 here\r\n")
                    self._talk(connection)

    def _encrypted(self, connection: socket.socket) -> socket.socket:
        assert self._certificate is not None
        connection.recv(1, socket.MSG_PEEK)
        self.shakes_hands.set()
        assert self._goes_on is None or self._goes_on.wait(20)
        return self._certificate.wrap_socket(connection, server_side=True)

    def _talk(self, connection: socket.socket) -> None:
        with connection.makefile("rb") as lines:
            for line in lines:
                answer = b"250 fine\r\n"
                if line.lower().startswith(b"rcpt") and self._refuses and self._refuses.encode() in line:
                    answer = b"550 no such user\r\n"
                elif line.lower().startswith(b"ehlo") and self._starttls:
                    answer = b"250-here\r\n250 STARTTLS\r\n"
                elif line.startswith(b"STARTTLS"):
                    connection.sendall(b"220 go on\r\n")
                    with self._encrypted(connection) as encrypted:
                        self._talk(encrypted)
                    return
                elif line.lower().startswith(b"data"):
                    connection.sendall(b"354 go on\r\n")
                    text = list(takewhile(lambda each: each != b".\r\n", lines))
                    self.messages.append(b"".join(text))
                connection.sendall(answer)
                if line.lower().startswith(b"quit") or (self._ends and line.lower().startswith(b"data")):
                    return


async def until(happens: Callable[[], bool], what: str, seconds: float = 20.0) -> None:
    """Poll without blocking the event loop."""
    async with asyncio.timeout(seconds):
        while not happens():
            await asyncio.sleep(0.01)
    assert happens(), what
