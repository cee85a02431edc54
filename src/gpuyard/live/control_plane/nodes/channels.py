"""Channels between clients and attempts: each is one WebSocket here and one stream of the agent.

    client ─► OpenChannel ─► session ─► agent       the agent opens the stream and names the request as metadata
    client ◄─ frames ─► Channel stream ◄─► agent    passed on unread, one at a time in each direction

A stream of its own for each channel: a slow client delays only itself, and its end ends nothing else. Users take turns
(`fair_turns.py`), and one frame waits here in each direction, so a busy channel delays no other one either.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from secrets import token_hex
from typing import Any, NamedTuple

import grpc

from gpuyard.core.domain.errors import GpuyardError
from gpuyard.core.domain.values import AttemptRef, NodeId
from gpuyard.live.control_plane.nodes.fair_turns import FairTurns
from gpuyard.live.control_plane.nodes.launches import attempt_command
from gpuyard.live.control_plane.nodes.outputs import NodeUnreachable
from gpuyard.live.control_plane.nodes.sessions import AgentSession
from gpuyard.live.wire import agents_pb2 as pb
from gpuyard.live.wire.rpc import CHANNEL_REQUEST

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


class ChannelLimits(NamedTuple):
    """How many channels may be open at once."""

    most: int = 500
    of_user: int = 125
    """One user leaves channels to others."""
    of_task: int = 64
    """Clients that only watch take half of them at most, so that they do not keep the owner out."""
    on_node: int = 250
    """An agent may open 1,024 streams, and shares them with readers of output."""


class _Slot:
    """Room for one frame between a coroutine that puts it there and one that takes it."""

    def __init__(self) -> None:
        self._frame: pb.ChannelFrame | None = None
        self._changed = asyncio.Event()
        self._is_closed = False

    async def put(self, frame: pb.ChannelFrame) -> None:
        """Put a frame as soon as there is room, unless the slot is closed."""
        await self.until_empty()
        if not self._is_closed:
            self._frame = frame
            self._changed.set()

    async def get(self) -> pb.ChannelFrame | None:
        """Take the next frame; None: there is none, and the slot is closed."""
        while self._frame is None and not self._is_closed:
            await self._change()
        frame, self._frame = self._frame, None
        self._changed.set()
        return frame

    async def until_empty(self) -> None:
        """Wait until the frame was taken, or the slot is closed."""
        while self._frame is not None and not self._is_closed:
            await self._change()

    def close(self) -> None:
        """Let nobody wait any more. A frame that is there can still be taken."""
        self._is_closed = True
        self._changed.set()

    async def _change(self) -> None:
        self._changed.clear()
        await self._changed.wait()


class TaskChannel:
    """One channel, from the side of the scheduler."""

    def __init__(self, session: AgentSession, ref: AttemptRef, user: str, turns: FairTurns, *, watches: bool) -> None:
        """`watches`: its client does not type."""
        self.node = session.node
        self.task = ref.task
        self.user = user
        self.watches = watches
        self._turns = turns
        self._session = session
        self._from_node, self._to_node = _Slot(), _Slot()
        self.is_over = False
        """Whether either side has ended it."""
        self.bytes_read = 0
        self.bytes_written = 0
        session.on_close.add(self.close)
        if session.closed:
            self.close()

    def close(self) -> None:
        """End it."""
        self.is_over = True
        self._session.on_close.discard(self.close)
        self._from_node.close()
        self._to_node.close()

    async def read(self) -> pb.ChannelFrame | None:
        """Return the next frame of the node; None: the channel has ended."""
        frame = await self._from_node.get()
        if frame is not None:
            self.bytes_read += len(frame.frame)
            await self._turns.take(self.user)
        return frame

    async def write(self, frame: pb.ChannelFrame) -> None:
        """Send a frame to the node. Wait while it does not read."""
        self.bytes_written += len(frame.frame)
        await self._turns.take(self.user)
        await self._to_node.put(frame)

    async def carry(self, frames: AsyncIterator[pb.ChannelFrame]) -> AsyncIterator[pb.ChannelFrame]:
        """Yield the frames for the node, and take those from it."""
        taking = asyncio.create_task(self._take(frames))
        try:
            while (frame := await self._to_node.get()) is not None:
                yield frame
        finally:
            self.close()
            taking.cancel()
            with suppress(asyncio.CancelledError):
                await taking

    async def _take(self, frames: AsyncIterator[pb.ChannelFrame]) -> None:
        with suppress(grpc.RpcError):
            async for frame in frames:
                await self._from_node.put(frame)
        await self._from_node.until_empty()  # the last one is read before the end
        self.close()


class Channels:
    """All channels."""

    def __init__(self, sessions: Mapping[NodeId, AgentSession], limits: ChannelLimits | None = None) -> None:
        self._sessions = sessions
        self._limits = limits or ChannelLimits()
        self._turns = FairTurns()
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
        watches = asked.kind == pb.OpenChannel.CONSOLE and not asked.write
        self._check_room(node, ref, user, watches=watches)
        asked.request = token_hex(8)
        channel = TaskChannel(session, ref, user, self._turns, watches=watches)
        self._waiting[asked.request] = channel
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

    def _check_room(self, node: NodeId, ref: AttemptRef, user: str, *, watches: bool) -> None:
        """Raise `TooManyChannels` with the way out if one more channel would be above a limit."""
        limits, opened = self._limits, self._open
        if sum(channel.user == user for channel in opened) >= limits.of_user:
            raise TooManyChannels(
                f"{user} has {limits.of_user} terminals, shells and connections to ports open, the maximum for one user "
                "(server.max_channels_per_user). Close some first."
            )
        of_task = [channel for channel in opened if channel.task == ref.task]
        if len(of_task) >= limits.of_task:
            raise TooManyChannels(
                f"task-{ref.task} has {limits.of_task} terminals, shells and connections to ports open, the maximum for "
                "one task (server.max_channels_per_task). Close some first."
            )
        if watches and 2 * sum(channel.watches for channel in of_task) >= limits.of_task:
            raise TooManyChannels(
                f"{limits.of_task // 2} clients watch the terminal of task-{ref.task}, the maximum (half of "
                f"server.max_channels_per_task). `gpuyard logs -f task-{ref.task}` follows its output as well."
            )
        if sum(channel.node == node for channel in opened) >= limits.on_node:
            raise TooManyChannels(
                f"{limits.on_node} terminals, shells and connections to ports are open on node {node}, its maximum "
                "(server.max_channels_per_node). Try again later, or close some of yours there."
            )
        if self.count >= limits.most:
            raise TooManyChannels(
                f"{limits.most} terminals, shells and connections to ports are open, the maximum of this scheduler "
                "(server.max_channels). Try again later, or close some of yours."
            )

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
