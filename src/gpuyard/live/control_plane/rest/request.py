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
from starlette.types import Receive, Scope

from gpuyard.input.strict import WrongRequest
from gpuyard.live.control_plane.access.principal import Principal

MAX_BODY_BYTES = 1 << 20
MAX_BATCH_BYTES = 64 << 20
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
    ) -> None:
        super().__init__(scope, receive)
        self.request_id = request_id
        self.client_address = client_address
        self.authenticated = authenticated
        """Who sent it; None only on routes that need no login."""
        self.query = query
        """The query parameters that were given, parsed, by name."""

    @property
    def principal(self) -> Principal:
        """Who sent it, on a route that needs a login."""
        assert self.authenticated is not None, "this route needs no login"
        return self.authenticated

    async def body(self, limit: int = MAX_BODY_BYTES) -> bytes:
        """Return the whole body, or raise `WrongRequest` with 413 or 415. It can be read once."""
        headers = self.headers
        if headers.get("content-encoding", "identity").lower() != "identity":
            raise WrongRequest("EncodedBody", "The body is compressed; send plain JSON.", status=415)
        length = headers.get("content-length", "")
        declared = int(length) if length.isascii() and length.isdigit() else 0
        async with aclosing(self.stream()) as stream:
            if declared > limit:
                if "expect" not in headers:  # a client that sends Expect has sent no body yet
                    await _discard(stream, declared)
                raise _too_large(limit)
            chunks, size = list[bytes](), 0
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
    text = f"The body is larger than {limit >> 20} MiB, the most that is taken here."
    if limit == MAX_BODY_BYTES:
        text += " Many tasks go to POST /api/v1/tasks:batch, and what is long goes into a file."
    return WrongRequest("TooLarge", text, status=413)
