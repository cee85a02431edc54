"""Reading what a client sends: never more than it may.

The limit holds while the body comes in, whatever the client said about its length and also if it said nothing
(chunked). A body above the limit is read on for a short while and thrown away, since most clients look for an answer
only when all is sent. That it comes at all is the business of the line it comes over (serving.py).
"""

import asyncio
from collections.abc import Iterable

from gpuyard.input.strict import WrongRequest
from gpuyard.live.control_plane.rest.asgi import Receive

MOST = 1 << 20
MOST_IN_A_BATCH = 64 << 20
_THROW_AWAY_BYTES = 256 << 20
_THROW_AWAY_SECONDS = 5.0


class ClientGone(Exception):
    """The client left before all was sent; there is nobody to answer."""


async def read_body(receive: Receive, headers: Iterable[tuple[bytes, bytes]], most: int = MOST) -> bytes:
    """All of it, or `WrongRequest` with 413 or 415."""
    declared, waits = 0, False
    for name, value in headers:
        if name == b"content-length" and value.isdigit():
            declared = int(value)
        elif name == b"expect":
            waits = True
        elif name == b"content-encoding" and value.lower() != b"identity":
            raise WrongRequest("EncodedBody", "The body is compressed; send plain JSON.", status=415)
    if declared > most:
        if not waits:  # one who asks first has sent nothing yet
            await _throw_away(receive, declared)
        raise _too_large(most)
    chunk, more = await _next(receive)
    if not more:
        if len(chunk) > most:
            raise _too_large(most)
        return chunk
    chunks, size = [chunk], len(chunk)
    while more:
        chunk, more = await _next(receive)
        chunks.append(chunk)
        size += len(chunk)
        if size > most:
            if more:
                chunks.clear()
                await _throw_away(receive, _THROW_AWAY_BYTES)
            raise _too_large(most)
    return b"".join(chunks)


async def _next(receive: Receive) -> tuple[bytes, bool]:
    message = await receive()
    if message["type"] == "http.disconnect":
        raise ClientGone
    return message.get("body", b""), message.get("more_body", False)


async def _throw_away(receive: Receive, size: int) -> None:
    """Read on for as long as is polite."""
    left = min(size, _THROW_AWAY_BYTES)
    try:
        async with asyncio.timeout(_THROW_AWAY_SECONDS):
            more = True
            while more and left > 0:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise ClientGone
                left -= len(message.get("body", b""))
                more = message.get("more_body", False)
    except TimeoutError:
        return


def _too_large(most: int) -> WrongRequest:
    text = f"The body is larger than {most >> 20} MiB, the most that is taken here."
    if most == MOST:
        text += " Many tasks go to POST /api/v1/tasks:batch, and what is long goes into a file."
    return WrongRequest("TooLarge", text, status=413)
