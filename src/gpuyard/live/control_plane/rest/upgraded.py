"""The answer to a request that becomes a WebSocket: messages are passed on between the client and a channel of a node."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

import structlog
from starlette.types import Receive, Scope, Send
from uvicorn.protocols.utils import ClientDisconnected

from gpuyard.live.control_plane.rest.responses import ACCESS_CHECK_SECONDS, Response
from gpuyard.live.wire import agents_pb2 as pb

if TYPE_CHECKING:
    from gpuyard.live.control_plane.nodes.channels import TaskChannel

GOING_AWAY, LOST_ACCESS, DONE = 1012, 4001, 1000

log = structlog.get_logger()


class UpgradedResponse(Response):
    """A channel as a WebSocket. Each binary message is one frame; of a port, an empty one ends its direction."""

    def __init__(self, channel: "TaskChannel", subprotocol: str, *, plain: bool = False) -> None:
        """`plain`: messages are bytes of a connection instead of frames."""
        super().__init__(b"", 101)
        self.channel = channel
        self._subprotocol = subprotocol
        self._plain = plain
        self.has_access: Callable[[], bool] = lambda: True
        """Whether the client may still use it."""
        self.closed: Callable[[], None] = lambda: None
        """Called when it has ended, for whatever reason."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002
        """Carry the channel until either side ends it or the client loses access."""
        try:
            await receive()  # websocket.connect
            headers = [(name, value) for name, value in self.raw_headers if name != b"content-length"]
            await send({"type": "websocket.accept", "subprotocol": self._subprotocol, "headers": headers})
            code = await self._carry(receive, send)
            await send({"type": "websocket.close", "code": code})
        except (ClientDisconnected, RuntimeError):
            return  # it has closed the connection itself
        finally:
            self.channel.close()
            self.closed()

    async def _carry(self, receive: Receive, send: Send) -> int:
        inward = asyncio.create_task(self._to_node(receive))
        outward = asyncio.create_task(self._to_client(send))
        access = asyncio.create_task(self._wait_until_access_is_lost())
        try:
            await asyncio.wait((inward, outward, access), return_when=asyncio.FIRST_COMPLETED)
            if access.done():
                return LOST_ACCESS
            for task in (inward, outward):
                if task.done():
                    task.result()
            return DONE if outward.done() else GOING_AWAY
        finally:
            for task in (inward, outward, access):
                task.cancel()
                with suppress(BaseException):
                    await task

    async def _to_node(self, receive: Receive) -> None:
        while (message := await receive())["type"] == "websocket.receive":
            data = message.get("bytes")
            if data is None:
                return  # text is no frame
            end = self._plain and not data
            await self.channel.write(pb.ChannelFrame(frame=data, end=end))

    async def _to_client(self, send: Send) -> None:
        while (frame := await self.channel.read()) is not None:
            if frame.frame or frame.end:
                await send({"type": "websocket.send", "bytes": frame.frame})

    async def _wait_until_access_is_lost(self) -> None:
        while self.has_access():
            await asyncio.sleep(ACCESS_CHECK_SECONDS)
