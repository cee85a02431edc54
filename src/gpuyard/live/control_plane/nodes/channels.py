"""Channels between clients and attempts: each is one WebSocket here and one stream of the agent.

    client ─► OpenChannel ─► session ─► agent       the agent opens the stream and names the request as metadata
    client ◄─ frames ─► Channel stream ◄─► agent    passed on unread, one at a time in each direction

A stream of its own for each channel: a slow client delays only itself, and its end ends nothing else.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from secrets import token_hex
from typing import Any

import grpc

from gpuyard.core.domain.errors import GpuyardError
from gpuyard.core.domain.values import AttemptRef, NodeId
from gpuyard.live.control_plane.nodes.launches import attempt_command
from gpuyard.live.control_plane.nodes.outputs import CHECK_SECONDS, NodeUnreachable
from gpuyard.live.control_plane.nodes.sessions import AgentSession
from gpuyard.live.wire import agents_pb2 as pb
from gpuyard.live.wire.rpc import CHANNEL_REQUEST

MOST_CHANNELS = 500
"""An agent may open 1,024 streams, and shares them with readers of output."""
MOST_OF_ONE_USER = 125
"""One user leaves channels to others."""
OPEN_SECONDS = 20.0
"""Time for a node to open a channel: its supervisor may have to start a process."""


class ChannelNotOpened(GpuyardError):
    """The node has opened no channel to the task; its sentence says why."""

    def __init__(self, code: str, sentence: str) -> None:
        super().__init__(sentence)
        self._code = code

    @property
    def code(self) -> str:
        """The reason, for programs."""
        return self._code


class TooManyChannels(GpuyardError):
    """Too many terminals and ports are in use at the moment."""


class TaskChannel:
    """One channel, from the side of the scheduler."""

    def __init__(self, session: AgentSession, user: str) -> None:
        self._session = session
        self.user = user
        self._from_node: asyncio.Queue[pb.ChannelFrame] = asyncio.Queue(1)
        self._to_node: asyncio.Queue[pb.ChannelFrame] = asyncio.Queue(1)
        self._over = asyncio.Event()
        self.bytes_read = 0
        self.bytes_written = 0

    @property
    def is_over(self) -> bool:
        """Whether either side has ended it."""
        return self._over.is_set()

    def close(self) -> None:
        """End it."""
        self._over.set()

    async def read(self) -> pb.ChannelFrame | None:
        """Return the next frame of the node; None: the channel has ended."""
        found: pb.ChannelFrame | None = await self._unless_over(self._from_node.get())
        if found is None and not self._from_node.empty():
            found = self._from_node.get_nowait()
        if found is not None:
            self.bytes_read += len(found.frame)
        return found

    async def write(self, frame: pb.ChannelFrame) -> None:
        """Send a frame to the node. Wait while it does not read."""
        self.bytes_written += len(frame.frame)
        await self._unless_over(self._to_node.put(frame))

    async def _unless_over(self, work: Any) -> Any:
        """Await something, unless the channel ends before; then return None."""
        doing, ending = asyncio.ensure_future(work), asyncio.ensure_future(self._over.wait())
        try:
            while not doing.done() and not ending.done():
                await asyncio.wait((doing, ending), timeout=CHECK_SECONDS, return_when=asyncio.FIRST_COMPLETED)
                if self._session.closed:
                    self._over.set()
            return doing.result() if doing.done() else None
        finally:
            doing.cancel()
            ending.cancel()

    async def carry(self, frames: AsyncIterator[pb.ChannelFrame]) -> AsyncIterator[pb.ChannelFrame]:
        """Yield the frames for the node, and take those from it."""
        taking = asyncio.create_task(self._take(frames))
        try:
            while (frame := await self._unless_over(self._to_node.get())) is not None:
                yield frame
        finally:
            self._over.set()
            taking.cancel()
            with suppress(asyncio.CancelledError):
                await taking

    async def _take(self, frames: AsyncIterator[pb.ChannelFrame]) -> None:
        with suppress(grpc.RpcError):
            async for frame in frames:
                await self._from_node.put(frame)
        while not self._from_node.empty() and not self._over.is_set():  # the last one is read before the end
            await asyncio.sleep(0.005)
        self._over.set()


class Channels:
    """All channels."""

    def __init__(self, sessions: Mapping[NodeId, AgentSession]) -> None:
        self._sessions = sessions
        self._waiting: dict[str, TaskChannel] = {}
        self._open: set[TaskChannel] = set()

    @property
    def count(self) -> int:
        """The number of channels."""
        return len(self._open)

    async def open(
        self, node: NodeId, ref: AttemptRef, asked: pb.OpenChannel, user: str = ""
    ) -> tuple[TaskChannel, pb.ChannelFrame]:
        """Have a node open a channel for a user; return it with its first frame. Close it in the end."""
        session = self._sessions.get(node)
        if session is None or not session.connected:
            raise NodeUnreachable(f"Node {node}, where task-{ref.task} runs, is not connected.")
        if not session.has_channels:
            raise ChannelNotOpened(
                "AgentTooOld",
                f"The agent of node {node} has version {session.version or 'unknown'}, which has no terminals and ports. "
                "Update gpuyard there.",
            )
        if self.count >= MOST_CHANNELS:
            raise TooManyChannels(f"{MOST_CHANNELS} terminals and ports are in use at the moment; try again later.")
        if sum(channel.user == user for channel in self._open) >= MOST_OF_ONE_USER:
            raise TooManyChannels(
                f"{user} has {MOST_OF_ONE_USER} terminals and ports in use, the maximum for one user. Close some first."
            )
        asked.request = token_hex(8)
        channel = self._waiting[asked.request] = TaskChannel(session, user)
        self._open.add(channel)
        try:
            session.send([attempt_command(ref, open_channel=asked)])
            async with asyncio.timeout(OPEN_SECONDS):
                first = await channel.read()
            if first is None:
                raise NodeUnreachable(f"Node {node} is no longer connected.")
            if first.error:
                raise ChannelNotOpened(first.code or "ChannelNotOpened", first.error)
        except TimeoutError:
            self.close(channel)
            raise NodeUnreachable(f"Node {node} did not answer in {OPEN_SECONDS:g} s; try again later.") from None
        except BaseException:
            self.close(channel)
            raise
        finally:
            self._waiting.pop(asked.request, None)
        return channel, first

    def close(self, channel: TaskChannel) -> None:
        """End a channel."""
        channel.close()
        self._open.discard(channel)

    async def channel(self, frames: AsyncIterator[pb.ChannelFrame], context: Any) -> AsyncIterator[pb.ChannelFrame]:
        """Serve the stream of an agent."""
        channel = self._waiting.get(dict(context.invocation_metadata()).get(CHANNEL_REQUEST, ""))
        if channel is None:
            await context.abort(grpc.StatusCode.CANCELLED, "The client does not wait for this channel any more.")
            return
        async for frame in channel.carry(frames):
            yield frame
