"""What goes back: a whole answer with its length, or a flow of bytes.

A flow ends when there is no more or nobody reads. It is broken off when something goes wrong on the way, or when whoever
reads it may not any more: nobody is to take a part for the whole.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from contextlib import suppress

import msgspec

from gpuyard.live.control_plane.rest.asgi import Headers, Receive, Send
from gpuyard.live.control_plane.time_slices import Turns

JSON = b"application/json"
TEXT = b"text/plain; charset=utf-8"
HTML = b"text/html; charset=utf-8"
EVENTS = b"text/event-stream"

PIECE_BYTES = 256 * 1024
WELCOME_SECONDS = 1.0
"""How often it is seen whether the reader of a flow may still read it."""
_ALWAYS: Headers = ((b"cache-control", b"no-store"), (b"x-content-type-options", b"nosniff"))
"""Answers hold what a tenant owns: no cache keeps them, and no browser guesses what they are."""

encode = msgspec.json.Encoder().encode


class Answer:
    """All of it at once."""

    __slots__ = ("body", "headers", "kind", "status")

    def __init__(self, status: int, body: bytes, kind: bytes = JSON, headers: Headers = ()) -> None:
        self.status = status
        self.body = body
        self.kind = kind
        self.headers = headers

    async def send(self, send: Send) -> None:
        """Say it."""
        length = b"%d" % len(self.body)
        headers = [(b"content-type", self.kind), (b"content-length", length), *_ALWAYS, *self.headers]
        await send({"type": "http.response.start", "status": self.status, "headers": headers})
        await send({"type": "http.response.body", "body": self.body})


class LongAnswer(Answer):
    """A whole answer in many parts: it is sent piece by piece, so that a large one does not hold the event loop."""

    __slots__ = ("parts",)

    def __init__(self, status: int, parts: list[bytes], kind: bytes = JSON, headers: Headers = ()) -> None:
        super().__init__(status, b"", kind, headers)
        self.parts = parts

    async def send(self, send: Send) -> None:
        """Say it."""
        length = b"%d" % sum(map(len, self.parts))
        headers = [(b"content-type", self.kind), (b"content-length", length), *_ALWAYS, *self.headers]
        await send({"type": "http.response.start", "status": self.status, "headers": headers})
        parts, size = list[bytes](), 0
        for part in self.parts:
            parts.append(part)
            size += len(part)
            if size >= PIECE_BYTES:
                await send({"type": "http.response.body", "body": b"".join(parts), "more_body": True})
                await asyncio.sleep(0)
                parts, size = [], 0
        await send({"type": "http.response.body", "body": b"".join(parts)})


class Unwelcome(Exception):
    """Whoever reads a flow may not any more."""


class Flow:
    """Bit by bit, as fast as the other side reads."""

    __slots__ = ("chunks", "headers", "is_welcome", "kind")

    def __init__(self, chunks: AsyncGenerator[bytes, None], kind: bytes, headers: Headers = ()) -> None:
        self.chunks = chunks
        self.kind = kind
        self.headers = headers
        self.is_welcome: Callable[[], bool] = lambda: True
        """Whether its reader may still read it."""

    async def send(self, receive: Receive, send: Send, *, head_only: bool = False) -> None:
        """Say it until it ends or the client goes. What goes wrong on the way is raised, as is `Unwelcome`."""
        headers = [(b"content-type", self.kind), *_ALWAYS, *self.headers]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        if head_only:
            await self.chunks.aclose()
            await send({"type": "http.response.body", "body": b""})
            return
        saying = asyncio.create_task(self._say(send))
        leaving = asyncio.create_task(gone(receive))
        falling = asyncio.create_task(self._out_of_favour())
        try:
            await asyncio.wait((saying, leaving, falling), return_when=asyncio.FIRST_COMPLETED)
            if saying.done():
                saying.result()
            elif falling.done():
                raise Unwelcome
        finally:
            for task in (saying, leaving, falling):
                task.cancel()
                with suppress(BaseException):
                    await task

    async def _say(self, send: Send) -> None:
        try:
            async for chunk in self.chunks:
                if chunk:
                    await send({"type": "http.response.body", "body": chunk, "more_body": True})
        finally:
            await self.chunks.aclose()
        await send({"type": "http.response.body", "body": b""})

    async def _out_of_favour(self) -> None:
        while self.is_welcome():
            await asyncio.sleep(WELCOME_SECONDS)


def say(value: object, status: int = 200, headers: Headers = ()) -> Answer:
    """An answer in JSON."""
    return Answer(status, encode(value), JSON, headers)


async def encoded(values: Iterable[object]) -> list[bytes]:
    """Each value in JSON. The values are computed and encoded in slices, so a long list does not hold the event loop."""
    answers, turns = list[bytes](), Turns()
    for value in values:
        answers.append(encode(value))
        if turns.due():
            await turns.give()
    return answers


def separated(answers: Sequence[bytes]) -> list[bytes]:
    """As the items of a JSON list."""
    return [part for answer in answers for part in (b",", answer)][1:]


async def gone(receive: Receive) -> None:
    """Wait until the client is not there any more."""
    while (await receive())["type"] != "http.disconnect":
        continue
