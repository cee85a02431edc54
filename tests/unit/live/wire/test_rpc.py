"""The gRPC service really answers over a socket, and its messages become the right values."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
import grpc.aio
import pytest

from gpuyard.core.domain.node import Gpu, NodeSpec
from gpuyard.core.domain.values import GpuHealth, NodeId, Outcome
from gpuyard.input.strict import WrongRequest
from gpuyard.live.wire import agents_pb2 as pb
from gpuyard.live.wire.rpc import (
    HEALTHS,
    OUTCOMES,
    AgentsStub,
    agents_handler,
    health_of,
    heartbeat_of,
    node_spec_of,
    outcome_of,
)
from gpuyard.testing.fake_node import node_of
from tests.unit.live.blobless import Blobless


class Echo(Blobless):
    """A scheduler that accepts every agent and acknowledges reports."""

    async def challenge(self, request: pb.ChallengeRequest, context: Any) -> pb.ChallengeAnswer:  # noqa: ARG002
        return pb.ChallengeAnswer(nonce=request.nonce)

    async def register(self, request: pb.SignedRegistration, context: Any) -> pb.Welcome:
        if request.proof != b"open":
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, "The join token is wrong.")
        return pb.Welcome(yard="y", session="s", epoch=3)

    async def connect(
        self, messages: AsyncIterator[pb.AgentMessage], context: Any
    ) -> AsyncIterator[pb.SchedulerMessage]:
        session = dict(context.invocation_metadata())["session"]
        assert session == "s"
        async for message in messages:
            yield pb.SchedulerMessage(epoch=3, received=message.reports[0].number)

    async def send_log(self, chunks: AsyncIterator[pb.LogChunk], context: Any) -> pb.LogReceipt:
        assert context.peer()
        self.log = b"".join([chunk.data async for chunk in chunks])
        return pb.LogReceipt()

    async def channel(self, frames: AsyncIterator[pb.ChannelFrame], context: Any) -> AsyncIterator[pb.ChannelFrame]:
        assert context.peer()
        async for frame in frames:
            yield pb.ChannelFrame(frame=frame.frame[::-1], end=frame.end)


def test_an_agent_registers_communicates_and_sends_output_over_a_real_socket() -> None:
    async def talk() -> None:
        server, echo = grpc.aio.server(), Echo()
        server.add_generic_rpc_handlers((agents_handler(echo),))
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            stub = AgentsStub(channel)
            assert (await stub.challenge(pb.ChallengeRequest(nonce=b"n"))).nonce == b"n"
            welcome = await stub.register(pb.SignedRegistration(proof=b"open"))
            assert (welcome.session, welcome.epoch) == ("s", 3)
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await stub.register(pb.SignedRegistration(proof=b"wrong"))
            assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED
            stream = stub.connect(metadata=(("session", welcome.session),))
            for number in (1, 2):
                await stream.write(pb.AgentMessage(reports=[pb.Report(number=number)]))
                assert (await stream.read()).received == number
            await stream.done_writing()
            assert await stream.read() is grpc.aio.EOF  # type: ignore[attr-defined]
            await stub.send_log(iter([pb.LogChunk(data=b"a"), pb.LogChunk(data=b"b")]))
            assert echo.log == b"ab"
            both_ways = stub.channel()
            await both_ways.write(pb.ChannelFrame(frame=b"keys"))
            assert (await both_ways.read()).frame == b"syek"
            await both_ways.done_writing()
            assert await both_ways.read() is grpc.aio.EOF  # type: ignore[attr-defined]
        await server.stop(None)

    asyncio.run(asyncio.wait_for(talk(), 20))


def test_a_node_survives_a_round_trip_through_the_protocol() -> None:
    cards = (Gpu("A100", 40_960, "GPU-1", 1, 0, virtual=True), Gpu("T4", 16_384))
    spec = NodeSpec(NodeId("n-1"), cards, 16, 65_536, (("rack", "a"), ("zone", "b")))
    assert node_spec_of(pb.Node.FromString(node_of(spec).SerializeToString())) == spec


def test_every_end_and_health_has_a_meaning_and_unknown_ones_a_safe_default() -> None:
    assert set(OUTCOMES) == set(pb.Ended.Outcome.values())
    assert set(HEALTHS) == set(pb.GpuUse.Health.values())
    assert outcome_of(pb.Ended.FENCED) is Outcome.LOST
    assert outcome_of(99) is Outcome.LOST
    assert health_of(99) is GpuHealth.OFFLINE


@pytest.mark.parametrize(
    ("node", "field"),
    [
        (pb.Node(id=""), "node.id"),
        (pb.Node(id="a/b"), "node.id"),
        (pb.Node(id="n\n"), "node.id"),
        (pb.Node(id="n", gpus=[pb.Gpu(model="", memory_mib=1)]), "node.gpus[0]"),
        (pb.Node(id="n", gpus=[pb.Gpu(model="T4", memory_mib=1), pb.Gpu(model="T4")]), "node.gpus[1]"),
        (pb.Node(id="n", gpus=[pb.Gpu(model="T4", memory_mib=1)] * 1025), "node.gpus"),
    ],
)
def test_an_invalid_node_is_reported_in_one_sentence(node: pb.Node, field: str) -> None:
    with pytest.raises(WrongRequest) as wrong:
        node_spec_of(node)
    assert wrong.value.field == field
    assert str(wrong.value).endswith(".")


@pytest.mark.parametrize("seconds", [float("nan"), float("inf"), -1.0])
def test_an_impossible_round_trip_is_as_unknown_as_that_of_an_older_agent(seconds: float) -> None:
    assert not heartbeat_of(pb.Heartbeat(round_trip_seconds=seconds)).HasField("round_trip_seconds")
    assert not heartbeat_of(pb.Heartbeat()).HasField("round_trip_seconds")
    assert heartbeat_of(pb.Heartbeat(round_trip_seconds=0.0)).HasField("round_trip_seconds")
