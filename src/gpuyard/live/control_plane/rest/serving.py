"""Serve the application: uvicorn with uvloop and httptools, plus limits on slow and numerous clients.

uvicorn does not limit four things: the time until a connected client sends a request, the time for its headers, the
progress of its body, and the number of connections. All are limited here. A client that stops sending in the middle of
a request is disconnected, and connections are limited in total and per address. At the limit, the connection that has
been idle longest is closed in favor of a new one, because idle connections must not keep other clients out. Input that
is not valid HTTP also gets an error in the one shape of the API.
"""

import asyncio
import socket
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http import HTTPStatus
from typing import Any, NamedTuple, Self, cast

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from gpuyard.live.control_plane.descriptors import for_clients, for_http
from gpuyard.live.control_plane.rest.responses import CLIENT_ENDED, ENDLESS, HANG_UP, SECURITY_HEADERS, encode
from gpuyard.live.control_plane.settings import ServerTlsSection
from gpuyard.live.wire.answers import Error, ErrorAnswer

MOST_HEADER_BYTES = 64 << 10
IDLE_SECONDS = 60.0
"""Maximum time between two requests on one connection, and without any progress of a body."""
SILENT_SECONDS = 10.0
"""Maximum time for the first request of a connection, for the headers of each request, and for the TLS handshake."""
LEAST_BYTES_PER_SECOND = 16 << 10
"""Minimum rate of a body after `IDLE_SECONDS`. Any client may send a body, because login needs no token."""
MOST_MESSAGE_BYTES = 1 << 17
"""Longest message of a WebSocket."""
MOST_UNREAD_BYTES = 1 << 20
"""A client of a WebSocket that lets this much pile up is not answered any more."""
PING_SECONDS, PONG_SECONDS = 15.0, 30.0
"""A client of a WebSocket is asked for a sign of life this often, and must give it in time."""
GOODBYE_SECONDS = 3
"""Time for pending responses when the server stops; event streams and followed logs end then."""


class Limits(NamedTuple):
    """Limits on the number of connections."""

    most: int = 4096
    most_of_one: int = 1024
    """Per address."""
    highest_descriptor: int = 1 << 20
    """The kernel assigns the lowest free descriptor, so a number above this means that few are left."""

    @classmethod
    def within(cls, descriptors: int, most: int, most_of_one: int) -> Self:
        """Return these limits, lowered if the process may open fewer descriptors; one address gets at most half."""
        most = min(most, for_http(descriptors))
        return cls(most, min(most_of_one, max(1, most // 2)), for_clients(descriptors))


class Connections:
    """All connections of a server, and the idle ones in the order in which they became idle."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._count: Counter[str] = Counter()
        self._idle: dict[str, dict[_Connection, None]] = {}
        """By address, the longest idle first."""
        self._all_idle: dict[_Connection, None] = {}

    def admit(self, connection: "_Connection", descriptor: int) -> bool:
        """Count a new connection and return whether there is room for it; close an idle connection if necessary."""
        limits, address = self._limits, connection.address
        if self._count[address] >= limits.most_of_one:
            self._close_one(self._idle.get(address, {}))
        elif self._count.total() >= limits.most or descriptor > limits.highest_descriptor:
            self._close_one(self._all_idle)
        admitted = (
            self._count[address] < limits.most_of_one
            and self._count.total() < limits.most
            and descriptor <= limits.highest_descriptor + _CLOSING
        )
        self._count[address] += 1
        return admitted

    def gone(self, connection: "_Connection") -> None:
        """Remove a closed connection."""
        if connection.counted:
            connection.counted = False
            self._count[connection.address] -= 1
            if not self._count[connection.address]:
                del self._count[connection.address]
        self.busy(connection)

    def idle(self, connection: "_Connection") -> None:
        """Mark a connection as waiting for a request."""
        self._all_idle[connection] = None
        self._idle.setdefault(connection.address, {})[connection] = None

    def busy(self, connection: "_Connection") -> None:
        """Mark a connection as handling a request."""
        if connection in self._all_idle:
            del self._all_idle[connection]
            of_address = self._idle[connection.address]
            del of_address[connection]
            if not of_address:
                del self._idle[connection.address]

    def _close_one(self, idle: "Mapping[_Connection, None]") -> None:
        connection = next(iter(idle), None)
        if connection is not None:
            self.gone(connection)
            connection.transport.abort()


_CLOSING = 32
"""Tolerance above `highest_descriptor`: descriptors of closed connections become free a moment later."""


def http_server(
    app: ASGIApp,
    *,
    tls: ServerTlsSection | None = None,
    idle_seconds: float = IDLE_SECONDS,
    limits: Limits | None = None,
) -> uvicorn.Server:
    """Return a server for bound sockets; run it with `await server.serve(sockets)` in the engine's event loop."""

    class Connection(_Connection):
        """A connection with the limits of this server."""

        most_idle_seconds = idle_seconds
        most_silent_seconds = min(idle_seconds, SILENT_SECONDS)
        all = Connections(limits or Limits())

    config = uvicorn.Config(
        app,
        http=Connection,
        ws=_WebSocket,
        ws_max_size=MOST_MESSAGE_BYTES,
        ws_ping_interval=PING_SECONDS,
        ws_ping_timeout=PONG_SECONDS,
        ws_per_message_deflate=False,
        lifespan="on",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        date_header=False,
        timeout_keep_alive=max(1, round(idle_seconds)),
        timeout_graceful_shutdown=GOODBYE_SECONDS,
        ssl_certfile=tls.cert or None if tls else None,
        ssl_keyfile=tls.key or None if tls else None,
    )
    return _Server(config)


class _Server(uvicorn.Server):
    """uvicorn's server without its signal handlers: server.py handles the signals of the process."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start as uvicorn does, on the given sockets, with a shorter timeout for the TLS handshake."""
        assert sockets is not None
        await self.lifespan.startup()
        config, loop = self.config, asyncio.get_running_loop()
        protocol = cast("type[_Connection]", config.http_protocol_class)

        def made() -> asyncio.Protocol:
            return protocol(config=config, server_state=self.server_state, app_state=self.lifespan.state)

        handshake_seconds = SILENT_SECONDS if config.ssl else None
        self.servers = [
            await loop.create_server(
                made, sock=sock, ssl=config.ssl, backlog=config.backlog, ssl_handshake_timeout=handshake_seconds
            )
            for sock in sockets
        ]
        self.started = not self.lifespan.should_exit


class _WebSocket(WebSocketsSansIOProtocol):
    """A connection that has become a WebSocket. It counts as a connection until it ends."""

    upgraded_from: "_Connection | None" = None

    def handle_ping(self) -> None:
        """Answer a ping, unless its client reads no answers: they would take memory without a limit."""
        if self.transport.get_write_buffer_size() > MOST_UNREAD_BYTES:
            self.transport.abort()
        else:
            super().handle_ping()

    def connection_lost(self, exc: Exception | None) -> None:
        if self.upgraded_from is not None:
            self.upgraded_from.all.gone(self.upgraded_from)
        super().connection_lost(exc)


class _Connection(HttpToolsProtocol):
    """One connection. A timer runs while the client has something to send."""

    most_idle_seconds = IDLE_SECONDS
    most_silent_seconds = SILENT_SECONDS
    all: Connections
    address = ""
    counted = False
    scope_extensions: dict[str, Any]
    _client_ended = False
    _in_headers = False
    _in_body = False
    _header_bytes = 0
    _body_bytes = 0
    _body_began_at = 0.0
    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.address = self.client[0] if self.client else ""
        self.counted = True
        if self.all.admit(self, transport.get_extra_info("socket").fileno()):
            self.all.idle(self)
            self._start_timer(self.most_silent_seconds)
        else:
            text = "Too many connections are open, in total or from this address. Close some, or try again later."
            self._turn_away(503, "TooManyConnections", text)

    def connection_lost(self, exc: Exception | None) -> None:
        self._cancel_timer()
        self.all.gone(self)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._in_headers:
            self._header_bytes += len(data)
            if self._header_bytes > MOST_HEADER_BYTES:
                text = f"The headers are larger than {MOST_HEADER_BYTES >> 10} KiB, the maximum."
                self._turn_away(431, "HeadersTooLarge", text)
            elif self._timer is None:  # one timer for all headers: sending single bytes does not extend it
                self._start_timer(self.most_silent_seconds)
        elif self._in_body:
            self._body_bytes += len(data)
            allowed_seconds = self.most_idle_seconds + self._body_bytes / LEAST_BYTES_PER_SECOND
            if (
                self.loop.time() - self._body_began_at > allowed_seconds
            ):  # single bytes do not extend the limit of a body either
                self._too_slow(allowed_seconds)
            else:
                self._start_timer(self.most_idle_seconds)
        else:
            self._cancel_timer()

    def eof_received(self) -> bool | None:  # type: ignore[override]
        """Keep a connection until the answer is sent if the client has ended its side after a complete request."""
        cycle = cast("RequestResponseCycle | None", self.cycle)
        if (
            cycle is None
            or cycle.response_complete
            or self._in_headers
            or self._in_body
            or ENDLESS in self.scope_extensions
            or self.transport.get_extra_info("sslcontext") is not None  # TLS connections cannot be half closed
        ):
            return None
        self.scope_extensions[CLIENT_ENDED] = self._client_ended = True
        return True

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.scope_extensions = {HANG_UP: self.transport.abort}
        self.scope["extensions"] = self.scope_extensions  # our own extensions
        self._in_headers, self._header_bytes = True, 0

    def on_headers_complete(self) -> None:
        self._in_headers, self._in_body = False, True
        self._body_bytes, self._body_began_at = 0, self.loop.time()
        self.all.busy(self)
        self._cancel_timer()
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._in_body = False
        super().on_message_complete()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.counted and not self.transport.is_closing() and self.cycle.response_complete:
            self.all.idle(self)
            if self._client_ended:
                self.transport.close()

    def handle_websocket_upgrade(self) -> None:
        super().handle_websocket_upgrade()
        self._cancel_timer()
        upgraded = cast("_WebSocket", self.transport.get_protocol())
        upgraded.upgraded_from = self
        if not upgraded.handshake_initiated:  # its parser has stricter limits, and nobody would answer
            text = "A request for a WebSocket has lines of at most 8 KiB, and at most 128 headers."
            self._turn_away(431, "HeadersTooLarge", text)

    def send_400_response(self, msg: str) -> None:  # noqa: ARG002 - ours says more
        text = "The request is not valid HTTP; check the request line and the headers."
        self._turn_away(400, "MalformedHttp", text)

    def _unsupported_upgrade_warning(self) -> None:
        """Do not warn: the request is answered over HTTP although the client asked for another protocol."""

    def _start_timer(self, seconds: float) -> None:
        self._cancel_timer()
        self._timer = self.loop.call_later(seconds, self._too_slow, seconds)

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _too_slow(self, seconds: float) -> None:
        self._turn_away(
            408, "TooSlow", f"The rest of the request did not arrive within {seconds:g} s; send the request again."
        )

    def _turn_away(self, status: int, code: str, sentence: str) -> None:
        """Send an error, unless a response to this request has begun, and close the connection."""
        self._cancel_timer()
        if self.transport.is_closing():
            return
        cycle = cast("RequestResponseCycle | None", self.cycle)
        answered = cycle is not None and cycle.response_started and (self._in_body or not cycle.response_complete)
        if not answered:
            body = encode(ErrorAnswer(Error(code, sentence)))
            head = (
                f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\ncontent-type: application/json\r\n"
                f"content-length: {len(body)}\r\nconnection: close\r\n"
            )
            safe = b"".join(name + b": " + value + b"\r\n" for name, value in SECURITY_HEADERS)
            self.transport.write(head.encode() + safe + b"\r\n" + body)
        self.transport.close()
