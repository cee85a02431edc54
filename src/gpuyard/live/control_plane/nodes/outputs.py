"""Output of attempts, streamed from nodes to readers.

    reader ─► SendLog ─► session ─► agent        the agent opens a stream for each reader and names the request
    reader ◄─ one chunk ◄─ SendLog stream ◄─┘    as metadata, so that it can be ended before it has sent anything

Each reader has a stream of its own, separate from the stream of commands, so that a slow reader delays only itself. One
chunk is buffered here; then the stream waits, and gRPC's window (`WINDOW_BYTES`) bounds what the agent sends. When a
reader leaves, its stream is aborted, and the agent stops reading the file.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import suppress
from secrets import token_hex
from typing import Any, NamedTuple

import grpc

from gpuyard.core.domain.errors import GpuyardError
from gpuyard.core.domain.values import AttemptRef, NodeId
from gpuyard.live.control_plane.nodes.launches import attempt_command
from gpuyard.live.control_plane.nodes.sessions import AgentSession
from gpuyard.live.wire import agents_pb2 as pb
from gpuyard.live.wire.rpc import LOG_REQUEST

MOST_READERS = 500
"""A reader that does not read takes about 0.8 MB. An agent may open 1,024 streams, one of which is its session."""
WINDOW_BYTES = 128 * 1024
"""What an agent may send on one stream before it is read. gRPC would raise it to many MiB on a fast network."""
SEARCH_SECONDS = 30.0
"""Time for a search. The node looks for two seconds at most, but only at two outputs at a time."""
CHECK_SECONDS = 1.0
"""Interval of the check that the node is still connected."""


class NoOutput(GpuyardError):
    """There is no such output any more."""


class NodeUnreachable(GpuyardError):
    """The node is not connected at the moment. Try again when it is back."""


class TooManyReaders(GpuyardError):
    """Too many outputs are read at the moment."""


class OutputPeriod(NamedTuple):
    """When the wanted part of an output was written, in seconds since 1970, and whether each line begins with its time."""

    since: float | None = None
    until: float | None = None
    timestamps: bool = False


EVERYTHING = OutputPeriod()


def _too_old(node: NodeId) -> NodeUnreachable:
    return NodeUnreachable(
        f"The agent of node {node} does not know when output was written: it is older than the scheduler."
    )


class _Reader:
    """One reader: the next chunk of its output, whether it has left, and whether the node has."""

    def __init__(self) -> None:
        self.chunks: asyncio.Queue[pb.LogChunk | None] = asyncio.Queue(1)
        self.left = asyncio.Event()
        self.broken = False


class Outputs:
    """All streams of output."""

    def __init__(self, sessions: Mapping[NodeId, AgentSession]) -> None:
        self._sessions = sessions
        self._readers: dict[str, _Reader] = {}

    @property
    def count(self) -> int:
        """The number of readers."""
        return len(self._readers)

    async def read(
        self, node: NodeId, ref: AttemptRef, *, offset: int, limit: int, follow: bool, times: OutputPeriod
    ) -> AsyncGenerator[bytes, None]:
        """Yield the output of an attempt as its node sends it. Close the iterator to end the stream."""
        session = self._session(node, ref)
        request, reader = token_hex(8), _Reader()
        self._readers[request] = reader
        asked = pb.SendLog(
            request=request, offset=offset, limit=limit, follow=follow,
            since=times.since, until=times.until, timestamps=times.timestamps,
        )  # fmt: skip
        session.send([attempt_command(ref, send_log=asked)])
        try:
            while (chunk := await self._next_chunk(reader, session)) is not None:
                if chunk.error:
                    raise NoOutput(chunk.error)
                if times != EVERYTHING and not chunk.timed:
                    raise _too_old(node)
                if chunk.data:
                    yield chunk.data
        finally:
            del self._readers[request]
            reader.left.set()

    async def search(
        self, node: NodeId, ref: AttemptRef, *, offset: int, wanted: pb.LogSearch, since: float | None = None
    ) -> pb.LogMatches:
        """Have the node search the output of an attempt."""
        session = self._session(node, ref)
        request, reader = token_hex(8), _Reader()
        self._readers[request] = reader
        asked = pb.SendLog(request=request, offset=offset, search=wanted, since=since)
        session.send([attempt_command(ref, send_log=asked)])
        try:
            async with asyncio.timeout(SEARCH_SECONDS):
                chunk = await self._next_chunk(reader, session)
        except TimeoutError:
            raise NodeUnreachable(f"Node {node} did not answer in {SEARCH_SECONDS:g} s; try again later.") from None
        finally:
            del self._readers[request]
            reader.left.set()
        if chunk is not None and chunk.error:
            raise NoOutput(chunk.error)
        if chunk is None:
            sentence = (
                f"Node {node} ended the search without an answer; try again, or ask for fewer lines and less context."
            )
            raise NodeUnreachable(sentence)
        if not chunk.HasField("found"):
            raise NodeUnreachable(f"The agent of node {node} cannot search: it is older than the scheduler.")
        if since is not None and not chunk.timed:
            raise _too_old(node)
        return chunk.found

    async def run_command(self, node: NodeId, ref: AttemptRef, wanted: pb.RunCommand) -> str:
        """Have the node run a command as the user of an attempt; return why it failed, or nothing."""
        session = self._session(node, ref)
        wanted.request, reader = token_hex(8), _Reader()
        self._readers[wanted.request] = reader
        session.send([attempt_command(ref, run_command=wanted)])
        try:
            async with asyncio.timeout(wanted.timeout_seconds + SEARCH_SECONDS):
                chunk = await self._next_chunk(reader, session)
        except TimeoutError:
            raise NodeUnreachable(f"Node {node} did not answer in time; its agent may be older.") from None
        finally:
            del self._readers[wanted.request]
            reader.left.set()
        if chunk is None or not chunk.HasField("ran"):
            raise NodeUnreachable(f"Node {node} did not say how the command ended.")
        return chunk.ran.failed

    def _session(self, node: NodeId, ref: AttemptRef) -> AgentSession:
        session = self._sessions.get(node)
        if session is None or not session.connected:
            raise NodeUnreachable(f"Node {node}, on which task-{ref.task} ran, is not connected.")
        if self.count >= MOST_READERS:
            raise TooManyReaders(f"{MOST_READERS:,} outputs are read at the moment; try again later.")
        return session

    async def _next_chunk(self, reader: _Reader, session: AgentSession) -> pb.LogChunk | None:
        while True:
            try:
                async with asyncio.timeout(CHECK_SECONDS):
                    return await reader.chunks.get()
            except TimeoutError:
                if session.closed or reader.broken:
                    raise NodeUnreachable(f"Node {session.node} is no longer connected.") from None

    async def send_log(self, chunks: AsyncIterator[pb.LogChunk], context: Any) -> pb.LogReceipt:
        """Receive output that a reader asked for; the stream waits while the reader is slow, and ends when it leaves."""
        reader = self._readers.get(dict(context.invocation_metadata()).get(LOG_REQUEST, ""))
        if reader is not None:
            passing = asyncio.create_task(_pass_on(chunks, reader))
            leaving = asyncio.create_task(reader.left.wait())
            try:
                await asyncio.wait((passing, leaving), return_when=asyncio.FIRST_COMPLETED)
                if passing.done():
                    return pb.LogReceipt()
            finally:
                reader.broken = not passing.done()
                for task in (passing, leaving):
                    task.cancel()
                await asyncio.wait((passing, leaving))
        await context.abort(grpc.StatusCode.CANCELLED, "The client no longer reads this output.")
        return pb.LogReceipt()


async def _pass_on(chunks: AsyncIterator[pb.LogChunk], reader: _Reader) -> None:
    """Pass chunks to a reader, and the end of the stream, however it ends."""
    with suppress(grpc.RpcError):
        async for chunk in chunks:
            await reader.chunks.put(chunk)
    await reader.chunks.put(None)
