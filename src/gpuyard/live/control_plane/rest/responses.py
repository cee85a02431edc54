"""Responses: Starlette's, with the headers that all responses here carry, and with JSON from msgspec.

A stream ends when there is no more to send or the client has disconnected. It is aborted when sending fails or when the
reader has lost access, so that a partial response is never taken for a complete one.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from contextlib import suppress

import msgspec
import starlette.responses
from starlette.types import Receive, Scope, Send

from gpuyard.live.control_plane.time_slices import TimeSlicer

TEXT = "text/plain; charset=utf-8"
HTML = "text/html; charset=utf-8"

HANG_UP = "gpuyard.hang_up"
"""Among the extensions of an ASGI scope: a function that aborts the connection (serving.py provides it)."""

ENDLESS = "gpuyard.endless"
"""Among the extensions of an ASGI scope: the response may send nothing for hours, so the client must stay connected."""
CLIENT_ENDED = "gpuyard.client_ended"
"""Among the extensions of an ASGI scope: the client has ended its side of the connection, or has left."""

CHUNK_BYTES = 256 * 1024
ACCESS_CHECK_SECONDS = 1.0
"""Interval of the check that the reader of a stream still has access."""
SECURITY_HEADERS = [
    (b"x-content-type-options", b"nosniff"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"referrer-policy", b"no-referrer"),
]
"""Of every answer, errors included: browsers must not guess its type, show it to other pages, or tell its address."""
_ALWAYS = [(b"cache-control", b"no-store"), *SECURITY_HEADERS]
"""Responses hold tenants' data: caches must not keep them."""

encode = msgspec.json.Encoder().encode


class Response(starlette.responses.Response):
    """A complete response; JSON unless another media type is given."""

    media_type = "application/json"

    def init_headers(self, headers: Mapping[str, str] | None = None) -> None:
        """Add the headers that every response carries."""
        super().init_headers(headers)
        self.raw_headers += _ALWAYS


class LargeResponse(Response):
    """A complete response in many parts, sent chunk by chunk so that a large one does not block the event loop."""

    def __init__(self, parts: list[bytes], status_code: int = 200, media_type: str | None = None) -> None:
        super().__init__(None, status_code, {"content-length": str(sum(map(len, parts)))}, media_type)
        self.parts = parts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002
        """Send the response."""
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        parts, size = list[bytes](), 0
        for part in self.parts:
            parts.append(part)
            size += len(part)
            if size >= CHUNK_BYTES:
                await send({"type": "http.response.body", "body": b"".join(parts), "more_body": True})
                await asyncio.sleep(0)
                parts, size = [], 0
        await send({"type": "http.response.body", "body": b"".join(parts)})


class AccessLost(Exception):
    """The reader of a stream has lost access to it."""


class ClientEnded(Exception):
    """The client has ended its side of the connection before a response that waits for its client."""


class StreamingResponse(Response, starlette.responses.StreamingResponse):
    """A response of unknown length, sent as fast as the client reads.

    Starlette runs the sender in a cancel scope, which cancels every `await` of a generator's clean-up again. The
    generators here must tell agents and the journal that the reader is gone, so plain tasks are used instead.
    """

    body_iterator: AsyncGenerator[bytes, None]

    def __init__(self, chunks: AsyncGenerator[bytes, None], headers: Mapping[str, str], *, endless: bool) -> None:
        starlette.responses.StreamingResponse.__init__(self, chunks, headers=headers)
        self.endless = endless
        """Whether it waits for what has not happened yet. A client that ends its side of the connection ends it then,
        because it may have left: this is noticed only when something is sent."""
        self.has_access: Callable[[], bool] = lambda: True
        """Whether the reader may still read it."""
        self.closed: Callable[[], None] = lambda: None
        """Called when it has ended, for whatever reason."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send it until it ends or the client disconnects. Failures are raised, as are `AccessLost` and `ClientEnded`."""
        if self.endless:
            scope["extensions"][ENDLESS] = True
        if scope["method"] == "HEAD":
            await self.body_iterator.aclose()
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            await send({"type": "http.response.body", "body": b""})
            return
        if self.endless and CLIENT_ENDED in scope["extensions"]:
            await self.body_iterator.aclose()
            raise ClientEnded
        sending = asyncio.create_task(self.stream_response(send))
        leaving = asyncio.create_task(self.listen_for_disconnect(receive))
        losing_access = asyncio.create_task(self._wait_until_access_is_lost())
        try:
            await asyncio.wait((sending, leaving, losing_access), return_when=asyncio.FIRST_COMPLETED)
            if sending.done():
                sending.result()
            elif losing_access.done():
                raise AccessLost
        finally:
            for task in (sending, leaving, losing_access):
                task.cancel()
                with suppress(BaseException):
                    await task
            await self.body_iterator.aclose()

    async def _wait_until_access_is_lost(self) -> None:
        while self.has_access():
            await asyncio.sleep(ACCESS_CHECK_SECONDS)


def json_response(value: object, status_code: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """Encode a value as JSON."""
    return Response(encode(value), status_code, headers)


async def encoded(values: Iterable[object]) -> list[bytes]:
    """Encode each value as JSON. Work is done in slices, so that a long list does not block the event loop."""
    answers, turns = list[bytes](), TimeSlicer()
    for value in values:
        answers.append(encode(value))
        if turns.due():
            await turns.give()
    return answers


def separated(answers: Sequence[bytes]) -> list[bytes]:
    """Put commas between the items of a JSON list."""
    return [part for answer in answers for part in (b",", answer)][1:]
