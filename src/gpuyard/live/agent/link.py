"""The agent's connection to the scheduler: finds it, reconnects, and repeats every report it may have missed.

The supervisor holds the tasks; the agent only forwards (attempt_relay.py). The supervisor forgets an end only after the
scheduler has stored it durably, so any of the three can be killed at any time:

    scheduler gone    ends wait with the supervisor and are reported at the next registration
    agent gone        the next agent asks the supervisor which attempts it holds, and registers with those
    supervisor gone   the next supervisor reads its log, adopts what still runs, and reports the rest as lost

The agent obeys a scheduler only if it proves that it knows the join token (wire/proof.py), runs the cluster this node
belongs to, and has an epoch that is not older than the last one obeyed. If the address is on this machine, the agent
also asks the kernel which user owns the listening socket. A node that votes obeys no scheduler of an epoch below the one
that its voter has promised (agent_voter.py).
"""

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import grpc
import grpc.aio
import structlog

from gpuyard.core.domain.errors import GpuyardError
from gpuyard.live.agent import failures, peer
from gpuyard.live.agent.agent_state import AgentState, AgentStateFile
from gpuyard.live.agent.attempt_relay import AttemptRelay
from gpuyard.live.agent.scheduler_addresses import reachable
from gpuyard.live.agent.scheduler_connection import SchedulerConnection
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
FAIL_OVER_SECONDS = 30.0
"""How long an agent with several addresses looks for the next scheduler at short intervals."""
LOOK_SECONDS = 0.2
"""Pause between two looks at several addresses, after a connection was lost."""
ANSWER_SECONDS = 0.5
"""Time for one of several addresses to accept a connection."""
WATCH_SECONDS = 0.5
"""How often a connected agent looks for a successor at its other addresses."""
SAME_SECONDS = 5.0
"""How long an address is left alone at which a scheduler answered that is not a successor, perhaps the same one."""
LOOK_FOR_TLS_SECONDS = 30.0
"""How long the result of a TLS check of an address stays valid."""
TRIES_IN_TIME = 3
"""A pause or connection attempt takes at most 1/3 of the time after which the scheduler counts the node as lost."""
GOODBYE_SECONDS = 3.0
"""How long a stopping agent waits until the scheduler acknowledges its goodbye."""
GOODBYE_MARGIN_SECONDS = 5.0
MOST_IN_A_MESSAGE = 500
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

log = structlog.get_logger()


class RegistrationRefused(GpuyardError):
    """The scheduler does not let this node in; its sentence says what to change."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkOptions:
    """Values that do not change while the agent runs."""

    address: str
    """The address of this node, for other nodes of a gang."""
    addresses: tuple[str, ...]
    """Where schedulers may be, in the order to try."""
    join_token: str
    accept_cluster: str = ""
    """The cluster that the administrator lets this node move to, once its scheduler has proven itself."""
    heartbeat_seconds: float = 5.0
    connection_seconds: float = 10.0
    retry_seconds: float = 2.0
    max_retry_seconds: float = 30.0
    away_seconds: float = 300.0
    """The absence to announce when this agent stops on purpose."""


def channel_to(address: str, credentials: "grpc.ChannelCredentials | None" = None) -> "grpc.aio.Channel":
    """Open a gRPC channel to a scheduler, with TLS if there are credentials."""
    if credentials is None:
        return grpc.aio.insecure_channel(address, options=CHANNEL_OPTIONS)
    return grpc.aio.secure_channel(address, credentials, options=CHANNEL_OPTIONS)


class AgentLink:
    """Keeps a node connected to its scheduler."""

    def __init__(
        self,
        node: pb.Node,
        options: LinkOptions,
        state_file: AgentStateFile,
        processes: SupervisorClient,
        relay: AttemptRelay,
        heartbeat: Callable[[], Awaitable[pb.Heartbeat]],
        *,
        promised: Callable[[str], int] = lambda _: 0,
        vote_at: Callable[[str, tuple[str, ...]], None] = lambda _cluster, _addresses: None,
        reached_at: Callable[[str], None] = lambda _address: None,
        uid_of_listener: Callable[[str], int | None] = lambda _: None,
        what_is_wrong: Callable[[str], str] = lambda _: "",
        clock: Clock = SYSTEM_CLOCK,
        uniform: Callable[[float, float], float] = random.uniform,
        open_channel: "Callable[[str], grpc.aio.Channel]" = channel_to,
        accepts: Callable[[str], Awaitable[bool]] | None = None,
    ) -> None:
        """`promised`: the highest epoch that this node has granted in a cluster.

        `vote_at`: called with where its voter connects to; `reached_at`: with the address of a scheduler that admits it.
        `accepts`: whether a process listens at an address.
        """
        self._node = node
        self._options = options
        self._state_file = state_file
        self._processes = processes
        self._relay = relay
        self._heartbeat = heartbeat
        self._promised = promised
        self._vote_at = vote_at
        self._reached_at = reached_at
        self._uid_of_listener = uid_of_listener
        self._what_is_wrong = what_is_wrong
        self._clock = clock
        self._uniform = uniform
        self._open_channel = open_channel
        self._accepts = accepts or accepts_connections
        self._look_for_tls_at: dict[str, float] = {}
        self._wrong_tls: dict[str, str] = {}
        self._offline_after_seconds = 0.0
        self._fence_seconds = 0.0
        self._was_welcome = False
        self._is_back = False
        self._is_silent = False

    async def run(self) -> None:
        """Run forever. An error of the supervisor ends the agent and is raised as it is, with its own message."""
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._relay.listen())
                group.create_task(self._stay_connected())
        except ExceptionGroup as failed:
            raise failed.exceptions[0] from None

    async def say_goodbye(self) -> None:
        """Tell the scheduler that this agent stops on purpose and will be back, so it is not counted as lost."""
        connection = self._relay.connection
        if connection is None or self._options.away_seconds <= 0:
            return
        left = self._clock.boot()
        connection.goodbye = pb.Goodbye(back_within_seconds=self._options.away_seconds)
        connection.woken.set()
        try:
            async with asyncio.timeout(GOODBYE_SECONDS):
                await connection.said_goodbye.wait()
        except TimeoutError:
            log.warning(
                "goodbye_unacknowledged",
                message=(
                    "The scheduler did not acknowledge the goodbye; it counts this node as lost after the usual time."
                ),
            )
            return
        self._relay.extend_lease(left + max(0.0, self._options.away_seconds - GOODBYE_MARGIN_SECONDS))

    async def _stay_connected(self) -> None:
        await self._relay.listed.wait()
        backoff, place = Backoff(self._options.retry_seconds, self._options.max_retry_seconds), 0
        addresses = self._options.addresses
        address = addresses[0]
        while True:
            try:
                successor = await self._connect(address)
                log.info("scheduler_disconnected", address=address)
                if successor is not None:
                    address, self._was_welcome = successor, False
                    backoff.reset()
                    continue
            except RegistrationRefused as refusal:
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
                if len(addresses) > 1 and (found := await self._look_for_another(address)):
                    address = found
                    continue
            place += 1
            address = addresses[place % len(addresses)]
            if place % len(addresses) == 0:
                pause = self._in_time(backoff.next())
                await asyncio.sleep(pause * self._uniform(0.5, 1.0))  # jitter: nodes must not reconnect all at once

    async def _look_for_another(self, lost: str) -> str | None:
        """Return an address that accepts connections, after the connection to one was lost; None: none does.

        A scheduler that only follows does not listen for agents. All addresses are tried at once, because one that does
        not answer must not hold up the others. The lost one comes last: its process may have stopped working.
        """
        until = self._clock.boot() + self._in_time(FAIL_OVER_SECONDS)
        others = sorted(self._options.addresses, key=lambda address: address == lost)
        while self._clock.boot() < until:
            accepted = await asyncio.gather(*map(self._accepts, others))
            if found := [address for address, is_open in zip(others, accepted, strict=True) if is_open]:
                return found[0]
            await asyncio.sleep(LOOK_SECONDS * self._uniform(0.5, 1.0))
        return None

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
        if not self._options.accept_cluster and (sentence := peer.refused(uid, address, self._state_file.memory)):
            raise RegistrationRefused(sentence)
        return uid

    def _in_time(self, seconds: float, tries: int = 1) -> float:
        """Limit a wait, whatever the settings say, so that the node is back before it counts as lost."""
        told = self._state_file.memory.offline_after_seconds
        return min(seconds, told / TRIES_IN_TIME / tries) if told > 0 else seconds

    async def _connect(self, address: str) -> str | None:
        """Register at one address and stay connected until the connection ends; return the address of a successor."""
        uid = await self._listener(address)
        async with self._open_channel(address) as channel:
            stub = AgentsStub(channel)
            left = self._clock.boot()
            welcome = await self._register(stub, address)
            if uid is not None:
                self._state_file.memory.scheduler_uid = uid
            self._was_welcome = True
            self._offline_after_seconds = welcome.offline_after_seconds or 15.0
            self._fence_seconds = FENCE_PART * self._offline_after_seconds
            self._relay.extend_lease(left + self._fence_seconds)
            connection = SchedulerConnection(
                stub, ((SESSION, welcome.session),), left, left + self._offline_after_seconds
            )
            self._relay.begin(connection)
            log.info("scheduler_connected", address=address, cluster=welcome.yard, epoch=welcome.epoch)
            try:
                return await self._talk_until_succeeded(connection, welcome, address)
            finally:
                self._relay.connection = None
                self._state_file.save()

    async def _talk_until_succeeded(
        self, connection: SchedulerConnection, welcome: pb.Welcome, address: str
    ) -> str | None:
        """Talk until the connection ends, or another scheduler has taken over; return the address of that one.

        A scheduler that stands still keeps its connections: only its successor shows that it is not obeyed any more.
        """
        others = [other for other in self._options.addresses if other != address]
        if not others:
            await self._talk(connection, welcome)
            return None
        talking = asyncio.create_task(self._talk(connection, welcome))
        watching = asyncio.create_task(self._watch(others))
        try:
            await asyncio.wait((talking, watching), return_when=asyncio.FIRST_COMPLETED)
            if talking.done():
                await talking
                return None
            return await watching
        finally:
            for task in (talking, watching):
                task.cancel()
            await asyncio.gather(talking, watching, return_exceptions=True)

    async def _watch(self, others: list[str]) -> str:
        """Return the address of a scheduler of a higher epoch as soon as there is one."""
        look_at = dict.fromkeys(others, 0.0)
        while True:
            await asyncio.sleep(WATCH_SECONDS * self._uniform(0.5, 1.0))
            now = self._clock.boot()
            due = [other for other in others if look_at[other] <= now]
            accepted = await asyncio.gather(*map(self._accepts, due))
            for other in (other for other, is_open in zip(due, accepted, strict=True) if is_open):
                if await self._is_successor(other):
                    return other
                look_at[other] = self._clock.boot() + SAME_SECONDS

    async def _is_successor(self, address: str) -> bool:
        """Whether a scheduler of this cluster answers there that has a higher epoch than the one obeyed."""
        nonce, memory = proof.new_nonce(), self._state_file.memory
        asked = pb.ChallengeRequest(protocol=PROTOCOL, nonce=nonce)  # without a node: it does not register
        try:
            async with self._open_channel(address) as channel:
                answer = await AgentsStub(channel).challenge(asked, timeout=ANSWER_SECONDS, wait_for_ready=False)
        except (grpc.aio.AioRpcError, TimeoutError, OSError):
            return False
        expected = proof.scheduler_proof(self._options.join_token, nonce, "", answer)
        is_proven = proof.proofs_equal(answer.proof, expected) and answer.yard == memory.cluster_id
        return is_proven and answer.epoch > memory.epoch and answer.epoch >= self._promised(answer.yard)

    async def _register(self, stub: AgentsStub, address: str) -> pb.Welcome:
        seconds = self._in_time(self._options.connection_seconds, 2 * len(self._options.addresses))
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
                proof=proof.agent_proof(self._options.join_token, answer.nonce, nonce, body),
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
                raise RegistrationRefused(error.details() or "") from error
            raise
        memory = self._state_file.memory
        # A scheduler that is shown a later epoch than its own either stops or takes a higher one.
        _check_epoch(memory, welcome.epoch, welcome.origin)
        memory.cluster_id, memory.epoch, memory.origin = welcome.yard, welcome.epoch, welcome.origin
        memory.epoch_proof = welcome.epoch_proof.hex()
        memory.offline_after_seconds = welcome.offline_after_seconds
        memory.voting = reachable(welcome.voting, address)
        self._vote_at(memory.cluster_id, memory.voting)
        self._reached_at(address)
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
        await self._relay.shorten_lease(lease_seconds, seconds)
        self._is_back = True

    def _check_scheduler(self, answer: pb.ChallengeAnswer, nonce: bytes, address: str) -> None:
        """Check that the answer comes from the scheduler of this node's cluster.

        Nothing more is sent to any other peer.
        """
        memory = self._state_file.memory
        if not self._options.join_token:
            raise RegistrationRefused(
                "This agent has no join token. Set agent.join_token to the token of the scheduler "
                "(auth.join_token there, or the file join_token in its data folder; an agent on the "
                "same machine finds that file if it can read it)."
            )
        expected = proof.scheduler_proof(self._options.join_token, nonce, self._node.id, answer)
        if not proof.proofs_equal(answer.proof, expected):
            raise RegistrationRefused(
                f"The process that answers at {address} does not know the join token of this node, so "
                "the node does not obey it. The node uses agent.join_token or, if that is not set, a file join_token "
                "on this machine. Set agent.join_token to the token of the scheduler "
                "(auth.join_token there, or the file join_token in its data folder), or check which "
                "process listens there."
            )
        if answer.yard == self._options.accept_cluster:
            self._state_file.belong_to(answer.yard)
        elif memory.cluster_id and answer.yard != memory.cluster_id:
            raise RegistrationRefused(
                f"The scheduler at {address} belongs to cluster {answer.yard}, and this node belongs "
                f"to cluster {memory.cluster_id}. To move the node to that cluster, start this agent once "
                f"with --accept-cluster {answer.yard}."
            )
        if answer.epoch < (promised := self._promised(answer.yard)):
            raise RegistrationRefused(
                f"The scheduler at {address} is at epoch {answer.epoch}, and the voter of this node has promised epoch "
                f"{promised} to another one. It is tried again; a scheduler that leads takes a higher epoch by itself."
            )

    def _registration(self) -> pb.Registration:
        memory = self._state_file.memory
        return pb.Registration(
            version=__version__,
            node=self._node,
            instance=memory.instance,
            yard=memory.cluster_id,
            seq=memory.seq,
            hash=memory.hash,
            epoch=memory.epoch,
            origin=memory.origin,
            epoch_proof=bytes.fromhex(memory.epoch_proof),
            attempts=self._relay.attempts(),
            address=self._options.address,
            highest_task=memory.task,
            boot=self._state_file.boot,
            channels=True,
        )

    def _note_position(self, seq: int, digest: str) -> None:
        memory = self._state_file.memory
        if seq >= memory.seq:
            memory.seq, memory.hash = seq, digest

    async def _talk(self, connection: SchedulerConnection, welcome: pb.Welcome) -> None:
        call = connection.stub.connect(metadata=connection.metadata)
        seconds = min(self._options.heartbeat_seconds, welcome.heartbeat_seconds or self._options.heartbeat_seconds)
        speaking = asyncio.create_task(self._speak(connection, call))
        beating = asyncio.create_task(self._beat(connection, seconds))
        try:
            while True:
                message = await call.read()
                if message is grpc.aio.EOF:  # type: ignore[attr-defined]
                    return
                if not self._obey(connection, message):
                    return
        finally:
            for task in (speaking, beating):
                task.cancel()
            await asyncio.gather(speaking, beating, return_exceptions=True)
            call.cancel()

    async def _speak(self, connection: SchedulerConnection, call: Any) -> None:
        """Send everything queued, in messages of at most `MOST_IN_A_MESSAGE` reports."""
        while True:
            await connection.woken.wait()
            connection.woken.clear()
            while connection.queue or connection.heartbeat is not None or connection.goodbye is not None:
                queued, connection.queue = connection.queue[:MOST_IN_A_MESSAGE], connection.queue[MOST_IN_A_MESSAGE:]
                beat, connection.heartbeat = connection.heartbeat, None
                goodbye, connection.goodbye = connection.goodbye, None
                now = self._clock.boot()
                if beat is not None:
                    connection.sent[beat.at] = now
                for report, at in queued:
                    report.seconds_ago = max(0.0, now - at)
                reports = [report for report, _ in queued]
                await call.write(pb.AgentMessage(reports=reports, heartbeat=beat, goodbye=goodbye))

    async def _beat(self, connection: SchedulerConnection, seconds: float) -> None:
        while True:
            try:
                beat = await self._heartbeat()
            except Exception:  # a failed measurement must not stop heartbeats: the node is up
                log.exception("measurement_failed")
                beat = pb.Heartbeat(at=self._clock.wall())
            self._say_how_the_supervisor_is(beat)
            self._relay.report_unknown_attempts(beat)
            if connection.round_trip_seconds is not None:
                beat.round_trip_seconds = connection.round_trip_seconds
            connection.heartbeat = beat
            connection.woken.set()
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

    def _obey(self, connection: SchedulerConnection, message: pb.SchedulerMessage) -> bool:
        """Carry out a message; return False if it is outdated, and the agent has to register again.

        It is if this process stood still, or its heartbeats were delayed, for longer than the scheduler waits for it.
        """
        memory = self._state_file.memory
        if message.epoch < (obeyed := max(memory.epoch, self._promised(memory.cluster_id))):
            log.warning("old_scheduler_ignored", epoch=message.epoch, obeyed=obeyed)
            return True
        self._renew(connection, message)
        late_seconds = self._clock.boot() - connection.awaited_until
        if late_seconds > 0:
            log.warning("commands_outdated", late_seconds=round(late_seconds, 1))
            return False
        self._note_position(message.seq, message.hash)
        if message.goodbye:
            connection.said_goodbye.set()
        if message.received:
            self._relay.received(connection, message.received)
        for asked in message.commands:
            self._relay.do(connection, asked)
        return True

    def _renew(self, connection: SchedulerConnection, message: pb.SchedulerMessage) -> None:
        """Extend the lease of fenced attempts from the send time of the last heartbeat the scheduler has received.

        The scheduler counts the announced absence from the same time. The time at which this message was sent is unknown,
        because it may have been delayed on the way.
        """
        left = connection.sent.get(message.heard)
        if left is not None:
            connection.round_trip_seconds = self._clock.boot() - left
            connection.heard_at = left
            connection.sent = {at: when for at, when in connection.sent.items() if when > left}
        if left is not None or message.patience_seconds > 0:
            connection.awaited_until = connection.heard_at + max(self._offline_after_seconds, message.patience_seconds)
            self._relay.extend_lease(connection.heard_at + max(self._fence_seconds, message.patience_seconds))


async def accepts_connections(address: str) -> bool:
    """Return whether a process listens at this address."""
    host, _, port = address.rpartition(":")
    try:
        async with asyncio.timeout(ANSWER_SECONDS):
            _, writer = await asyncio.open_connection(host.strip("[]"), int(port))
    except (OSError, TimeoutError, ValueError):
        return False
    writer.close()
    return True


def _check_epoch(memory: AgentState, epoch: int, origin: int) -> None:
    """Refuse a scheduler of an older epoch than the last one obeyed, and a different one of the same epoch."""
    if epoch > memory.epoch or (epoch, origin) == (memory.epoch, memory.origin):
        return
    raise RegistrationRefused(
        f"The scheduler is at epoch {epoch}, and this node has obeyed epoch {memory.epoch} of another "
        "one: this scheduler is outdated or runs on a copy of the data folder. To continue with it, "
        "start it once with --take-over."
    )
