"""Channels of the scheduler: who is refused before a node is asked, and what ends a channel."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from gpuyard.core.domain.values import AttemptRef, NodeId, TaskId
from gpuyard.live.control_plane.nodes.channels import ChannelLimits, ChannelNotOpened, Channels, TaskChannel
from gpuyard.live.control_plane.nodes.fair_turns import FairTurns
from gpuyard.live.control_plane.nodes.outputs import NodeUnreachable
from gpuyard.live.control_plane.nodes.sessions import AgentSession
from gpuyard.live.wire import agents_pb2 as pb

REF = AttemptRef(TaskId(7), 1, 5)


def _session(*, channels: bool, node: str = "n") -> AgentSession:
    registration = pb.Registration(version="0.0.9", node=pb.Node(id=node), channels=channels)
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


LIMITS = ChannelLimits(most=8, of_user=5, of_task=4, on_node=6)
CONSOLE, PORT = pb.OpenChannel.CONSOLE, pb.OpenChannel.PORT


class Cluster:
    """Two nodes and the channels to them."""

    def __init__(self) -> None:
        self.sessions = {NodeId(name): _session(channels=True, node=name) for name in ("n", "m")}
        self.channels = Channels(self.sessions, LIMITS)
        self.opening: list[asyncio.Task[object]] = []

    async def opens(
        self, user: str, *, task: int = 7, node: str = "n", kind: "pb.OpenChannel.Kind" = PORT, write: bool = False
    ) -> str:
        """Open a channel; return why it was refused, empty if it was not."""
        ref = AttemptRef(TaskId(task), 1, 5)
        asked = pb.OpenChannel(kind=kind, write=write)
        opening = asyncio.create_task(self.channels.open(NodeId(node), ref, asked, user))
        await asyncio.sleep(0)
        if not opening.done():
            self.opening.append(opening)
            return ""
        return str(opening.exception())

    async def ends(self) -> None:
        for session in self.sessions.values():
            session.close()
        for opening in self.opening:
            with pytest.raises(NodeUnreachable):
                await opening
        assert self.channels.count == 0
        assert not any(session.on_close for session in self.sessions.values())


def test_each_limit_is_told_with_its_setting_and_the_way_out() -> None:
    async def story() -> None:
        cluster = Cluster()
        for _ in range(4):
            assert await cluster.opens("ann") == ""
        refused = await cluster.opens("ann")
        assert "task-7 has 4 terminals" in refused
        assert "server.max_channels_per_task). Close some first." in refused
        assert await cluster.opens("ann", task=8) == ""
        refused = await cluster.opens("ann", task=9)
        assert "ann has 5 terminals" in refused
        assert "server.max_channels_per_user). Close some first." in refused
        assert await cluster.opens("bob", task=9) == ""
        refused = await cluster.opens("bob", task=10)
        assert "are open on node n, its maximum" in refused
        assert "server.max_channels_per_node). Try again later" in refused
        for task in (11, 12):
            assert await cluster.opens("bob", task=task, node="m") == ""
        refused = await cluster.opens("cyd", task=13, node="m")
        assert "maximum of this scheduler (server.max_channels). Try again later" in refused
        assert cluster.channels.count == 8
        await cluster.ends()

    asyncio.run(story())


def test_those_who_watch_leave_half_of_the_channels_of_a_task_to_its_owner() -> None:
    async def story() -> None:
        cluster = Cluster()
        for _ in range(2):
            assert await cluster.opens("bob", kind=CONSOLE) == ""
        refused = await cluster.opens("eve", kind=CONSOLE)
        assert "2 clients watch the terminal of task-7" in refused
        assert "`gpuyard logs -f task-7` follows its output as well" in refused
        for _ in range(2):
            assert await cluster.opens("ann", kind=CONSOLE, write=True) == ""
        await cluster.ends()

    asyncio.run(story())


def test_a_channel_that_is_closed_makes_room() -> None:
    async def story() -> None:
        cluster = Cluster()
        for _ in range(4):
            assert await cluster.opens("ann") == ""
        cluster.channels.close(next(iter(cluster.channels._open)))
        assert await cluster.opens("ann") == ""
        await cluster.ends()

    asyncio.run(story())


# --- turns --------------------------------------------------------------------------------------------------------------


def test_users_take_turns_however_many_channels_they_keep_busy() -> None:
    async def story() -> None:
        turns, passed = FairTurns(), []

        async def passes(user: str) -> None:
            await turns.take(user)
            passed.append(user)

        waiting = [asyncio.create_task(passes("greedy")) for _ in range(50)]
        waiting += [asyncio.create_task(passes(user)) for user in ("ann", "bob")]
        await asyncio.gather(*waiting)
        assert passed[:5] == ["greedy", "greedy", "ann", "bob", "greedy"]
        assert passed.count("greedy") == 50

    asyncio.run(story())


def test_other_work_of_the_scheduler_comes_between_two_frames() -> None:
    async def story() -> None:
        turns, order = FairTurns(), []

        async def busy() -> None:
            for _ in range(20):
                await turns.take("greedy")
                order.append("frame")

        async def scheduler() -> None:
            for _ in range(20):
                await asyncio.sleep(0)
                order.append("work")

        await asyncio.gather(*(busy() for _ in range(10)), scheduler())
        until_done = order[: len(order) - order[::-1].index("work")]
        assert until_done.count("frame") <= until_done.count("work") + 2

    asyncio.run(story())


def test_a_turn_that_nobody_waits_for_any_more_is_passed_on() -> None:
    async def story() -> None:
        turns = FairTurns()
        await turns.take("ann")
        left, next_one = (asyncio.create_task(turns.take(user)) for user in ("bob", "cyd"))
        await asyncio.sleep(0)
        left.cancel()
        await asyncio.wait_for(next_one, 20)
        await asyncio.wait_for(turns.take("ann"), 20)

    asyncio.run(story())


def test_the_last_frame_is_read_although_the_channel_has_ended() -> None:
    async def story() -> None:
        channel = TaskChannel(_session(channels=True), REF, "ann", FairTurns(), watches=False)

        async def frames() -> AsyncIterator[pb.ChannelFrame]:
            for word in (b"one", b"two"):
                yield pb.ChannelFrame(frame=word)

        async def carried() -> list[pb.ChannelFrame]:
            return [frame async for frame in channel.carry(frames())]

        carrying = asyncio.create_task(carried())
        await channel.write(pb.ChannelFrame(frame=b"typed"))
        read = []
        while (frame := await asyncio.wait_for(channel.read(), 20)) is not None:
            read.append(frame.frame)
        assert read == [b"one", b"two"]
        assert [frame.frame for frame in await asyncio.wait_for(carrying, 20)] == [b"typed"]
        assert channel.is_over

    asyncio.run(story())
