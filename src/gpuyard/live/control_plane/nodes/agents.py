"""The scheduler's side of the connections to agents: registration, commands and reports.

Commands follow from committed facts. A connected node gets them as the facts come. For a node that connects, they are
computed from the current state (reconcile). So nothing is stored for absent nodes, and repetition does no harm: every
command is safe to repeat.

A node is lost after `offline_after_seconds` of silence. Not counted are the time in which this process was stalled, the
time for which a predecessor asked the nodes to be patient, and the absence that an agent announced when it was stopped
on purpose. A successor gives every node at least as much time as its predecessor did.

A scheduler has one epoch, which begins with its process and is never raised by a message of an agent. If an agent shows
the proof of a later epoch, this scheduler no longer controls the cluster and stops. Only an operator can override this,
with --take-over.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import suppress
from math import isfinite
from typing import Any, NoReturn

import grpc
import grpc.aio
import structlog

from gpuyard.core.domain import commands as command
from gpuyard.core.domain import events as fact
from gpuyard.core.domain.errors import GpuyardError, StorageFull
from gpuyard.core.domain.node import NodeSpec
from gpuyard.core.domain.placement import Slice
from gpuyard.core.domain.refusals import Refusal
from gpuyard.core.domain.values import MILLI, AttemptRef, GpuHealth, NodeId, TaskId, TenantId
from gpuyard.core.engine.phases import Placed
from gpuyard.core.engine.state import State
from gpuyard.core.journal.records import Position, Record
from gpuyard.input.strict import WrongRequest
from gpuyard.live.control_plane.loop import Broken, EngineLoop
from gpuyard.live.control_plane.nodes import launches
from gpuyard.live.control_plane.nodes.outputs import Outputs
from gpuyard.live.control_plane.nodes.reconcile import Reconciled, reconcile
from gpuyard.live.control_plane.nodes.refused_agents import RefusedAgents
from gpuyard.live.control_plane.nodes.sessions import AgentSession
from gpuyard.live.control_plane.views import Views
from gpuyard.live.wire import agents_pb2 as pb
from gpuyard.live.wire import proof
from gpuyard.live.wire.rpc import (
    PROTOCOL,
    SESSION,
    actual_of,
    attempt_of,
    health_of,
    heartbeat_of,
    node_spec_of,
    outcome_of,
)
from gpuyard.version import __version__

CHECK_SECONDS = 1.0
"""Interval of the check for silent nodes."""
HEARTBEAT_SECONDS = 5.0
BEATS_TO_MISS = 3
"""Minimum number of heartbeats within the time after which a node is lost, whatever that time is."""
MOST_AWAY_SECONDS = 86_400.0
"""Maximum absence that an agent may announce."""
UNKNOWN_ABSENCE_SECONDS = 300.0
"""How long to wait for absent nodes if the journal is an old copy, which may lack the facts of their planned stops."""
MOST_AGO_SECONDS = 30 * 86_400.0
TRIES = 3
"""A report that breaks the engine this many times is acknowledged and dropped: it would break it forever."""
STALLED_SECONDS = 2.0
"""A check that is late by more than this means that this process was stalled, not the nodes."""

_FAILED = grpc.StatusCode.FAILED_PRECONDITION
_UNKNOWN = grpc.StatusCode.UNAUTHENTICATED
_WRONG = grpc.StatusCode.INVALID_ARGUMENT

SecretLookup = Callable[[TaskId], Mapping[str, str]]
log = structlog.get_logger()


class Deposed(GpuyardError):
    """Another scheduler of this yard has begun a later epoch. This one has stopped."""


def refuse_unsafe_node(spec: NodeSpec, unsafe_labels: frozenset[tuple[str, str]]) -> str:
    """Return why a node must not join, because its tasks would be admins; empty if they would not."""
    if unsafe_labels.isdisjoint(spec.labels):
        return ""
    return (
        f"Node {spec.id} runs tasks of users who log in (executor.shared_user) with a uid that "
        "auth.local_admin admits as an administrator without a login. Remove auth.local_admin from "
        "the settings of the scheduler, or remove executor.shared_user from the settings of the node "
        "and map its tenants to system users."
    )


class AgentConnections:
    """All agents. Implements the gRPC service and converts facts to commands."""

    def __init__(
        self,
        loop: EngineLoop,
        views: Views,
        *,
        join_token: str,
        secrets: SecretLookup,
        run_as: Callable[[TenantId, str], str] = lambda _tenant, _user: "",
        heartbeat_seconds: float = HEARTBEAT_SECONDS,
        offline_after_seconds: float = 15.0,
        check_seconds: float = CHECK_SECONDS,
        cluster_key: bytes = b"",
        take_over: bool = False,
        draw_origin: Callable[[], int],
        unsafe_labels: frozenset[tuple[str, str]] = frozenset(),
        position_at: Callable[[int], Position | None] = lambda _: None,
    ) -> None:
        self.sessions: dict[NodeId, AgentSession] = {}
        self.outputs = Outputs(self.sessions)
        self.telemetry: dict[NodeId, pb.Heartbeat] = {}
        """The last heartbeat of each node."""
        self._loop = loop
        self._views = views
        self._join_token = join_token
        self._secrets = secrets
        self._run_as = run_as
        self._heartbeat_seconds = min(heartbeat_seconds, offline_after_seconds / BEATS_TO_MISS)
        self._offline_after_seconds = offline_after_seconds
        self._check_seconds = check_seconds
        self._cluster_key = cluster_key
        self._take_over = take_over
        self._draw_origin = draw_origin
        self._unsafe_labels = unsafe_labels
        """Labels of nodes whose tasks would be admins here."""
        self._believed = False
        """True after one unproven claim of a later epoch was accepted, as --take-over allows."""
        self._position_at = position_at
        self._nonces = proof.NonceIssuer()
        self._refused = RefusedAgents()
        self.deposed: asyncio.Future[None] | None = None
        """Fails when another scheduler is known to have taken over."""
        before = loop.engine.state
        self._predecessor_seconds = before.offline_after_seconds
        self._patience_left = max(0.0, before.patient_until - before.now)
        self._away_left = {node: max(0.0, by - before.now) for node, by in before.back_by.items()}
        """Remaining announced absence, in seconds, of nodes that were away on purpose when this scheduler started."""
        self._patient_until = 0.0
        self._away_until: dict[NodeId, float] = {}
        self._last_heard: dict[NodeId, float] = {}
        self._checked_at = float("inf")
        """Time of the last check by `watch`; infinite until it starts."""
        self._registering: dict[NodeId, list[tuple[str, str]]] = {}
        """Nodes whose registration is in progress. A registration that is refused is not a sign of life."""
        self._by_session: dict[str, AgentSession] = {}
        self._broke: dict[tuple[NodeId, AttemptRef], int] = {}
        """Number of times that the reports of an attempt broke the engine."""
        self._gangs: dict[AttemptRef, PendingGang] = {}
        self._stopping = False

    # --- what the engine decided -------------------------------------------------------------------------------------

    def hear(self, record: Record) -> None:
        """Send the commands that follow from a committed fact."""
        event = record.fact
        if isinstance(event, fact.TaskPlaced):
            self._launch(event)
        elif isinstance(event, fact.AttemptStopping):
            self._send_to_all(event.task, launches.stop(self._ref(event), event.cause.sentence()))
        elif isinstance(event, fact.AttemptSuspending):
            self._send_to_all(event.task, launches.suspend(self._ref(event), event.round))
        elif isinstance(event, fact.AttemptResuming):
            for part in event.placement.slices:
                self._send(part.node, launches.resume(self._ref(event), part.gpus, event.round))
        elif isinstance(event, fact.TaskExtended):
            self._extend(event.task)
        elif isinstance(event, fact.SuspensionFailed):
            placement = self._views.tasks[event.task].placement
            for part in placement.slices if placement and len(placement.slices) > 1 else ():
                self._send(part.node, launches.resume(self._ref(event), part.gpus, event.round))
        elif isinstance(event, fact.AttemptEnded):
            self._gangs.pop(self._ref(event), None)

    def _ref(self, event: Any) -> AttemptRef:
        """Return the attempt of a committed fact, which is the last one of its task."""
        return AttemptRef(event.task, event.attempt, self._views.tasks[event.task].origin)

    def _extend(self, task: TaskId) -> None:
        """Send a changed timeout to the nodes, because they enforce timeouts themselves."""

        def tell(asked: "asyncio.Future[pb.Command | None]") -> None:
            if asked.cancelled():
                return
            if asked.exception() is not None:
                self.reset_sessions()  # the disk may be full: it is sent when the nodes register again
            elif (said := asked.result()) is not None:
                self._send_to_all(task, said)

        self._loop.look(lambda state, now: launches.extend(state.tasks.get(task), now)).add_done_callback(tell)

    def _launch(self, event: fact.TaskPlaced) -> None:
        spec = self._views.tasks[event.task].spec
        gang, ref = len(event.placement.slices) > 1, self._ref(event)
        if gang:
            self._gangs[ref] = PendingGang(event.placement.nodes)
        for part in event.placement.slices:
            said = launches.launch(ref, spec, part, gang=gang)
            self._complete(said, with_secrets=True)
            self._send(part.node, said)

    def _complete(self, said: pb.Command, *, with_secrets: bool) -> None:
        """Add the submitter, secrets and system user to a launch; only the views and other stores have them."""
        view = self._views.tasks.get(TaskId(said.task))
        if view is None:
            return  # it has ended and is being archived
        said.launch.by_owner = is_owner(view.by)
        said.launch.request_id = view.request_id
        said.launch.run_as = self._run_as(view.spec.tenant, "" if is_owner(view.by) else view.spec.user)
        if with_secrets and view.spec.secrets:
            said.launch.secrets.update(self._secrets(view.id))

    def _send(self, node: NodeId, *commands: pb.Command) -> None:
        session = self.sessions.get(node)
        if session is not None and session.connected:
            session.send(commands)

    def _send_to_all(self, task: TaskId, said: pb.Command) -> None:
        view = self._views.tasks.get(task)
        for node in view.placement.nodes if view is not None and view.placement is not None else ():
            self._send(node, said)

    # --- registration ------------------------------------------------------------------------------------------------

    async def challenge(self, request: pb.ChallengeRequest, context: Any) -> pb.ChallengeAnswer:
        """Prove to any client that this scheduler knows the join token. The answer reveals no task or user."""
        if request.protocol != PROTOCOL or len(request.nonce) != proof.NONCE_BYTES:
            message = _other_protocol(request.protocol)
            await self._refuse(context, _FAILED, "OtherProtocol", message, request.node)
        if not self._join_token:
            message = (
                "This scheduler has no join token, so agents cannot join. Set auth.join_token and "
                "restart the scheduler."
            )
            await self._refuse(context, _UNKNOWN, "NoJoinToken", message, request.node)
        state = self._loop.engine.state
        answer = pb.ChallengeAnswer(
            protocol=PROTOCOL,
            nonce=self._nonces.give(request.nonce, _now()),
            yard=state.yard,
            epoch=state.epoch,
            origin=state.origin,
            version=__version__,
        )
        answer.proof = proof.scheduler_proof(self._join_token, request.nonce, request.node, answer)
        self._refused.challenged(_now(), answer.nonce, request.node, context.peer())
        return answer

    async def _refuse(
        self, context: Any, code: grpc.StatusCode, why: str, message: str, node: str = "", *, proven: bool = False
    ) -> NoReturn:
        """Reject an agent with a message, and log it."""
        self._refused.refused(_now(), why, message, peer=context.peer(), node=node, proven=proven)
        await context.abort(code, message)
        raise AssertionError("an aborted call does not continue")

    async def register(self, signed: pb.SignedRegistration, context: Any) -> pb.Welcome:
        """Admit a node, or reject it with a reason."""
        request = await self._proven(signed, context)
        state = self._loop.engine.state
        if request.yard and request.yard != state.yard:
            message = (
                f"This node belongs to cluster {request.yard}, and this scheduler belongs to cluster "
                f"{state.yard}. Check scheduler.master_address. To move the node here, start its "
                f"agent with --accept-cluster {state.yard}."
            )
            await self._refuse(context, _FAILED, "OtherCluster", message, request.node.id, proven=True)
        try:
            spec = node_spec_of(request.node)
        except WrongRequest as wrong:
            await self._refuse(context, _WRONG, wrong.code, wrong.message, request.node.id, proven=True)
        if sentence := refuse_unsafe_node(spec, self._unsafe_labels):
            await self._refuse(context, _FAILED, "TasksWouldBeAdmins", sentence, spec.id, proven=True)
        if self._loop.full:
            await context.abort(grpc.StatusCode.UNAVAILABLE, self._loop.full)
        await self._refuse_double(spec.id, request.instance, request.boot, context)
        agent = (request.instance, request.boot)
        self._registering.setdefault(spec.id, []).append(agent)  # a node that is registering must not be declared lost
        try:
            await self._check_epoch(request, context)
            await self._notice_lost_facts(request, context)
            there = {attempt_of(it): int(it.state) for it in request.attempts}
            answer = await self._loop.tell(_joining(spec, request), f"agent:{spec.id}")
            if isinstance(answer, Refusal):
                await self._refuse(context, _FAILED, answer.code, answer.sentence(), spec.id, proven=True)
            self._hear_from(spec.id)
        except asyncio.CancelledError:  # the agent timed out on a slow disk: not admitted, but alive
            self._hear_from(spec.id)
            raise
        finally:
            self._registering[spec.id].remove(agent)
            if not self._registering[spec.id]:
                del self._registering[spec.id]
        session = AgentSession(request, there)
        if (old := self.sessions.get(spec.id)) is not None:
            old.close()
            self._by_session.pop(old.id, None)
        self.sessions[spec.id] = self._by_session[session.id] = session
        self._away_until.pop(spec.id, None)
        self._hear_from(spec.id)
        log.info("agent_registered", node_id=spec.id, gpus=len(spec.gpus), version=request.version, attempts=len(there))
        state = self._loop.engine.state
        return pb.Welcome(
            yard=state.yard,
            epoch=state.epoch,
            seq=self._loop.committed,
            hash=self._loop.committed_hash,
            session=session.id,
            heartbeat_seconds=self._heartbeat_seconds,
            offline_after_seconds=self._offline_after_seconds,
            version=__version__,
            origin=state.origin,
            epoch_proof=proof.epoch_proof(self._cluster_key, state.yard, state.epoch, state.origin),
        )

    async def _proven(self, signed: pb.SignedRegistration, context: Any) -> pb.Registration:
        """Return the registration if the sender knows the join token. It is not decoded before that is proven."""
        self._refused.answered(signed.nonce)
        if signed.protocol != PROTOCOL:
            await self._refuse(context, _FAILED, "OtherProtocol", _other_protocol(signed.protocol))
        if not self._nonces.is_good(signed.nonce, signed.agent_nonce, _now()):
            message = "This registration does not answer a current challenge of this scheduler. Try again."
            await self._refuse(context, _UNKNOWN, "OldChallenge", message)
        expected = proof.agent_proof(self._join_token, signed.nonce, signed.agent_nonce, signed.body)
        if not proof.proofs_equal(signed.proof, expected):
            message = "The join token is wrong. Set agent.join_token of the agent to the value of auth.join_token."
            await self._refuse(context, _UNKNOWN, "WrongJoinToken", message)
        self._nonces.use(signed.nonce, _now())
        try:
            return pb.Registration.FromString(signed.body)
        except Exception:
            await self._refuse(context, _WRONG, "NotReadable", "This registration cannot be parsed.")

    async def _refuse_double(self, node: NodeId, instance: str, boot: str, context: Any) -> None:
        """Reject a second agent for a node unless the known one has been silent for as long as a lost node."""
        known = self._loop.engine.state.agents.get(node)
        if any(other != (instance, boot) for other in self._registering.get(node, ())):
            message = (
                f"Another agent with the id {node} is registering. Give each agent its own agent.id "
                "and work folder. This agent can join when the other one is rejected or counts as "
                "lost."
            )
            await self._refuse(context, grpc.StatusCode.ALREADY_EXISTS, "NameTaken", message, node, proven=True)
        if known is None or known == (instance, boot):
            return
        silent = max(0.0, _now() - self._last_heard.get(node, float("-inf")) - self._standing_still())
        expected = known[0] != instance and _now() < self._away_until.get(node, 0.0)  # it may come back rebooted
        if silent < self._offline_after_seconds or expected:
            same = (
                "the same work folder on another machine or after a reboot" if known[0] == instance else "another one"
            )
            message = (
                f"Another agent with the id {node} was connected {silent:.0f} s ago, and this is "
                f"{same}. Give each agent its own agent.id and work folder. An agent that was moved "
                "or rebooted can join when the old one has been silent for "
                f"{self._offline_after_seconds:.0f} s."
            )
            await self._refuse(context, grpc.StatusCode.ALREADY_EXISTS, "NameTaken", message, node, proven=True)

    def _standing_still(self) -> float:
        """Return how long this process was stalled, if it has just resumed: that time is not silence of an agent."""
        late = _now() - self._checked_at - self._check_seconds
        return late if late > STALLED_SECONDS else 0.0

    async def _check_epoch(self, request: pb.Registration, context: Any) -> None:
        """Check whether a node has obeyed a later scheduler: then this one no longer controls the cluster."""
        state = self._loop.engine.state
        if request.epoch < state.epoch or (request.epoch, request.origin) == (state.epoch, state.origin):
            return
        shown = proof.epoch_proof(self._cluster_key, state.yard, request.epoch, request.origin)
        proven = proof.proofs_equal(request.epoch_proof, shown)
        obeyed = (
            f"Node {request.node.id} has obeyed epoch {request.epoch}, and this scheduler is at epoch {state.epoch}"
        )
        if self._take_over and (proven or not self._believed):
            self._believed = self._believed or not proven
            # A placed task that is not on its node may have run under the other scheduler: it is not launched again.
            order = command.BeginEpoch(
                __version__, request.epoch, self._draw_origin(), offline_after_seconds=self._offline_after_seconds
            )
            answer = await self._loop.tell(order, "operator")
            if isinstance(answer, Refusal):
                await self._refuse(context, _WRONG, answer.code, answer.sentence(), request.node.id, proven=True)
            log.warning("scheduler_took_over", node=request.node.id, above=request.epoch, proven=proven)
            self.reset_sessions()
        elif proven:
            sentence = (
                f"{obeyed}: another scheduler of this cluster runs or has run on another copy of the "
                "data folder. To continue with this copy, stop the other scheduler and start this "
                "one once with --take-over."
            )
            log.error(
                "scheduler_superseded", node=request.node.id, epoch=state.epoch, obeyed=request.epoch, message=sentence
            )
            if self.deposed is not None and not self.deposed.done():
                self.deposed.set_exception(Deposed(sentence))
            await context.abort(grpc.StatusCode.ABORTED, sentence)
        else:
            sentence = (
                f"{obeyed}, but sends no proof that this scheduler can verify. If the data folder was "
                "rebuilt, start the scheduler once with --take-over. If the state of the node is "
                "wrong, start its agent with an empty work folder."
            )
            await self._refuse(context, _FAILED, "WrongEpoch", sentence, request.node.id, proven=True)

    async def _notice_lost_facts(self, request: pb.Registration, context: Any) -> None:
        """Compare the last fact that the node has seen with the journal, to detect that an old copy was restored."""
        if request.highest_task > self._loop.engine.state.last_task:
            answer = await self._loop.tell(command.SkipTaskNumbers(TaskId(request.highest_task)))
            if isinstance(answer, Refusal):
                await self._refuse(context, _WRONG, answer.code, answer.sentence(), request.node.id, proven=True)
        behind = request.seq > self._loop.committed
        if not behind and request.hash and request.seq:
            found = await asyncio.to_thread(self._position_at, request.seq)
            behind = found is not None and found.hash != request.hash
        if behind:
            self._wait_for_the_absent()
            log.error(
                "journal_found_behind",
                node=request.node.id,
                seen=request.seq,
                here=self._loop.committed,
                message=(
                    "This node has seen events that are not in the journal, as after restoring an old "
                    "copy. Attempts that the journal does not contain are kept and listed as unknown "
                    "attempts."
                ),
            )

    def _wait_for_the_absent(self) -> None:
        """Wait longer for absent nodes of an old journal: an agent may be stopped on purpose while its tasks run."""
        until = _now() + UNKNOWN_ABSENCE_SECONDS
        for node in self._views.nodes:
            if node not in self.sessions:
                self._away_until[node] = max(until, self._away_until.get(node, 0.0))

    # --- the stream --------------------------------------------------------------------------------------------------

    async def connect(
        self, messages: AsyncIterator[pb.AgentMessage], context: Any
    ) -> AsyncIterator[pb.SchedulerMessage]:
        """Serve one agent while it is connected."""
        given = dict(context.invocation_metadata()).get(SESSION, "")
        session = self._by_session.get(given)
        if session is None or session.connected:
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, "This session has ended; register again.")
            return
        session.connected = True
        reader: asyncio.Task[None] | None = None
        try:
            await self._reconcile(session)
            reader = asyncio.create_task(self._read(session, messages))
            async for message in session.messages(
                self._loop.engine.state.epoch, lambda: (self._loop.committed, self._loop.committed_hash)
            ):
                if reader.done():
                    break
                yield message
        finally:
            if reader is not None:
                reader.cancel()
            session.close()
            self._by_session.pop(session.id, None)
            if self.sessions.get(session.node) is session:
                session.connected = False

    async def _reconcile(self, session: AgentSession) -> None:
        """Send a newly connected node the commands that follow from the state and from its attempts."""

        def ask(state: State, now: float) -> tuple[Reconciled, list[pb.Command]]:
            found = reconcile(state, session.node, session.there)
            said = [launches.present(state.tasks[ref.task], session.node) for ref in found.say]
            said += [launches.reminder(state.tasks[ref.task], session.node) for ref in found.remind]
            said += [launches.extend(state.tasks[ref.task], now) for ref in (*found.say, *found.remind)]
            for held in state.on_node.get(session.node, {}).values():
                self._join_gang(state, held.id)
            return found, [it for it in said if it is not None]

        found, commands = await self._loop.look(ask)
        for it in commands:
            if it.HasField("launch"):
                self._complete(it, with_secrets=attempt_of(it) in found.say)
        for report in found.reports:
            self._loop.tell(report, f"agent:{session.node}").add_done_callback(lambda it: _close_if_failed(it, session))
        for ref in found.stop:
            commands.append(launches.stop(ref, "The task continues on another node."))
        for ref in found.strays:
            if session.there[ref] == pb.Attempt.PREPARED:  # a prepared part of a gang would wait for the others forever
                commands.append(launches.stop(ref, "This scheduler does not know the attempt, and it has not started."))
                continue
            log.warning(
                "unknown_attempt_found", node=session.node, task=ref.task, attempt=ref.attempt, origin=ref.origin
            )
            session.strays[ref] = None
            stray = pb.Stray(task=ref.task, attempt=ref.attempt, origin=ref.origin)
            commands.append(launches.about(ref, stray=stray))
        session.send(commands)
        for ref, gang in list(self._gangs.items()):
            if gang.nodes[0] == session.node:  # the other parts may have waited only for this node
                self._start_gang(ref, gang)

    def _join_gang(self, state: State, task_id: TaskId) -> None:
        """Restore a gang after a restart. Which parts are ready is not stored: they report it again when launched."""
        task = state.tasks[task_id]
        nodes = task.active.placement.nodes
        if len(nodes) < 2 or not isinstance(task.phase, Placed):
            return
        ref = launches.ref_of(task)
        gang = self._gangs.setdefault(ref, PendingGang(nodes))
        begun = {*(task.ready or ()), *(task.members or ())}
        for node in nodes:  # a part that runs or has ended counts as ready
            session = self.sessions.get(node)
            if node in begun or (session is not None and session.there.get(ref) == pb.Attempt.RUNNING):
                gang.ports.setdefault(node, session.ports.get(ref, 0) if session is not None else 0)

    async def _read(self, session: AgentSession, messages: AsyncIterator[pb.AgentMessage]) -> None:
        try:
            async for message in messages:
                if session.closed:
                    return
                self._hear_from(session.node)
                if message.HasField("heartbeat"):
                    self._heartbeat(session, heartbeat_of(message.heartbeat))
                if message.reports:
                    session.backlog.extend(message.reports)
                    self._take_reports(session)
                if message.HasField("goodbye"):
                    self._goodbye(session, message.goodbye.back_within_seconds)
        except Exception:  # invalid input of one agent must not affect others
            if not self._stopping:
                log.exception("agent_stream_failed", node=session.node)
        finally:
            session.close()

    def _hear_from(self, node: NodeId) -> None:
        self._last_heard[node] = _now()

    def _goodbye(self, session: AgentSession, seconds: float) -> None:
        """Handle the planned stop of an agent: its node is not lost until the announced absence is over."""
        if not seconds > 0.0:
            return  # zero or invalid: the usual limit on silence applies
        seconds = min(seconds, MOST_AWAY_SECONDS)
        node = session.node

        def told(answer: "asyncio.Future[Any]") -> None:
            if not answer.cancelled() and answer.exception() is None and not isinstance(answer.result(), Refusal):
                self._away_until[node] = _now() + seconds
                session.goodbye = True
                session.wake()
                log.info("agent_stopped", node_id=node, back_within_seconds=seconds)

        self._loop.tell(command.StopNode(node, seconds), f"agent:{node}").add_done_callback(told)

    def _heartbeat(self, session: AgentSession, heartbeat: pb.Heartbeat) -> None:
        view = self._views.nodes.get(session.node)
        if view is None or view.lost:
            log.warning("lost_node_returned", node_id=session.node)
            session.close()  # it was declared lost while it reconnected: make it register again
            return
        before = self.telemetry.get(session.node)
        self.telemetry[session.node] = heartbeat
        was_silent = before is not None and before.supervisor_silent_seconds > 0
        if heartbeat.supervisor_silent_seconds > 0 and not was_silent:
            log.warning(
                "supervisor_unresponsive",
                node=session.node,
                silent_seconds=round(heartbeat.supervisor_silent_seconds, 1),
            )
        elif was_silent and not heartbeat.supervisor_silent_seconds > 0:
            log.info("supervisor_recovered", node=session.node)
        session.heard = heartbeat.at
        session.wake()
        for use in heartbeat.gpus:
            self._hear_of_card(session, use.index, health_of(use.health))

    def _hear_of_card(self, session: AgentSession, index: int, health: GpuHealth) -> None:
        """Tell the engine if a GPU's health differs from the journal; one change per GPU at a time."""
        view = self._views.nodes.get(session.node)
        if view is None or index >= len(view.spec.gpus) or index in session.telling or self._loop.full:
            return
        if view.health.get(index, GpuHealth.OK) is not health:
            session.telling.add(index)
            told = self._loop.tell(command.SetGpuHealth(session.node, index, health), f"agent:{session.node}")
            told.add_done_callback(lambda _: session.telling.discard(index))

    def _take_reports(self, session: AgentSession) -> None:
        """Pass a node's reports to the engine. If the disk is full, keep them and acknowledge nothing."""
        if self._loop.full or not session.backlog:
            return
        reports, session.backlog = session.backlog, []
        told: list[asyncio.Future[Any]] = []
        number = 0
        for report in reports:
            number = max(number, report.number)
            asked = self._command_of(session, report)
            if asked is not None and (answer := self._told(session, attempt_of(report), asked)) is not None:
                told.append(answer)
        if told:  # answers come in order, so the last one is enough
            told[-1].add_done_callback(lambda _: self._receive(session, told, number))
        else:
            self._receive(session, told, number)

    def _receive(self, session: AgentSession, told: "list[asyncio.Future[Any]]", number: int) -> None:
        """Acknowledge durable reports. A refused report is outdated and is acknowledged too."""
        if session.closed:
            return
        if late := [it for it in told if not it.done()]:  # the last one failed before the others were handled
            asyncio.gather(*late, return_exceptions=True).add_done_callback(
                lambda _: self._receive(session, told, number)
            )
            return
        failed = next((error for it in told if (error := it.exception()) is not None), None)
        if failed is not None:
            log.warning("report_rejected", node=session.node, why=str(failed))
            session.close()  # it registers again and repeats its reports
            return
        session.received = max(session.received, number)
        session.wake_soon()

    def _told(self, session: AgentSession, ref: AttemptRef, asked: command.Command) -> "asyncio.Future[Any] | None":
        """Pass a report to the engine; return None, which acknowledges it, if it has broken the engine too often."""
        where = (session.node, ref)
        if self._broke.get(where, 0) >= TRIES:
            log.error("report_dropped", node=session.node, task=ref.task, attempt=ref.attempt, report=repr(asked)[:500])
            return None
        told = self._loop.tell(asked, f"agent:{session.node}")

        def count(answer: "asyncio.Future[Any]") -> None:
            if not answer.cancelled() and isinstance(answer.exception(), Broken):
                self._broke[where] = self._broke.get(where, 0) + 1

        told.add_done_callback(count)
        return told

    def _command_of(self, session: AgentSession, report: pb.Report) -> command.Command | None:
        ref, node = attempt_of(report), session.node
        task, attempt, origin = ref
        ago = report.seconds_ago if isfinite(report.seconds_ago) else 0.0
        at = self._loop.clock() - min(max(ago, 0.0), MOST_AGO_SECONDS)
        match report.WhichOneof("what"):
            case "ended":
                it = report.ended
                return command.ReportEnded(
                    task,
                    attempt,
                    outcome_of(it.outcome),
                    it.exit_code if it.HasField("exit_code") else None,
                    node,
                    it.signal if it.HasField("signal") else None,
                    it.message[:1000],
                    actual_of(it),
                    origin,
                    at,
                )
            case "started":
                return command.ReportStarted(task, attempt, node, origin, at)
            case "prepared":
                self._part_prepared(ref, node, report.prepared.port)
                return None
            case "suspended":
                return command.ReportSuspended(task, attempt, report.suspended.round, node, origin)
            case "resumed":
                return command.ReportResumed(task, attempt, report.resumed.round, node, origin)
            case "not_suspended":
                said = report.not_suspended
                return command.ReportNotSuspended(task, attempt, said.round, said.message[:1000], node, origin)
            case "not_resumed":
                told = report.not_resumed
                return command.ReportNotResumed(task, attempt, told.round, told.message[:1000], node, origin)
        return None

    def _part_prepared(self, ref: AttemptRef, node: NodeId, port: int) -> None:
        """Note that a part of a gang is ready; start the gang if it was the last one."""
        gang = self._gangs.get(ref)
        if gang is not None and node in gang.nodes:
            gang.ports[node] = port
            self._start_gang(ref, gang)

    def _start_gang(self, ref: AttemptRef, gang: "PendingGang") -> None:
        """Start all parts if all are ready and the address of the first one is known. Safe to repeat."""
        first = self.sessions.get(gang.nodes[0])
        if first is None or len(gang.ports) < len(gang.nodes):
            return  # started when the first node is back
        for rank, member in enumerate(gang.nodes):
            start = pb.Start(
                master_addr=first.address or "127.0.0.1",
                master_port=gang.ports[gang.nodes[0]],
                node_rank=rank,
                nodes=len(gang.nodes),
                rank=rank,
                world_size=len(gang.nodes),
            )
            self._send(member, launches.about(ref, start=start))

    # --- lost nodes ---------------------------------------------------------------------------------------------------

    async def watch(self) -> None:
        """Declare nodes lost after too long a silence."""
        before = self._checked_at = _now()
        self._patient_until = before + self._patience_left
        self._away_until = {node: before + seconds for node, seconds in self._away_left.items()} | self._away_until
        if self._take_over:
            self._wait_for_the_absent()
        # Agents still pause between connection attempts as the previous scheduler told them, not as this one will.
        longer = max(0.0, self._predecessor_seconds - self._offline_after_seconds) + self._heartbeat_seconds
        for node in self._views.nodes:
            self._last_heard.setdefault(node, before + longer)
        while True:
            await asyncio.sleep(self._check_seconds)
            now = self._checked_at = _now()
            self._refused.look(now)
            stood_still = now - before - self._check_seconds
            before = now
            if stood_still > STALLED_SECONDS:
                log.warning("process_paused", seconds=round(stood_still, 1))
            if self._loop.full:
                stood_still += self._check_seconds  # agents cannot register or report meanwhile, so this is not silence
            if stood_still > STALLED_SECONDS or self._loop.full:
                for node in self._last_heard:
                    self._last_heard[node] += stood_still
            for session in list(self.sessions.values()):
                self._take_reports(session)
            with suppress(StorageFull):
                await self._lose_the_silent(now)

    async def _lose_the_silent(self, now: float) -> None:
        if self._loop.full or now < self._patient_until:
            return
        for node, view in list(self._views.nodes.items()):
            if now < self._away_until.get(node, 0.0) or node in self._registering:
                continue
            if not view.lost and now - self._last_heard.setdefault(node, now) > self._offline_after_seconds:
                if (session := self.sessions.get(node)) is not None:
                    session.close()
                silent_seconds = round(now - self._last_heard[node], 1)
                if not isinstance(await self._loop.tell(command.LoseNode(node)), Refusal):
                    log.warning("agent_offline", node_id=node, silent_seconds=silent_seconds)

    def reset_sessions(self) -> None:
        """Make every agent register again: a command may not have been sent, and reconciliation sends it."""
        for session in self.sessions.values():
            session.close()

    def be_patient(self, seconds: float) -> None:
        """Tell all nodes that this scheduler stops on purpose and will be back."""
        self._stopping = True
        for session in self.sessions.values():
            session.patience_seconds = seconds
            session.wake()

    def stop_unknown_attempt(self, node: NodeId, task: TaskId, attempt: int) -> bool:
        """Stop an attempt that the scheduler does not know, by order of an operator; return whether it was found."""
        session = self.sessions.get(node)
        found = [ref for ref in session.strays if ref[:2] == (task, attempt)] if session is not None else []
        if session is None or not session.connected or not found:
            return False
        for ref in found:
            del session.strays[ref]
        session.send(launches.stop(ref, "An administrator ended this unknown attempt.") for ref in found)
        return True

    async def send_log(self, chunks: AsyncIterator[pb.LogChunk], context: Any) -> pb.LogReceipt:
        """Receive output that a reader asked for."""
        return await self.outputs.send_log(chunks, context)


class PendingGang:
    """The parts of an attempt on several nodes, until all are ready to start together."""

    def __init__(self, nodes: tuple[NodeId, ...]) -> None:
        self.nodes = nodes
        self.ports: dict[NodeId, int] = {}


def is_owner(by: str) -> bool:
    """Whether a task was submitted by the owner of the scheduler's process."""
    return by.startswith("local:")


def _now() -> float:
    """Return the time of a monotonic clock."""
    return asyncio.get_running_loop().time()


def _other_protocol(theirs: int) -> str:
    side = "scheduler" if theirs > PROTOCOL else "agent"
    return f"This agent uses protocol {theirs} and the scheduler uses {PROTOCOL}: upgrade the {side}."


def _joining(spec: NodeSpec, request: pb.Registration) -> command.JoinNode:
    """Convert a registration to a command: the node, and the attempts on it with the GPUs they hold."""
    open_ones = [it for it in request.attempts if it.state != pb.Attempt.ENDED]
    return command.JoinNode(
        spec,
        tuple(attempt_of(it) for it in open_ones),
        tuple(attempt_of(it) for it in open_ones if it.state == pb.Attempt.RUNNING),
        tuple((attempt_of(it), _part(spec, it)) for it in open_ones if it.state != pb.Attempt.SUSPENDED),
        ended=tuple(attempt_of(it) for it in request.attempts if it.state == pb.Attempt.ENDED),
        complete=True,
        instance=request.instance[:128],
        boot=request.boot[:128],
    )


def _part(spec: NodeSpec, it: pb.Attempt) -> Slice:
    """Return the GPUs that an attempt holds, by its agent. The size of a share is unknown: assume all but 1/1000."""
    gpus = tuple(gpu for gpu in it.gpus if gpu < len(spec.gpus))
    if it.share and gpus:
        return Slice(spec.id, gpus[:1], MILLI - 1, spec.gpus[gpus[0]].memory_mib)
    return Slice(spec.id, gpus)


def _close_if_failed(told: "asyncio.Future[Any]", session: AgentSession) -> None:
    """Close the session if a finding was not recorded, perhaps because the disk is full: the next one repeats it."""
    if not told.cancelled() and told.exception() is not None:
        session.close()
