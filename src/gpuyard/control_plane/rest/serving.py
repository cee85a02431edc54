"""How the application is served: uvicorn with uvloop and httptools, and what it does not do by itself.

uvicorn trusts its clients with two things that we do not: to send a request at all once they have connected, and to come
to an end with the headers. Both are bounded here. What can not be read as HTTP gets our one shape of errors, too.
"""

import asyncio
import ssl
from collections.abc import Callable
from typing import Any

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from gpuyard.control_plane.rest.answer import encode
from gpuyard.control_plane.rest.asgi import ASGIApp
from gpuyard.wire.answers import Error, ErrorAnswer

MOST_HEADER_BYTES = 64 << 10
IDLE_SECONDS = 30.0
"""Between two requests over one connection, and for the headers of one."""
GOODBYE_SECONDS = 3
"""For answers that are on their way when the server stops; event streams and followed logs end then."""


def http_server(
    app: ASGIApp, *, tls: ssl.SSLContext | None = None, most_idle_seconds: float = IDLE_SECONDS
) -> uvicorn.Server:
    """A server for sockets that are bound already: `await server.serve(sockets)`, in the loop of the engine."""
    config = uvicorn.Config(
        app,
        loop="uvloop",
        http=_line(most_idle_seconds),
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        date_header=False,
        timeout_keep_alive=max(1, round(most_idle_seconds)),
        timeout_graceful_shutdown=GOODBYE_SECONDS,
        backlog=2048,
    )
    config.load()
    config.ssl = tls
    return _Server(config)


class _Server(uvicorn.Server):
    """Signals belong to whoever assembles the scheduler, not to one of its parts."""

    def capture_signals(self) -> Any:  # type: ignore[override]
        return _nothing()


from contextlib import nullcontext as _nothing  # noqa: E402


def _line(most_idle_seconds: float) -> type[asyncio.Protocol]:
    class Line(_Line):
        idle_seconds = most_idle_seconds

    return Line


class _Line(HttpToolsProtocol):
    """One connection."""

    idle_seconds = IDLE_SECONDS
    _waiting: asyncio.TimerHandle | None = None
    _header_bytes = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        self._came()
        super().connection_lost(exc)

    def _wait(self) -> None:
        self._waiting = self.loop.call_later(self.idle_seconds, self._too_slow)

    def _came(self) -> None:
        if self._waiting is not None:
            self._waiting.cancel()
            self._waiting = None

    def _too_slow(self) -> None:
        self._say(408, "TooSlow", f"No whole request came for {self.idle_seconds:.0f} s; connect again.")
