"""A request as handlers see it: Starlette's, with its caller, its parsed query parameters and a limit on its body.

The limit holds while the body arrives, whatever length the client declared, also if it declared none (chunked). A body
above the limit is read on for a short while and discarded, because most clients look for a response only after they
have sent everything. Slow bodies are cut off one layer below (serving.py).
"""

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import Any

import starlette.requests
from starlette.requests import ClientDisconnect
from starlette.types import Receive, Scope

from gpuyard.input.strict import WrongRequest
from gpuyard.live.control_plane.access.principal import Principal
from gpuyard.live.wire.loopback_peer import LoopbackConnection

MAX_BODY_BYTES = 1 << 20
MAX_BATCH_BYTES = 64 << 20
MAX_PROBLEM_BYTES = 8 << 20
_MAX_DISCARDED_BYTES = 256 << 20
_MAX_DISCARD_SECONDS = 5.0


class Request(starlette.requests.Request):
    """One request that has passed the guard."""

    def __init__(
        self,
        scope: Scope,
        receive: Receive,
        *,
        client_address: str,
        authenticated: Principal | None,
        query: Mapping[str, Any],
        request_id: str,
        connection: LoopbackConnection | None = None,
    ) -> None:
        super().__init__(scope, receive)
        self.request_id = request_id
        self.client_address = client_address
        self._connection = connection
        self.authenticated = authenticated
        """The principal that sent it; None only on routes that need no login."""
        self.query = query
        """The query parameters that were given, parsed, by name."""

    @property
    def peer_uid(self) -> int | None:
        """Return the uid of the process at the other end of a loopback connection; None for any other connection."""
        return None if self._connection is None else self._connection.peer_uid

    @property
    def principal(self) -> Principal:
        """Return the principal, on a route that needs a login."""
        assert self.authenticated is not None, "this route needs no login"
        return self.authenticated

    async def body(self, limit: int = MAX_BODY_BYTES) -> bytes:
        """Return the whole body, or raise `WrongRequest` with 413 or 415. It can be read once.

        Most bodies arrive in one message, which is taken without Starlette's stream: it costs 3 µs, a fifth of the way
        of a submission through the server.
        """
        declared, expects = 0, False
        for name, value in self.scope["headers"]:
            if name == b"content-length" and value.isdigit():
                declared = int(value)
            elif name == b"expect":
                expects = True
            elif name == b"content-encoding" and value.lower() != b"identity":
                raise WrongRequest("EncodedBody", "The body is compressed; send plain JSON.", status=415)
        if declared > limit:
            if not expects:  # a client that sends Expect has sent no body yet
                async with aclosing(self.stream()) as stream:
                    await _discard(stream, declared)
            raise _too_large(limit)
        message = await self.receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        first: bytes = message.get("body", b"")
        if message.get("more_body", False):
            return await self._rest_of_body(first, limit)
        if len(first) > limit:
            raise _too_large(limit)
        return first

    async def parts(self, limit: int) -> AsyncGenerator[bytes, None]:
        """Yield the body as it arrives, or raise `WrongRequest` with 413 or 415. It can be read once."""
        declared = self.headers.get("content-length", "")
        if self.headers.get("content-encoding", "identity").lower() != "identity":
            raise WrongRequest("EncodedBody", "The body is compressed; send it as it is.", status=415)
        async with aclosing(self.stream()) as stream:
            if declared.isdigit() and int(declared) > limit:
                if "expect" not in self.headers:
                    await _discard(stream, int(declared))
                raise _too_large(limit)
            size = 0
            async for chunk in stream:
                size += len(chunk)
                if size > limit:
                    await _discard(stream, _MAX_DISCARDED_BYTES)
                    raise _too_large(limit)
                yield chunk

    async def _rest_of_body(self, first: bytes, limit: int) -> bytes:
        chunks, size = [first], len(first)
        async with aclosing(self.stream()) as stream:
            async for chunk in stream:
                chunks.append(chunk)
                size += len(chunk)
                if size > limit:
                    chunks.clear()
                    await _discard(stream, _MAX_DISCARDED_BYTES)
                    raise _too_large(limit)
        return b"".join(chunks)


async def _discard(stream: AsyncGenerator[bytes, None], size: int) -> None:
    left = min(size, _MAX_DISCARDED_BYTES)
    try:
        async with asyncio.timeout(_MAX_DISCARD_SECONDS):
            async for chunk in stream:
                left -= len(chunk)
                if left <= 0:
                    return
    except TimeoutError:
        return


def _too_large(limit: int) -> WrongRequest:
    text = f"The body is larger than {limit >> 20} MiB, the maximum."
    if limit == MAX_BODY_BYTES:
        text += " Use POST /api/v1/tasks:batch for many tasks, and put long content in a file."
    return WrongRequest("TooLarge", text, status=413)
