"""Fake nodes: they use the real protocol over real gRPC and start no processes.

They serve tests of a scheduler, and loads of hundreds of nodes in one process. `runs_for` determines what they do with
an attempt: after this number of seconds they report that it succeeded; None: only when they are told to stop.
"""

import asyncio
import time
from typing import Any

import grpc.aio

from gpuyard.core.domain.node import NodeSpec
from gpuyard.core.domain.values import NOT_THERE, AttemptRef
from gpuyard.live.wire import agents_pb2 as pb
from gpuyard.live.wire import proof
from gpuyard.live.wire.rpc import PROTOCOL, SESSION, AgentsStub, attempt_of
from gpuyard.version import __version__


async def register_node(stub: AgentsStub, registration: pb.Registration, join_token: str) -> pb.Welcome:
    """Register as an agent does: request the scheduler's proof (not verified here) and send one's own."""
    nonce = proof.new_nonce()
    answer = await stub.challenge(pb.ChallengeRequest(protocol=PROTOCOL, node=registration.node.id, nonce=nonce))
    body = registration.SerializeToString()
    shown = proof.agent_proof(join_token, answer.nonce, nonce, body)
    return await stub.register(
        pb.SignedRegistration(protocol=PROTOCOL, nonce=answer.nonce, agent_nonce=nonce, body=body, proof=shown)
    )


class FakeNode:
    """One node, as a scheduler sees it."""

    def __init__(
        self,
        name: str,
        gpus: int = 8,
        *,
        model: str = "virtual",
        join_token: str = "",
        runs_for: float | None = 0.0,
        heartbeat_seconds: float = 5.0,
    ) -> None:
        self.name = name
        self.attempts: dict[AttemptRef, int] = {}
        self.launched = 0
        self.ended = 0
        """The number of ends that the scheduler has stored durably."""
        self._node = pb.Node(
            id=name,
            gpus=[
                pb.Gpu(model=model, memory_mib=24_576, uuid=f"{name}-{number}", virtual=True) for number in range(gpus)
            ],
            cpus=64,
            memory_mib=262_144,
        )
        self._join_token = join_token
        self._runs_for = runs_for
        self._heartbeat_seconds = heartbeat_seconds
        self._queue: list[pb.Report] = []
        self._ends: list[int] = []
        self._number = 0
        self._woken = asyncio.Event()

    async def play(self, address: str, channel: "grpc.aio.Channel | None" = None) -> None:
        """Register and serve until the connection breaks."""
        own = channel is None
        line = grpc.aio.insecure_channel(address) if channel is None else channel
        try:
            stub = AgentsStub(line)
            registration = pb.Registration(
                version=__version__,
                node=self._node,
                instance=self.name,
                attempts=[
                    pb.Attempt(task=key.task, attempt=key.attempt, origin=key.origin, state=state)  # type: ignore[arg-type]
                    for key, state in self.attempts.items()
                ],
                address="127.0.0.1",
            )
            welcome = await register_node(stub, registration, self._join_token)
            call = stub.connect(metadata=((SESSION, welcome.session),))
            speaking = asyncio.create_task(self._speak(call))
            try:
                while (message := await call.read()) is not grpc.aio.EOF:  # type: ignore[attr-defined]
                    self._obey(message)
            finally:
                speaking.cancel()
        finally:
            if own:
                await line.close(None)

    async def _speak(self, call: Any) -> None:
        beat = 0.0
        while True:
            now = time.monotonic()
            heartbeat = None
            if now >= beat:
                heartbeat, beat = pb.Heartbeat(at=time.time()), now + self._heartbeat_seconds
            reports, self._queue = self._queue, []
            if reports or heartbeat is not None:
                await call.write(pb.AgentMessage(reports=reports, heartbeat=heartbeat))
            try:
                async with asyncio.timeout(max(0.0, beat - time.monotonic())):
                    await self._woken.wait()
            except TimeoutError:
                continue
            self._woken.clear()

    def _obey(self, message: pb.SchedulerMessage) -> None:
        while self._ends and self._ends[0] <= message.received:
            self._ends.pop(0)
            self.ended += 1
        for asked in message.commands:
            key = attempt_of(asked)
            what = asked.WhichOneof("what")
            if what == "launch" and key not in self.attempts:
                self.launched += 1
                self.attempts[key] = pb.Attempt.RUNNING
                self._report(key, started=pb.Started(at=time.time()))
                if self._runs_for == 0.0:
                    self.end(key)
                elif self._runs_for is not None:
                    asyncio.get_running_loop().call_later(self._runs_for, self.end, key)
            elif what == "stop" and key in self.attempts:
                self.end(key, pb.Ended.STOPPED)
            elif what == "stop":
                self._report(key, ended=pb.Ended(outcome=pb.Ended.LOST, at=time.time(), message=NOT_THERE))

    def end(self, key: AttemptRef, outcome: "pb.Ended.Outcome" = pb.Ended.SUCCEEDED) -> None:
        """End an attempt."""
        if self.attempts.pop(key, None) is not None:
            self._report(key, ended=pb.Ended(outcome=outcome, exit_code=0, at=time.time()))
            self._ends.append(self._number)

    def _report(self, key: AttemptRef, **what: Any) -> None:
        self._number += 1
        self._queue.append(
            pb.Report(number=self._number, task=key.task, attempt=key.attempt, origin=key.origin, **what)
        )
        self._woken.set()


def node_of(spec: NodeSpec) -> pb.Node:
    """Describe a node as an agent does when it registers."""
    gpus = [
        pb.Gpu(
            model=gpu.model,
            memory_mib=gpu.memory_mib,
            uuid=gpu.uuid,
            numa=gpu.numa,
            nvlink=gpu.nvlink,
            virtual=gpu.virtual,
        )
        for gpu in spec.gpus
    ]
    return pb.Node(id=spec.id, gpus=gpus, cpus=spec.cpus, memory_mib=spec.memory_mib, labels=dict(spec.labels))
