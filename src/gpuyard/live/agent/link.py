"""The agent's connection to the scheduler: finds it, reconnects, and repeats every report it may have missed.

The supervisor holds the tasks; the agent only forwards. It turns events of the supervisor into reports, and commands of
the scheduler into commands to the supervisor. The supervisor forgets an end only after the scheduler has stored it
durably, so any of the three can be killed at any time:

    scheduler gone    ends wait with the supervisor and are reported at the next registration
    agent gone        the next agent asks the supervisor which attempts it holds, and registers with those
    supervisor gone   the next supervisor reads its log, adopts what still runs, and reports the rest as lost

The agent obeys a scheduler only if it proves that it knows the join token (wire/proof.py), runs the cluster this node
belongs to, and has an epoch that is not older than the last one obeyed. If the address is on this machine, the agent
also asks the kernel which user owns the listening socket.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import grpc
import grpc.aio
import structlog
from msgspec.structs import replace

from gpuyard.core.domain.actual import Actual
from gpuyard.core.domain.errors import GpuyardError
from gpuyard.core.domain.values import NOT_THERE
from gpuyard.live.agent import failures, peer
from gpuyard.live.agent.agent_state import AgentState, AgentStateFile
from gpuyard.live.agent.launch_builder import LaunchBuilder
from gpuyard.live.agent.supervisor import messages
from gpuyard.live.agent.supervisor_client import SupervisorClient
from gpuyard.live.wire import agents_pb2 as pb
from gpuyard.live.wire import proof
from gpuyard.live.wire.clock import SYSTEM_CLOCK, Clock
from gpuyard.live.wire.loopback_peer import is_loopback_address
from gpuyard.live.wire.rpc import PROTOCOL, SESSION, AgentsStub
from gpuyard.system.backoff import Backoff
from gpuyard.version import __version__

FENCE_PART = 0.8
"""A fenced attempt may run for this part of the time after which the scheduler counts the node as lost: 12 s of 15."""
LOOK_FOR_TLS_SECONDS = 30.0
"""How long the result of a TLS check of an address stays valid."""
TRIES_IN_TIME = 3
"""A pause or connection attempt takes at most 1/3 of the time after which the scheduler counts the node as lost."""
GOODBYE_SECONDS = 3.0
"""How long a stopping agent waits until the scheduler acknowledges its goodbye."""
GOODBYE_MARGIN_SECONDS = 5.0
FORGET_SECONDS = 0.1
"""How long to collect acknowledged ends before the supervisor is told to forget them in one message."""
MOST_IN_A_MESSAGE = 500
REMEMBERED = 10_000
SILENT_SECONDS = 10.0
"""A supervisor that has not answered for this long is reported, and its node gets no more tasks until it answers."""
CHANNEL_OPTIONS = (
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.max_receive_message_length", 64 * 1024 * 1024),
    ("grpc.enable_retries", 0),
    ("grpc.use_local_subchannel_pool", 1),
)
_STATES = {
    messages.ProcessPhase.WAITING: pb.Attempt.PREPARED,
    messages.ProcessPhase.RUNNING: pb.Attempt.RUNNING,
    messages.ProcessPhase.SUSPENDED: pb.Attempt.SUSPENDED,
    messages.ProcessPhase.ENDED: pb.Attempt.ENDED,
}
_OUTCOMES = {
    messages.AttemptEnding.SUCCEEDED: pb.Ended.SUCCEEDED,
    messages.AttemptEnding.FAILED: pb.Ended.FAILED,
    messages.AttemptEnding.STOPPED: pb.Ended.STOPPED,
    messages.AttemptEnding.TIMED_OUT: pb.Ended.TIMED_OUT,
    messages.AttemptEnding.FENCED: pb.Ended.FENCED,
    messages.AttemptEnding.LOST: pb.Ended.LOST,
    messages.AttemptEnding.NOT_LAUNCHED: pb.Ended.NOT_LAUNCHED,
}
TOO_LATE = "The attempt was not started: the launch arrived after the lease of the node had expired."

log = structlog.get_logger()


class NotWelcome(GpuyardError):
    """The scheduler does not let this node in; its sentence says what to change."""


@dataclass
class SchedulerLine:
    """One connection: the messages to send, and which of them the scheduler has received."""

    stub: AgentsStub
    metadata: tuple[tuple[str, str], ...]
    heard_at: float
    """When the last message known to have arrived was sent, on the boot clock, which never jumps or stops."""
    queue: list[tuple[pb.Report, float]] = field(default_factory=list)
    """Reports, each with the time of what it reports, on the boot clock."""
    goodbye: pb.Goodbye | None = None
    said_goodbye: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the scheduler has acknowledged that this agent stops on purpose."""
    heartbeat: pb.Heartbeat | None = None
    woken: asyncio.Event = field(default_factory=asyncio.Event)
    number: int = 0
    ends: dict[int, messages.AttemptKey] = field(default_factory=dict)
    """Reports of ends by number, until the scheduler acknowledges them."""
    sent: dict[float, float] = field(default_factory=dict)
    """Heartbeats in flight: their timestamp, and when they were sent on the boot clock."""

    def report(self, key: messages.AttemptKey, at: float, **what: Any) -> None:
        """Queue a report about an attempt. `at` is when it happened, on the boot clock."""
        self.number += 1
        self.queue.append(
            (pb.Report(number=self.number, task=key.task, attempt=key.attempt, origin=key.origin, **what), at)
        )
        self.woken.set()
        if "ended" in what:
            self.ends[self.number] = key


class AgentLink:
    """Forwards messages between a scheduler and a supervisor."""

    def __init__(
        self,
        node: pb.Node,
        address: str,
        addresses: tuple[str, ...],
        join_token: str,
        state_file: AgentStateFile,
        processes: SupervisorClient,
        launch_builder: LaunchBuilder,
        heartbeat: Callable[[], Awaitable[pb.Heartbeat]],
        *,
        credentials: "grpc.ChannelCredentials | None" = None,
        heartbeat_seconds: float = 5.0,
        connection_seconds: float = 10.0,
        retry_seconds: float = 2.0,
        max_retry_seconds: float = 30.0,
        away_seconds: float = 300.0,
        uid_of_listener: Callable[[str], int | None] = lambda _: None,
        what_is_wrong: Callable[[str], str] = lambda _: "",
        accept_cluster: str = "",
        clock: Clock = SYSTEM_CLOCK,
        uniform: Callable[[float, float], float] = random.uniform,
        open_channel: "Callable[[str], grpc.aio.Channel] | None" = None,
    ) -> None:
        self.held: dict[messages.AttemptKey, messages.HeldAttempt] = {}
        """The attempts the supervisor holds, as last reported by it."""
        self.listed = asyncio.Event()
        """Set when the supervisor has listed its attempts."""
        self._node = node
        self._address = address
        self._addresses = addresses
        self._join_token = join_token
        self._state_file = state_file
        self._processes = processes
        self._launch_builder = launch_builder
        self._heartbeat = heartbeat
        self._credentials = credentials
        self._heartbeat_seconds = heartbeat_seconds
        self._connection_seconds = connection_seconds
        self._retry_seconds = retry_seconds
        self._max_retry_seconds = max_retry_seconds
        self._away_seconds = away_seconds
        self._uid_of_listener = uid_of_listener
        self._what_is_wrong = what_is_wrong
        self._look_for_tls_at: dict[str, float] = {}
        self._wrong_tls: dict[str, str] = {}
        self._accept_cluster = accept_cluster
        """The cluster that the administrator lets this node move to, once its scheduler has proven itself."""
        self._clock = clock
        self._uniform = uniform
        self._open_channel = open_channel or self._grpc_channel
        self._line: SchedulerLine | None = None
        self._rounds: dict[messages.AttemptKey, int] = {}
        self._strays: dict[messages.AttemptKey, None] = {}
        self._refused: dict[messages.AttemptKey, str] = {}
        """Attempts this node refused to start, until the scheduler acknowledges it."""
        self._done: dict[messages.AttemptKey, None] = {}
        """Attempts that have ended and whose end the scheduler has acknowledged."""
        self._forgotten: list[messages.AttemptKey] = []
        """Acknowledged ends that the supervisor has not been told to forget yet."""
        self._streams: set[asyncio.Task[None]] = set()
        self._later: dict[messages.AttemptKey, list[pb.Command]] = {}
        """Launches whose user is being looked up, each followed by later commands for the same attempt."""
        self._lease_until = 0.0
        self._fence_seconds = 0.0
        self._replaced = False
        self._was_welcome = False
        self._is_back = False
        self._is_silent = False

    async def run(self) -> None:
        """Run forever. An error of the supervisor ends the agent and is raised as it is, with its own message."""
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._listen_to_supervisor())
                group.create_task(self._stay_connected())
        except ExceptionGroup as failed:
            raise failed.exceptions[0] from None

    async def say_goodbye(self) -> None:
        """Tell the scheduler that this agent stops on purpose and will be back, so it is not counted as lost."""
        line = self._line
        if line is None or self._away_seconds <= 0:
            return
        left = self._clock.boot()
        line.goodbye = pb.Goodbye(back_within_seconds=self._away_seconds)
        line.woken.set()
        try:
            async with asyncio.timeout(GOODBYE_SECONDS):
                await line.said_goodbye.wait()
        except TimeoutError:
            log.warning(
                "goodbye_unacknowledged",
                message=(
                    "The scheduler did not acknowledge the goodbye; it counts this node as lost after the usual time."
                ),
            )
            return
        self._extend_lease(left + max(0.0, self._away_seconds - GOODBYE_MARGIN_SECONDS))

    # --- the supervisor ----------------------------------------------------------------------------------------------

    async def _listen_to_supervisor(self) -> None:
        async for events in self._processes.events():
            for event in events:
                self._hear(event)

    def _hear(self, event: messages.SupervisorEvent) -> None:
        line = self._line
        match event:
            case messages.Holding():
                self._list(event)
            case messages.Launched(key, pid, at):
                before = self.held.get(key)
                lease, port = (before.lease, before.port) if before is not None else (False, 0)
                self.held[key] = messages.HeldAttempt(
                    key, messages.ProcessPhase.RUNNING, at, pid, lease=lease, port=port
                )
                if line:
                    line.report(key, self._boot_of(at), started=pb.Started(at=at, pid=pid))
            case messages.Prepared(key, port):
                self.held[key] = messages.HeldAttempt(key, messages.ProcessPhase.WAITING, self._clock.wall(), port=port)
                if line:
                    line.report(key, self._clock.boot(), prepared=pb.Prepared(port=port))
            case messages.ProcessEnded(key) | messages.NotLaunched(key):
                self.held[key] = messages.HeldAttempt(key, messages.ProcessPhase.ENDED, event.at, end=event)
                if line:
                    line.report(key, self._boot_of(event.at), ended=self._ended(event))
            case messages.SuspendedNow(key):
                self._set_phase(key, messages.ProcessPhase.SUSPENDED)
                if line:
                    line.report(key, self._clock.boot(), suspended=pb.Suspended(round=self._rounds.get(key, 0)))
            case messages.ResumedNow(key):
                self._set_phase(key, messages.ProcessPhase.RUNNING)
                if line:
                    line.report(key, self._clock.boot(), resumed=pb.Resumed(round=self._rounds.get(key, 0)))
            case messages.NotHeld(key):
                if line:
                    lost = pb.Ended(outcome=pb.Ended.LOST, at=self._clock.wall(), message=NOT_THERE)
                    line.report(key, self._clock.boot(), ended=lost)
            case messages.NotReplaced(message):
                log.warning("supervisor_replacement_failed", message=message)

    def _list(self, event: messages.Holding) -> None:
        """Take over the supervisor's list of attempts.

        It comes at the start and after each reconnection to the supervisor.
        """
        if event.version != __version__ and not self._replaced:
            self._replaced = True  # once: if the new one does not start, the old one continues to work
            log.info("supervisor_replaced", old=event.version, new=__version__)
            self._processes.send(messages.Replace())
        # A reported end stays valid until the scheduler has it, even if the supervisor no longer knows the attempt.
        ends = {key: held for key, held in self.held.items() if held.end is not None}
        before, self.held = self.held, {held.key: held for held in event.attempts} | ends
        self.listed.set()
        line = self._line
        if line is None:
            return
        for key, held in self.held.items():
            known = before.get(key)
            if held.end is not None and (known is None or known.end is None):
                line.report(key, self._boot_of(held.end.at), ended=self._ended(held.end))
            elif held.phase is messages.ProcessPhase.RUNNING and known is None:
                line.report(key, self._boot_of(held.at), started=pb.Started(at=held.at, pid=held.pid))
        for key in before.keys() - self.held.keys():
            # A launch that is not confirmed yet may be missing in the list without being lost.
            if not self._processes.awaits(key):
                lost = pb.Ended(outcome=pb.Ended.LOST, at=self._clock.wall(), message=NOT_THERE)
                line.report(key, self._clock.boot(), ended=lost)

    def _boot_of(self, at: float) -> float:
        """Convert a wall-clock time to the boot clock. Correct only if the wall clock has not jumped since."""
        return self._clock.boot() - max(0.0, self._clock.wall() - at)

    def _ended(self, event: messages.ProcessEnded | messages.NotLaunched) -> pb.Ended:
        """Describe how an attempt ended, including its measured GPU use."""
        if isinstance(event, messages.NotLaunched):
            return pb.Ended(outcome=pb.Ended.NOT_LAUNCHED, at=event.at, message=event.message)
        full = event.ending is messages.AttemptEnding.FAILED and self._launch_builder.ran_out_of_memory(event.key)
        actual = self._launch_builder.actuals.of(event.key) or Actual()
        return pb.Ended(
            outcome=pb.Ended.OUT_OF_MEMORY if full else _OUTCOMES[event.ending],
            exit_code=event.exit_code,
            signal=event.signal,
            at=event.at,
            message=event.message,
            gpu_memory_peak_mib=actual.gpu_memory_peak_mib,
            gpu_utilization=actual.gpu_utilization,
        )

    def _set_phase(self, key: messages.AttemptKey, phase: messages.ProcessPhase) -> None:
        held = self.held.get(key)
        if held is not None:
            self.held[key] = replace(held, phase=phase)

    # --- the scheduler -----------------------------------------------------------------------------------------------

    async def _stay_connected(self) -> None:
        await self.listed.wait()
        backoff, place = Backoff(self._retry_seconds, self._max_retry_seconds), 0
        while True:
            address = self._addresses[place % len(self._addresses)]
            try:
                await self._connect(address)
                log.info("scheduler_disconnected", address=address)
            except NotWelcome as refusal:
                log.error("registration_refused", address=address, message=str(refusal))
            except (grpc.aio.AioRpcError, TimeoutError, OSError) as error:
                if self._was_welcome:
                    message = failures.sentence(error, address, stood=True)
                    log.warning("scheduler_disconnected", address=address, message=message, error=failures.raw(error))
                else:
                    message = await self._why(error, address)
                    log.warning(
                        "scheduler_connection_failed", address=address, message=message, error=failures.raw(error)
                    )
            if self._was_welcome:
                backoff.reset()  # it was reachable: retry soon
                self._was_welcome = False
            place += 1
            if place % len(self._addresses) == 0:
                pause = self._in_time(backoff.next())
                await asyncio.sleep(pause * self._uniform(0.5, 1.0))  # jitter: nodes must not reconnect all at once

    async def _why(self, error: BaseException, address: str) -> str:
        """Explain why the connection failed.

        gRPC does not report TLS problems, so TLS is checked separately, every `LOOK_FOR_TLS_SECONDS`.
        """
        now = self._clock.boot()
        if not isinstance(error, grpc.aio.AioRpcError) or error.code() is not grpc.StatusCode.UNAVAILABLE:
            return failures.sentence(error, address)
        if now >= self._look_for_tls_at.get(address, now):
            self._look_for_tls_at[address] = now + LOOK_FOR_TLS_SECONDS
            self._wrong_tls[address] = await asyncio.to_thread(self._what_is_wrong, address)
        return self._wrong_tls[address] or failures.sentence(error, address)

    async def _listener(self, address: str) -> int | None:
        """Return the uid that listens at a loopback address; None for other addresses.

        Refuse a uid other than the known one.
        """
        if not is_loopback_address(address):
            return None
        uid = await asyncio.to_thread(self._uid_of_listener, address)
        if not self._accept_cluster and (sentence := peer.refused(uid, address, self._state_file.memory)):
            raise NotWelcome(sentence)
        return uid

    def _in_time(self, seconds: float, tries: int = 1) -> float:
        """Limit a wait, whatever the settings say, so that the node is back before it counts as lost."""
        told = self._state_file.memory.offline_after_seconds
        return min(seconds, told / TRIES_IN_TIME / tries) if told > 0 else seconds

    async def _connect(self, address: str) -> None:
        """Register at one address and stay connected until the connection breaks."""
        uid = await self._listener(address)
        async with self._open_channel(address) as channel:
            stub = AgentsStub(channel)
            left = self._clock.boot()
            welcome = await self._register(stub, address)
            if uid is not None:
                self._state_file.memory.scheduler_uid = uid
            self._was_welcome = True
            self._fence_seconds = FENCE_PART * (welcome.offline_after_seconds or 15.0)
            self._extend_lease(left + self._fence_seconds)
            line = self._line = SchedulerLine(stub, ((SESSION, welcome.session),), left)
            self._done.clear()  # commands of earlier sessions cannot arrive any more
            for key, held in self.held.items():
                if held.end is not None:
                    line.report(key, self._boot_of(held.end.at), ended=self._ended(held.end))
            for key, sentence in self._refused.items():
                line.report(key, self._clock.boot(), ended=self._refusal(sentence))
            log.info("scheduler_connected", address=address, cluster=welcome.yard, epoch=welcome.epoch)
            try:
                await self._talk(line, welcome)
            finally:
                self._line = None
                self._state_file.save()

    def _grpc_channel(self, address: str) -> "grpc.aio.Channel":
        if self._credentials is None:
            return grpc.aio.insecure_channel(address, options=CHANNEL_OPTIONS)
        return grpc.aio.secure_channel(address, self._credentials, options=CHANNEL_OPTIONS)

    async def _register(self, stub: AgentsStub, address: str) -> pb.Welcome:
        seconds = self._in_time(self._connection_seconds, 2 * len(self._addresses))
        try:
            nonce = proof.new_nonce()
            asked = pb.ChallengeRequest(protocol=PROTOCOL, node=self._node.id, nonce=nonce)
            answer = await stub.challenge(asked, timeout=seconds, wait_for_ready=False)
            self._check_scheduler(answer, nonce, address)
            await self._end_absence(seconds)
            body = self._registration().SerializeToString()
            signed = pb.SignedRegistration(
                protocol=PROTOCOL,
                nonce=answer.nonce,
                agent_nonce=nonce,
                body=body,
                proof=proof.agent_proof(self._join_token, answer.nonce, nonce, body),
            )
            welcome = await stub.register(signed, timeout=seconds, wait_for_ready=False)
        except grpc.aio.AioRpcError as error:
            if error.code() in {
                grpc.StatusCode.UNAUTHENTICATED,
                grpc.StatusCode.FAILED_PRECONDITION,
                grpc.StatusCode.ALREADY_EXISTS,
                grpc.StatusCode.INVALID_ARGUMENT,
                grpc.StatusCode.ABORTED,
            }:
                raise NotWelcome(error.details() or "") from error
            raise
        memory = self._state_file.memory
        # A scheduler that is shown a later epoch than its own either stops or takes a higher one.
        _check_epoch(memory, welcome.epoch, welcome.origin)
        memory.yard, memory.epoch, memory.origin = welcome.yard, welcome.epoch, welcome.origin
        memory.epoch_proof = welcome.epoch_proof.hex()
        memory.offline_after_seconds = welcome.offline_after_seconds
        self._note_position(welcome.seq, welcome.hash)
        self._state_file.save()
        return welcome

    async def _end_absence(self, seconds: float) -> None:
        """Shorten the lease before registering: from then on the scheduler counts the node's silence again.

        An earlier agent may have extended the lease when it said goodbye. That extension ends now, and the supervisor
        must know this before the scheduler does.
        """
        if self._is_back:
            return
        lease_seconds = FENCE_PART * (self._state_file.memory.offline_after_seconds or 15.0)
        self.listed.clear()
        self._processes.send(messages.Shorten(lease_seconds), messages.ListAttempts())
        async with asyncio.timeout(seconds):
            await self.listed.wait()
        self._is_back = True

    def _check_scheduler(self, answer: pb.ChallengeAnswer, nonce: bytes, address: str) -> None:
        """Check that the answer comes from the scheduler of this node's cluster.

        Nothing more is sent to any other peer.
        """
        memory = self._state_file.memory
        if not self._join_token:
            raise NotWelcome(
                "This agent has no join token. Set agent.join_token to the token of the scheduler "
                "(auth.join_token there, or the file join_token in its data folder; an agent on the "
                "same machine finds that file if it can read it)."
            )
        expected = proof.scheduler_proof(self._join_token, nonce, self._node.id, answer)
        if not proof.proofs_equal(answer.proof, expected):
            raise NotWelcome(
                f"The process that answers at {address} does not know the join token of this node, so "
                "the node does not obey it. Set agent.join_token to the token of the scheduler "
                "(auth.join_token there, or the file join_token in its data folder), or check which "
                "process listens there."
            )
        if answer.yard == self._accept_cluster:
            self._state_file.belong_to(answer.yard)
        elif memory.yard and answer.yard != memory.yard:
            raise NotWelcome(
                f"The scheduler at {address} belongs to cluster {answer.yard}, and this node belongs "
                f"to cluster {memory.yard}. To move the node to that cluster, start this agent once "
                f"with --accept-cluster {answer.yard}."
            )

    def _registration(self) -> pb.Registration:
        memory = self._state_file.memory
        return pb.Registration(
            version=__version__,
            node=self._node,
            instance=memory.instance,
            yard=memory.yard,
            seq=memory.seq,
            hash=memory.hash,
            epoch=memory.epoch,
            origin=memory.origin,
            epoch_proof=bytes.fromhex(memory.epoch_proof),
            attempts=[
                *(self._attempt(key, held) for key, held in self.held.items()),
                *(self._launching(key) for key in self._processes.launching() if key not in self.held),
            ],
            address=self._address,
            highest_task=memory.task,
            boot=self._state_file.boot,
        )

    def _attempt(self, key: messages.AttemptKey, held: messages.HeldAttempt) -> pb.Attempt:
        over = held.phase is messages.ProcessPhase.ENDED
        return pb.Attempt(
            task=key.task,
            attempt=key.attempt,
            origin=key.origin,
            state=_STATES[held.phase],
            port=held.port,
            gpus=[] if over else self._launch_builder.gpus_of(key, held.pid),
            share=not over and self._launch_builder.has_share(key),
        )

    def _launching(self, key: messages.AttemptKey) -> pb.Attempt:
        """Describe an attempt that was sent to the supervisor and is not confirmed yet."""
        return pb.Attempt(
            task=key.task,
            attempt=key.attempt,
            origin=key.origin,
            state=pb.Attempt.PREPARED,
            gpus=self._launch_builder.gpus_of(key, 0),
            share=self._launch_builder.has_share(key),
        )

    def _note_position(self, seq: int, digest: str) -> None:
        memory = self._state_file.memory
        if seq >= memory.seq:
            memory.seq, memory.hash = seq, digest

    async def _talk(self, line: SchedulerLine, welcome: pb.Welcome) -> None:
        call = line.stub.connect(metadata=line.metadata)
        seconds = min(self._heartbeat_seconds, welcome.heartbeat_seconds or self._heartbeat_seconds)
        speaking = asyncio.create_task(self._speak(line, call))
        beating = asyncio.create_task(self._beat(line, seconds))
        try:
            while True:
                message = await call.read()
                if message is grpc.aio.EOF:  # type: ignore[attr-defined]
                    return
                self._obey(line, message)
        finally:
            for task in (speaking, beating):
                task.cancel()
            await asyncio.gather(speaking, beating, return_exceptions=True)
            call.cancel()

    async def _speak(self, line: SchedulerLine, call: Any) -> None:
        """Send everything queued, in messages of at most `MOST_IN_A_MESSAGE` reports."""
        while True:
            await line.woken.wait()
            line.woken.clear()
            while line.queue or line.heartbeat is not None or line.goodbye is not None:
                queued, line.queue = line.queue[:MOST_IN_A_MESSAGE], line.queue[MOST_IN_A_MESSAGE:]
                beat, line.heartbeat = line.heartbeat, None
                goodbye, line.goodbye = line.goodbye, None
                now = self._clock.boot()
                if beat is not None:
                    line.sent[beat.at] = now
                for report, at in queued:
                    report.seconds_ago = max(0.0, now - at)
                reports = [report for report, _ in queued]
                await call.write(pb.AgentMessage(reports=reports, heartbeat=beat, goodbye=goodbye))

    async def _beat(self, line: SchedulerLine, seconds: float) -> None:
        while True:
            try:
                beat = await self._heartbeat()
            except Exception:  # a failed measurement must not stop heartbeats: the node is up
                log.exception("measurement_failed")
                beat = pb.Heartbeat(at=self._clock.wall())
            self._say_how_the_supervisor_is(beat)
            strays = [key for key in self._strays if key in self.held]
            beat.strays.extend(pb.Stray(task=key.task, attempt=key.attempt, origin=key.origin) for key in strays)
            for key in strays:
                self._keep_away(beat, key)
            line.heartbeat = beat
            line.woken.set()
            self._state_file.save()
            await asyncio.sleep(seconds)

    def _say_how_the_supervisor_is(self, beat: pb.Heartbeat) -> None:
        """Report an unresponsive supervisor. Its GPUs go offline, because the node cannot start or end tasks."""
        silent_seconds = self._processes.silent_seconds
        if silent_seconds >= SILENT_SECONDS:
            if not self._is_silent:
                log.warning("supervisor_unresponsive", silent_seconds=round(silent_seconds, 1))
            beat.supervisor_silent_seconds = silent_seconds
            for use in beat.gpus:
                use.health = pb.GpuUse.OFFLINE
                use.why = f"The supervisor of the tasks on this node has not answered for {silent_seconds:.0f} s."
        self._is_silent = silent_seconds >= SILENT_SECONDS
        self._processes.ping()

    def _keep_away(self, beat: pb.Heartbeat, key: messages.AttemptKey) -> None:
        """Mark the GPUs of an attempt that the scheduler does not know as in use, so that they are not assigned."""
        for index in self._launch_builder.gpus_of(key, self.held[key].pid):
            for use in beat.gpus:
                if use.index == index:
                    use.health = pb.GpuUse.EXTERNAL
                    use.why = (
                        f"Attempt {key.attempt} of task {key.task}, which this scheduler does not know, runs on it."
                    )

    def _obey(self, line: SchedulerLine, message: pb.SchedulerMessage) -> None:
        memory = self._state_file.memory
        if message.epoch < memory.epoch:
            log.warning("old_scheduler_ignored", epoch=message.epoch, obeyed=memory.epoch)
            return
        self._note_position(message.seq, message.hash)
        if message.goodbye:
            line.said_goodbye.set()
        self._renew(line, message)
        if message.received:
            self._receive(line, message.received)
        for asked in message.commands:
            self._do(line, asked)

    def _renew(self, line: SchedulerLine, message: pb.SchedulerMessage) -> None:
        """Extend the lease of fenced attempts from the send time of the last heartbeat the scheduler has received.

        The scheduler counts its patience from the same time. The time at which this message was sent is unknown,
        because it may have been delayed on the way.
        """
        left = line.sent.get(message.heard)
        if left is not None:
            line.heard_at = left
            line.sent = {at: when for at, when in line.sent.items() if when > left}
        if left is not None or message.patience_seconds > 0:
            self._extend_lease(line.heard_at + max(self._fence_seconds, message.patience_seconds))

    def _extend_lease(self, until: float) -> None:
        self._lease_until = max(self._lease_until, until)
        self._processes.send(messages.Renew(max(0.0, until - self._clock.boot())))

    def _receive(self, line: SchedulerLine, number: int) -> None:
        """Forget attempts whose ends the scheduler has stored durably."""
        keys = [line.ends.pop(known) for known in list(line.ends) if known <= number]
        for key in keys:
            self._done[key] = None
            self.held.pop(key, None)
            self._refused.pop(key, None)
            self._rounds.pop(key, None)
            self._strays.pop(key, None)
            self._launch_builder.forget(key)
        if keys and not self._forgotten:
            asyncio.get_running_loop().call_later(FORGET_SECONDS, self._forget)
        self._forgotten += keys
        while len(self._done) > REMEMBERED:
            del self._done[next(iter(self._done))]

    def _forget(self) -> None:
        keys, self._forgotten = self._forgotten, []
        self._processes.send(messages.ForgetAttempts(tuple(keys)))

    def _do(self, line: SchedulerLine, asked: pb.Command) -> None:
        key = messages.AttemptKey(asked.task, asked.attempt, asked.origin)
        if key in self._later:
            self._later[key].append(asked)
            return
        # A lookup of the user may take seconds. Later commands for the same attempt wait for it, to keep their order.
        begins = asked.WhichOneof("what") == "launch" and key not in self.held
        looking = self._launch_builder.look_up(asked.launch) if begins else None
        if looking is None:
            self._carry_out(line, key, asked)
            return
        self._later[key] = [asked]
        self._keep(asyncio.create_task(self._carry_out_later(line, key, looking)))

    async def _carry_out_later(self, line: SchedulerLine, key: messages.AttemptKey, looking: Awaitable[None]) -> None:
        try:
            await looking
        finally:
            commands = self._later.pop(key)
            if self._line is line:  # otherwise the scheduler repeats the commands
                for asked in commands:
                    self._carry_out(line, key, asked)

    def _keep(self, task: "asyncio.Task[None]") -> None:
        self._streams.add(task)
        task.add_done_callback(self._streams.discard)

    def _carry_out(self, line: SchedulerLine, key: messages.AttemptKey, asked: pb.Command) -> None:
        match asked.WhichOneof("what"):
            case "launch":
                self._launch(line, key, asked.launch)
            case "start":
                self._processes.send(self._launch_builder.start(key, asked.start))
            case "stop":
                self._processes.send(messages.StopAttempt(key, self._launch_builder.grace_seconds))
            case "suspend":
                self._suspend(line, key, asked.suspend.round)
            case "resume":
                self._rounds[key] = asked.resume.round
                self._processes.send(messages.Resume(key))
            case "send_log":
                self._keep(asyncio.create_task(self._send_log(line, key, asked.send_log)))
            case "extend":
                self._processes.send(messages.Extend(key, asked.extend.seconds_left))
            case "stray":
                self._strays[key] = None

    def _launch(self, line: SchedulerLine, key: messages.AttemptKey, asked: pb.Launch) -> None:
        if key in self._done:
            return  # the scheduler has its end: this launch was sent before that
        self._state_file.memory.task = max(self._state_file.memory.task, key.task)
        held = self.held.get(key)
        if held is not None and held.phase in {messages.ProcessPhase.RUNNING, messages.ProcessPhase.SUSPENDED}:
            # The scheduler repeats a launch because the agent may be new; the attempt itself just continues.
            self._launch_builder.remember(key, asked)
            return
        made = self._launch_builder.launch(key, asked)
        if isinstance(made, str):
            self._refused[key] = made
            line.report(key, self._clock.boot(), ended=self._refusal(made))
            return
        # Without a lease the scheduler may already have started a fenced attempt on another node.
        if made.fence and key not in self.held and self._clock.boot() >= self._lease_until:
            late = pb.Ended(outcome=pb.Ended.FENCED, at=self._clock.wall(), message=TOO_LATE)
            line.report(key, self._clock.boot(), ended=late)
            return
        if made.lease and key not in self.held:
            self.held[key] = messages.HeldAttempt(key, messages.ProcessPhase.RUNNING, self._clock.wall(), lease=True)
        self._processes.send(made)
        log.info("attempt_launched", task_id=f"task-{key.task}", attempt=key.attempt, request_id=asked.request_id)

    def _suspend(self, line: SchedulerLine, key: messages.AttemptKey, round_: int) -> None:
        if sentence := self._launch_builder.why_not_suspend(key):
            line.report(key, self._clock.boot(), not_suspended=pb.Suspended(round=round_, message=sentence))
            return
        self._rounds[key] = round_
        self._processes.send(messages.Suspend(key))

    async def _send_log(self, line: SchedulerLine, key: messages.AttemptKey, asked: pb.SendLog) -> None:
        try:
            await line.stub.send_log(self._launch_builder.output(key, asked), metadata=line.metadata)
        except (grpc.aio.AioRpcError, asyncio.CancelledError) as end:
            log.debug("log_stream_ended", task=key.task, why=failures.raw(end))

    def _refusal(self, sentence: str) -> pb.Ended:
        return pb.Ended(outcome=pb.Ended.NOT_LAUNCHED, at=self._clock.wall(), message=sentence)


def _check_epoch(memory: AgentState, epoch: int, origin: int) -> None:
    """Refuse a scheduler of an older epoch than the last one obeyed, and a different one of the same epoch."""
    if epoch > memory.epoch or (epoch, origin) == (memory.epoch, memory.origin):
        return
    raise NotWelcome(
        f"The scheduler is at epoch {epoch}, and this node has obeyed epoch {memory.epoch} of another "
        "one: this scheduler is outdated or runs on a copy of the data folder. To continue with it, "
        "start it once with --take-over."
    )
