"""Channels of the scheduler: who is refused before a node is asked, and what ends a channel."""

import asyncio

import pytest

from gpuyard.core.domain.values import AttemptRef, NodeId, TaskId
from gpuyard.live.control_plane.nodes.channels import MOST_OF_ONE_USER, ChannelNotOpened, Channels, TooManyChannels
from gpuyard.live.control_plane.nodes.outputs import NodeUnreachable
from gpuyard.live.control_plane.nodes.sessions import AgentSession
from gpuyard.live.wire import agents_pb2 as pb

REF = AttemptRef(TaskId(7), 1, 5)


def _session(*, channels: bool) -> AgentSession:
    registration = pb.Registration(version="0.0.9", node=pb.Node(id="n"), channels=channels)
    session = AgentSession(registration, {})
    session.connected = True
    return session


def test_an_older_agent_is_refused_at_once_with_what_to_do() -> None:
    async def story() -> None:
        session = _session(channels=False)
        channels = Channels({NodeId("n"): session})
        with pytest.raises(ChannelNotOpened, match=r"0\.0\.9.*Update gpuyard there") as refused:
            await channels.open(NodeId("n"), REF, pb.OpenChannel(kind=pb.OpenChannel.CONSOLE))
        assert refused.value.code == "AgentTooOld"
        assert (channels.count, session.outbox) == (0, [])

    asyncio.run(story())


def test_a_node_that_is_not_connected_or_leaves_is_named() -> None:
    async def story() -> None:
        session = _session(channels=True)
        channels = Channels({NodeId("n"): session})
        with pytest.raises(NodeUnreachable, match="other"):
            await channels.open(NodeId("other"), REF, pb.OpenChannel())
        opening = asyncio.create_task(channels.open(NodeId("n"), REF, pb.OpenChannel(kind=pb.OpenChannel.PORTS)))
        await asyncio.sleep(0)
        assert session.outbox[0].open_channel.request
        session.close()
        with pytest.raises(NodeUnreachable, match="no longer connected"):
            await opening
        assert channels.count == 0

    asyncio.run(story())


def test_one_user_leaves_channels_to_others() -> None:
    async def story() -> None:
        session = _session(channels=True)
        channels = Channels({NodeId("n"): session})
        asked = [
            asyncio.create_task(channels.open(NodeId("n"), REF, pb.OpenChannel(kind=pb.OpenChannel.PORTS), "greedy"))
            for _ in range(MOST_OF_ONE_USER + 1)
        ]
        await asyncio.sleep(0)
        assert channels.count == MOST_OF_ONE_USER
        with pytest.raises(TooManyChannels, match="greedy has 125"):
            await asked.pop()
        other = asyncio.create_task(channels.open(NodeId("n"), REF, pb.OpenChannel(kind=pb.OpenChannel.PORTS), "other"))
        await asyncio.sleep(0)
        assert channels.count == MOST_OF_ONE_USER + 1
        session.close()
        for opening in (*asked, other):
            with pytest.raises(NodeUnreachable):
                await opening
        assert channels.count == 0

    asyncio.run(story())
