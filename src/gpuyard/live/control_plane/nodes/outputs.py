"""Output of attempts, streamed from nodes to readers.

The agent opens a stream for each reader, separate from the stream of commands, so that a slow reader delays only
itself: a few chunks are buffered here, then the stream waits.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping
from secrets import token_hex
from typing import Any

import grpc

from gpuyard.core.domain.errors import GpuyardError
from gpuyard.core.domain.values import AttemptRef, NodeId
from gpuyard.live.control_plane.nodes.launches import about
from gpuyard.live.control_plane.nodes.sessions import AgentSession
from gpuyard.live.wire import agents_pb2 as pb

CHUNKS_AHEAD = 16
CHECK_SECONDS = 1.0
"""Interval of the check that the other side is still connected."""


class NoOutput(GpuyardError):
    """There is no such output any more."""


class NodeUnreachable(GpuyardError):
    """The node is not connected at the moment. Try again when it is back."""


class Outputs:
    """All streams of output."""

    def __init__(self, sessions: Mapping[NodeId, AgentSession]) -> None:
        self._sessions = sessions
        self._logs: dict[str, asyncio.Queue[pb.LogChunk | None]] = {}

    async def read(
        self, node: NodeId, ref: AttemptRef, *, offset: int, limit: int, follow: bool
    ) -> AsyncIterator[bytes]:
        """Yield the output of an attempt as its node sends it."""
        session = self._sessions.get(node)
        if session is None or not session.connected:
            raise NodeUnreachable(f"Node {node}, which has the output of task-{ref.task}, is not connected.")
        request = token_hex(8)
        chunks = self._logs[request] = asyncio.Queue(CHUNKS_AHEAD)
        asked = pb.SendLog(request=request, offset=offset, limit=limit, follow=follow)
        session.send([about(ref, send_log=asked)])
        try:
            while (chunk := await self._next_chunk(chunks, session)) is not None:
                if chunk.error:
                    raise NoOutput(chunk.error)
                yield chunk.data
        finally:
            del self._logs[request]

    async def _next_chunk(
        self, chunks: "asyncio.Queue[pb.LogChunk | None]", session: AgentSession
    ) -> pb.LogChunk | None:
        while True:
            try:
                async with asyncio.timeout(CHECK_SECONDS):
                    return await chunks.get()
            except TimeoutError:
                if session.closed:
                    raise NodeUnreachable(f"Node {session.node} is no longer connected.") from None

    async def send_log(self, chunks: AsyncIterator[pb.LogChunk], context: Any) -> pb.LogReceipt:
        """Receive output that a reader asked for; the stream waits while the reader is slow."""
        queue: asyncio.Queue[pb.LogChunk | None] | None = None
        request = ""
        try:
            async for chunk in chunks:
                request = chunk.request
                queue = self._logs.get(request)
                if queue is None:
                    await context.abort(grpc.StatusCode.CANCELLED, "The client no longer reads this output.")
                    return pb.LogReceipt()
                await self._hand_over(queue, chunk, request)
        finally:
            if queue is not None and request in self._logs:
                await self._hand_over(queue, None, request)
        return pb.LogReceipt()

    async def _hand_over(
        self, queue: "asyncio.Queue[pb.LogChunk | None]", chunk: pb.LogChunk | None, request: str
    ) -> None:
        while request in self._logs:
            try:
                async with asyncio.timeout(CHECK_SECONDS):
                    await queue.put(chunk)
                    return
            except TimeoutError:
                continue  # the reader is slow; if it is gone, the loop ends
