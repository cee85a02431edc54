"""How the application is served: uvicorn with uvloop and httptools, and what it does not do by itself.

uvicorn trusts its clients with three things that we do not: to send a request at all once they have connected, to come
to an end with its headers, and to go on with its body. All are bounded here: a client that owes us something and sends
nothing of it for a while is turned away. What can not be read as HTTP gets our one shape of errors, too.
"""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus
from typing import cast

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from gpuyard.control_plane.rest.answer import encode
from gpuyard.control_plane.rest.asgi import HANG_UP, ASGIApp
from gpuyard.control_plane.settings import Tls
from gpuyard.wire.answers import Error, ErrorAnswer

MOST_HEADER_BYTES = 64 << 10
IDLE_SECONDS = 60.0
"""Between two requests over one connection, for the headers of one, and without any progress of its body."""
GOODBYE_SECONDS = 3
"""For answers that are on their way when the server stops; event streams and followed logs end then."""


def http_server(app: ASGIApp, *, tls: Tls | None = None, idle_seconds: float = IDLE_SECONDS) -> uvicorn.Server:
    """A server for sockets that are bound already: `await server.serve(sockets)`, in the loop of the engine."""

    class Line(_Line):
        """A connection that may be idle for so long."""

        most_idle_seconds = idle_seconds

    config = uvicorn.Config(
        app,
        http=Line,
        ws="none",
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
    """Signals belong to whoever puts the scheduler together, not to one of its parts."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class _Line(HttpToolsProtocol):
    """One connection. Its patience is limited while the client has something to send; then a timer runs."""

    most_idle_seconds = IDLE_SECONDS
    _in_headers = False
    _in_body = False
    _header_bytes = 0
    _patience: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._expect()

    def connection_lost(self, exc: Exception | None) -> None:
        self._be_calm()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._in_headers:
            self._header_bytes += len(data)
            if self._header_bytes > MOST_HEADER_BYTES:
                text = f"The headers are larger than {MOST_HEADER_BYTES >> 10} KiB, the most that is taken here."
                self._turn_away(431, "HeadersTooLarge", text)
            elif self._patience is None:  # it is for all of them: one byte now and then is not enough
                self._expect()
        elif self._in_body:
            self._expect()
        else:
            self._be_calm()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.scope["extensions"] = {HANG_UP: self.transport.abort}  # type: ignore[dict-item]  # a function, and ours
        self._in_headers, self._header_bytes = True, 0

    def on_headers_complete(self) -> None:
        self._in_headers, self._in_body = False, True
        self._be_calm()
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._in_body = False
        super().on_message_complete()

    def send_400_response(self, msg: str) -> None:  # noqa: ARG002 - ours says more
        text = "This is not HTTP as it can be read here; check the request line and the headers."
        self._turn_away(400, "MalformedHttp", text)

    def _unsupported_upgrade_warning(self) -> None:
        """A client asks for another protocol; it is answered in this one, which needs no words."""

    def _expect(self) -> None:
        self._be_calm()
        self._patience = self.loop.call_later(self.most_idle_seconds, self._too_slow)

    def _be_calm(self) -> None:
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None

    def _too_slow(self) -> None:
        seconds = f"{self.most_idle_seconds:g} s"
        self._turn_away(
            408, "TooSlow", f"The rest of the request did not come within {seconds}; send it again, faster."
        )

    def _turn_away(self, status: int, code: str, sentence: str) -> None:
        """Say why, if nothing else is being said or was said to the same request, and hang up."""
        self._be_calm()
        if self.transport.is_closing():
            return
        cycle = cast("RequestResponseCycle | None", self.cycle)
        answered = cycle is not None and cycle.response_started and (self._in_body or not cycle.response_complete)
        if not answered:
            body = encode(ErrorAnswer(Error(code, sentence)))
            head = (
                f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\ncontent-type: application/json\r\n"
                f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
            )
            self.transport.write(head.encode() + body)
        self.transport.close()
