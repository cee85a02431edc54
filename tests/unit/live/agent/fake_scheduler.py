"""A fake scheduler: it speaks the real protocol to a real agent with a real supervisor."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import grpc.aio

from gpuyard.live.agent.agent_state import AgentStateFile
from gpuyard.live.agent.attempt_relay import AttemptRelay
from gpuyard.live.agent.identity import Identities
from gpuyard.live.agent.inventory.virtual import Virtual
from gpuyard.live.agent.launch_builder import LaunchBuilder
from gpuyard.live.agent.link import AgentLink, LinkOptions
from gpuyard.live.agent.supervisor_client import SupervisorClient
from gpuyard.live.wire import agents_pb2 as pb
from gpuyard.live.wire import proof
from gpuyard.live.wire.rpc import CHANNEL_REQUEST, LOG_REQUEST, agents_handler
from tests.unit.live.blobless import Blobless

PATIENCE_SECONDS = 20.0
TOKEN = "what both sides know"


class PlayedScheduler(Blobless):
    def __init__(self) -> None:
        self.token, self.yard, self.epoch, self.origin = TOKEN, "yard", 1, 7
        self.voting: list[str] = []
        self.registrations: list[pb.Registration] = []
        self.heartbeats: asyncio.Queue[pb.Heartbeat] = asyncio.Queue()
        self.goodbyes: asyncio.Queue[pb.Goodbye] = asyncio.Queue()
        self.reports: asyncio.Queue[pb.Report] = asyncio.Queue()
        self.log_requests: asyncio.Queue[str] = asyncio.Queue()
        self.channel_requests: asyncio.Queue[str] = asyncio.Queue()
        self.channel_frames: asyncio.Queue[pb.ChannelFrame] = asyncio.Queue()
        self.nobody_reads = asyncio.Event()
        """Set to end all streams of output."""
        self._words: asyncio.Queue[pb.SchedulerMessage] = asyncio.Queue()

    async def challenge(self, request: pb.ChallengeRequest, context: Any) -> pb.ChallengeAnswer:  # noqa: ARG002
        answer = pb.ChallengeAnswer(nonce=proof.new_nonce(), yard=self.yard, epoch=self.epoch, origin=self.origin)
        answer.proof = proof.scheduler_proof(self.token, request.nonce, request.node, answer)
        return answer

    async def register(self, request: pb.SignedRegistration, context: Any) -> pb.Welcome:  # noqa: ARG002
        assert request.proof == proof.agent_proof(self.token, request.nonce, request.agent_nonce, request.body)
        self.registrations.append(pb.Registration.FromString(request.body))
        return pb.Welcome(
            yard=self.yard,
            epoch=self.epoch,
            origin=self.origin,
            session="session",
            offline_after_seconds=15.0,
            voting=self.voting,
        )

    async def connect(
        self,
        messages: AsyncIterator[pb.AgentMessage],
        context: Any,  # noqa: ARG002
    ) -> AsyncIterator[pb.SchedulerMessage]:
        reading = asyncio.create_task(self._read(messages))
        try:
            while True:
                yield await self._words.get()
        finally:
            reading.cancel()

    async def _read(self, messages: AsyncIterator[pb.AgentMessage]) -> None:
        async for message in messages:
            if message.HasField("heartbeat"):
                self.heartbeats.put_nowait(message.heartbeat)
            if message.HasField("goodbye"):
                self.goodbyes.put_nowait(message.goodbye)
            for report in message.reports:
                self.reports.put_nowait(report)

    async def channel(self, frames: AsyncIterator[pb.ChannelFrame], context: Any) -> AsyncIterator[pb.ChannelFrame]:
        self.channel_requests.put_nowait(dict(context.invocation_metadata())[CHANNEL_REQUEST])
        async for frame in frames:
            self.channel_frames.put_nowait(frame)
        yield pb.ChannelFrame(end=True)

    async def send_log(self, chunks: AsyncIterator[pb.LogChunk], context: Any) -> pb.LogReceipt:  # noqa: ARG002
        self.log_requests.put_nowait(dict(context.invocation_metadata())[LOG_REQUEST])
        await self.nobody_reads.wait()
        await context.abort(grpc.StatusCode.CANCELLED, "The client no longer reads this output.")
        return pb.LogReceipt()

    def say(self, *commands: pb.Command, **more: Any) -> None:
        self._words.put_nowait(pb.SchedulerMessage(epoch=1, commands=commands, **more))

    async def hears_of(self, task: int, what: str) -> pb.Report:
        """The next report of this kind about a task; others are passed over."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            while True:
                report = await self.reports.get()
                if report.task == task and report.HasField(what):
                    return report


async def nothing_to_measure() -> pb.Heartbeat:
    return pb.Heartbeat(at=time.time())


@asynccontextmanager
async def fake_scheduler() -> AsyncIterator[tuple[PlayedScheduler, str]]:
    """A scheduler, and where it listens."""
    scheduler = PlayedScheduler()
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((agents_handler(scheduler),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield scheduler, f"127.0.0.1:{port}"
    finally:
        await server.stop(None)


@asynccontextmanager
async def meanwhile(doing: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Something runs in the background; if it fails, so does the test."""
    running = asyncio.create_task(doing)
    try:
        yield
    finally:
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running


@asynccontextmanager
async def node(
    folder: Path, heartbeat: Callable[[], Awaitable[pb.Heartbeat]] = nothing_to_measure
) -> AsyncIterator[tuple[PlayedScheduler, AgentLink]]:
    """A node with four virtual GPUs, and its fake scheduler."""
    launch_builder = LaunchBuilder(
        "node-1", Virtual("4", "node-1").devices(), Identities({}, True), folder / "output",
        output_limit_bytes=1 << 20, grace_seconds=1.0,
    )  # fmt: skip
    async with fake_scheduler() as (scheduler, address), SupervisorClient(folder / "supervisor") as processes:
        options = LinkOptions(
            address="127.0.0.1", addresses=(address,), join_token=TOKEN,
            heartbeat_seconds=0.1, retry_seconds=0.1, max_retry_seconds=0.2,
        )  # fmt: skip
        state_file = AgentStateFile(folder)
        relay = AttemptRelay(processes, launch_builder, state_file)
        agent = AgentLink(pb.Node(id="node-1"), options, state_file, processes, relay, heartbeat)
        async with meanwhile(agent.run()):
            yield scheduler, agent
