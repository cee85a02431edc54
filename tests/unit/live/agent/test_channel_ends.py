"""The end of a channel: what the holder of a console said last arrives, however late the scheduler reads it."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any
from unittest.mock import create_autospec

import grpc.aio
import pytest

from gpuyard.live.agent import channels
from gpuyard.live.agent.launch_builder import LaunchBuilder
from gpuyard.live.agent.scheduler_connection import SchedulerConnection
from gpuyard.live.agent.supervisor.messages import AttemptKey
from gpuyard.live.agent.supervisor_client import SupervisorClient
from gpuyard.live.wire import agents_pb2 as pb
from gpuyard.live.wire.rpc import AgentsStub, agents_handler
from tests.unit.live.wire.test_rpc import Echo

FRAMES = [b"attached", b"output", b"exit"]


class ReadsLate(Echo):
    """A scheduler that reads a channel when it is told to."""

    def __init__(self) -> None:
        self.reads = asyncio.Event()
        self.ended = asyncio.Event()
        self.heard: list[bytes] = []

    async def channel(self, frames: AsyncIterator[pb.ChannelFrame], context: Any) -> AsyncIterator[pb.ChannelFrame]:
        assert context.peer()
        try:
            yield pb.ChannelFrame(frame=b"attach")
            await self.reads.wait()
            async for frame in frames:
                self.heard.append(frame.frame or frame.error.encode())
        finally:
            self.ended.set()


class Speaks(channels.AgentChannels):
    """Serves one thing."""

    wanted: str
    scheduler: ReadsLate

    async def _serve(self, call: Any, key: AttemptKey, asked: pb.OpenChannel) -> None:
        end = call.done_writing

        async def done_writing() -> None:
            await end()
            asyncio.get_running_loop().call_soon(self.scheduler.reads.set)

        call.done_writing = done_writing
        call.add_done_callback(lambda _: self.scheduler.reads.set())
        if self.wanted == "refusal":
            raise channels.ChannelRefused("NotRunning", "refused")
        assert (key, asked.kind) == (AttemptKey(1, 1), pb.OpenChannel.SHELL)
        reader = asyncio.StreamReader()
        for frame in FRAMES:
            reader.feed_data(len(frame).to_bytes(4, "big") + frame)
        reader.feed_eof()
        writer = create_autospec(asyncio.StreamWriter, instance=True)
        writer.drain.side_effect = BrokenPipeError
        await channels._until_left(call, reader, writer)


@pytest.mark.parametrize(("wanted", "heard"), [("console", FRAMES), ("refusal", [b"refused"])])
def test_what_was_said_last_is_read(wanted: str, heard: list[bytes]) -> None:
    async def story() -> None:
        server, scheduler = grpc.aio.server(), ReadsLate()
        server.add_generic_rpc_handlers((agents_handler(scheduler),))
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        agent = Speaks(create_autospec(SupervisorClient), create_autospec(LaunchBuilder), dict, "")
        agent.wanted, agent.scheduler = wanted, scheduler
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            connection = create_autospec(SchedulerConnection, instance=True)
            connection.stub, connection.metadata = AgentsStub(channel), ()
            asked = pb.OpenChannel(kind=pb.OpenChannel.SHELL, request="r")
            await asyncio.wait_for(agent.open(connection, AttemptKey(1, 1), asked), 60)
            await asyncio.wait_for(scheduler.ended.wait(), 60)
        await server.stop(None)
        assert scheduler.heard == heard

    asyncio.run(story())
