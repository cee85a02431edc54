"""Admit agents: mutual proof of the join token, checks of cluster, epoch and identity, and the first answer.

    agent ─► challenge ─► proof of the scheduler ─► signed registration ─► checks ─► engine (JoinNode) ─► session

A scheduler has one epoch, which begins with its process and is never raised by a message of an agent. If an agent shows
the proof of a later epoch, this scheduler no longer controls the cluster and stops. Only an operator can override this,
with --take-over.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import grpc
import grpc.aio
import structlog
from google.protobuf.message import DecodeError

from gpuyard.core.domain import commands as command
from gpuyard.core.domain.errors import GpuyardError
from gpuyard.core.domain.node import NodeSpec
from gpuyard.core.domain.placement import Slice
from gpuyard.core.domain.refusals import Refusal
from gpuyard.core.domain.values import MILLI, NodeId, TaskId
from gpuyard.core.journal.records import Position
from gpuyard.input.strict import WrongRequest
from gpuyard.live.control_plane.loop import EngineLoop
from gpuyard.live.control_plane.nodes.liveness import NodeLiveness, now_on_loop
from gpuyard.live.control_plane.nodes.refused_agents import RefusedAgents
from gpuyard.live.control_plane.nodes.reports import ReportIntake
from gpuyard.live.control_plane.nodes.sessions import AgentSession, AgentSessions
from gpuyard.live.control_plane.options import SchedulerOptions
from gpuyard.live.wire import agents_pb2 as pb
from gpuyard.live.wire import proof
from gpuyard.live.wire.rpc import PROTOCOL, attempt_of, node_spec_of
from gpuyard.version import __version__

_FAILED = grpc.StatusCode.FAILED_PRECONDITION
_UNKNOWN = grpc.StatusCode.UNAUTHENTICATED
_WRONG = grpc.StatusCode.INVALID_ARGUMENT

log = structlog.get_logger()


class SchedulerSuperseded(GpuyardError):
    """Another scheduler of this cluster has begun a later epoch. This one has stopped."""


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


class AgentRegistration:
    """Answers challenges and registrations of agents."""

    def __init__(
        self,
        loop: EngineLoop,
        sessions: AgentSessions,
        liveness: NodeLiveness,
        reports: ReportIntake,
        options: SchedulerOptions,
        *,
        draw_origin: Callable[[], int],
        position_at: Callable[[int], Position | None],
    ) -> None:
        self._loop = loop
        self._sessions = sessions
        self._liveness = liveness
        self._reports = reports
        self._options = options
        self._draw_origin = draw_origin
        self._position_at = position_at
        self._believed = False
        """True after one unproven claim of a later epoch was accepted, as --take-over allows."""
        self._nonces = proof.NonceIssuer()
        self.refused = RefusedAgents()
        self.voting_for: Callable[[str], Sequence[str]] = lambda _: ()
        """Where the schedulers of this cluster accept the agent of a node as a voter, each HOST:PORT; empty: nowhere."""
        self.deposed: asyncio.Future[None] | None = None
        """Fails when another scheduler is known to have taken over."""

    async def challenge(self, request: pb.ChallengeRequest, context: Any) -> pb.ChallengeAnswer:
        """Prove to any client that this scheduler knows the join token. The answer reveals no task or user."""
        if request.protocol != PROTOCOL or len(request.nonce) != proof.NONCE_BYTES:
            message = _other_protocol(request.protocol)
            await self._refuse(context, _FAILED, "OtherProtocol", message, request.node)
        if not self._options.join_token:
            message = "This scheduler has no join token, so agents cannot join. Set auth.join_token and restart the scheduler."
            await self._refuse(context, _UNKNOWN, "NoJoinToken", message, request.node)
        state = self._loop.engine.state
        answer = pb.ChallengeAnswer(
            protocol=PROTOCOL,
            nonce=self._nonces.give(request.nonce, now_on_loop()),
            yard=state.cluster_id,
            epoch=state.epoch,
            origin=state.origin,
            version=__version__,
        )
        answer.proof = proof.scheduler_proof(self._options.join_token, request.nonce, request.node, answer)
        if request.node:  # otherwise an agent of another scheduler looks whether this one leads
            self.refused.challenged(now_on_loop(), answer.nonce, request.node, context.peer())
        return answer

    async def _refuse(
        self, context: Any, code: grpc.StatusCode, why: str, message: str, node: str = "", *, proven: bool = False
    ) -> NoReturn:
        """Reject an agent with a message, and log it."""
        self.refused.refused(now_on_loop(), why, message, peer=context.peer(), node=node, proven=proven)
        await context.abort(code, message)
        raise AssertionError("an aborted call does not continue")

    async def register(self, signed: pb.SignedRegistration, context: Any) -> pb.Welcome:
        """Admit a node, or reject it with a reason."""
        request = await self._proven(signed, context)
        state = self._loop.engine.state
        if request.yard and request.yard != state.cluster_id:
            message = (
                f"This node belongs to cluster {request.yard}, and this scheduler belongs to cluster "
                f"{state.cluster_id}. Check scheduler.master_address. To move the node here, start its "
                f"agent with --accept-cluster {state.cluster_id}."
            )
            await self._refuse(context, _FAILED, "OtherCluster", message, request.node.id, proven=True)
        try:
            spec = node_spec_of(request.node)
        except WrongRequest as wrong:
            await self._refuse(context, _WRONG, wrong.code, wrong.message, request.node.id, proven=True)
        if sentence := refuse_unsafe_node(spec, self._options.unsafe_labels):
            await self._refuse(context, _FAILED, "TasksWouldBeAdmins", sentence, spec.id, proven=True)
        if self._loop.unwritable:
            await context.abort(grpc.StatusCode.UNAVAILABLE, str(self._loop.unwritable))
        await self._refuse_double(spec.id, request.instance, request.boot, context)
        agent = (request.instance, request.boot)
        try:
            with self._liveness.registering(spec.id, agent):
                await self._check_epoch(request, context)
                await self._notice_lost_events(request, context)
                there = {attempt_of(it): int(it.state) for it in request.attempts}
                # Joining may place tasks on the node at once. The agent of the old session must not get their launches:
                # it may be another one, which is frozen and reads them later.
                self._sessions.detach(spec.id)
                answer = await self._loop.tell(_joining(spec, request), f"agent:{spec.id}")
                if isinstance(answer, Refusal):
                    await self._refuse(context, _FAILED, answer.code, answer.sentence(), spec.id, proven=True)
                self._liveness.heard(spec.id)
        except asyncio.CancelledError:  # the agent timed out on a slow disk: not admitted, but alive
            self._liveness.heard(spec.id)
            raise
        self._reports.keep_only(spec.id, there)
        session = AgentSession(request, there)
        self._sessions.add(session)
        self._liveness.away_until.pop(spec.id, None)
        self._liveness.heard(spec.id)
        log.info("agent_registered", node_id=spec.id, gpus=len(spec.gpus), version=request.version, attempts=len(there))
        state = self._loop.engine.state
        return pb.Welcome(
            yard=state.cluster_id,
            epoch=state.epoch,
            seq=self._loop.committed,
            hash=self._loop.committed_hash,
            session=session.id,
            heartbeat_seconds=self._liveness.heartbeat_seconds,
            offline_after_seconds=self._liveness.offline_after_seconds,
            version=__version__,
            origin=state.origin,
            epoch_proof=proof.epoch_proof(self._options.yard_key, state.cluster_id, state.epoch, state.origin),
            voting=self.voting_for(spec.id),
        )

    async def _proven(self, signed: pb.SignedRegistration, context: Any) -> pb.Registration:
        """Return the registration if the sender knows the join token. It is not decoded before that is proven."""
        self.refused.answered(signed.nonce)
        if signed.protocol != PROTOCOL:
            await self._refuse(context, _FAILED, "OtherProtocol", _other_protocol(signed.protocol))
        if not self._nonces.is_good(signed.nonce, signed.agent_nonce, now_on_loop()):
            message = "This registration does not answer a current challenge of this scheduler. Try again."
            await self._refuse(context, _UNKNOWN, "OldChallenge", message)
        expected = proof.agent_proof(self._options.join_token, signed.nonce, signed.agent_nonce, signed.body)
        if not proof.proofs_equal(signed.proof, expected):
            message = "The join token is wrong. Set agent.join_token of the agent to the value of auth.join_token."
            await self._refuse(context, _UNKNOWN, "WrongJoinToken", message)
        self._nonces.use(signed.nonce, now_on_loop())
        try:
            return pb.Registration.FromString(signed.body)
        except DecodeError:
            await self._refuse(context, _WRONG, "NotReadable", "This registration cannot be parsed.")

    async def _refuse_double(self, node: NodeId, instance: str, boot: str, context: Any) -> None:
        """Reject a second agent for a node unless the known one has been silent for as long as a lost node."""
        known = self._loop.engine.state.agents.get(node)
        if self._liveness.others_register(node, (instance, boot)):
            message = (
                f"Another agent with the id {node} is registering. Give each agent its own agent.id "
                "and work folder. This agent can join when the other one is rejected or counts as "
                "lost."
            )
            await self._refuse(context, grpc.StatusCode.ALREADY_EXISTS, "NameTaken", message, node, proven=True)
        if known is None or known == (instance, boot):
            return
        silent = self._liveness.silent_seconds(node)
        expected = known[0] != instance and now_on_loop() < self._liveness.away_until.get(
            node, 0.0
        )  # it may come back rebooted
        if silent < self._liveness.offline_after_seconds or expected:
            same = (
                "the same work folder on another machine or after a reboot" if known[0] == instance else "another one"
            )
            message = (
                f"Another agent with the id {node} was connected {silent:.0f} s ago, and this is "
                f"{same}. Give each agent its own agent.id and work folder. An agent that was moved "
                "or rebooted can join when the old one has been silent for "
                f"{self._liveness.offline_after_seconds:.0f} s."
            )
            await self._refuse(context, grpc.StatusCode.ALREADY_EXISTS, "NameTaken", message, node, proven=True)

    async def _check_epoch(self, request: pb.Registration, context: Any) -> None:
        """Check whether a node has obeyed a later scheduler: then this one no longer controls the cluster."""
        state = self._loop.engine.state
        if request.epoch < state.epoch or (request.epoch, request.origin) == (state.epoch, state.origin):
            return
        shown = proof.epoch_proof(self._options.yard_key, state.cluster_id, request.epoch, request.origin)
        proven = proof.proofs_equal(request.epoch_proof, shown)
        obeyed = (
            f"Node {request.node.id} has obeyed epoch {request.epoch}, and this scheduler is at epoch {state.epoch}"
        )
        if self._options.take_over and (proven or not self._believed):
            self._believed = self._believed or not proven
            # A placed task that is not on its node may have run under the other scheduler: it is not launched again.
            order = command.BeginEpoch(
                __version__,
                request.epoch,
                self._draw_origin(),
                offline_after_seconds=self._liveness.offline_after_seconds,
            )
            answer = await self._loop.tell(order, "operator")
            if isinstance(answer, Refusal):
                await self._refuse(context, _WRONG, answer.code, answer.sentence(), request.node.id, proven=True)
            log.warning("scheduler_took_over", node=request.node.id, above=request.epoch, proven=proven)
            self._sessions.close_all()
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
                self.deposed.set_exception(SchedulerSuperseded(sentence))
            await context.abort(grpc.StatusCode.ABORTED, sentence)
        else:
            sentence = (
                f"{obeyed}, but sends no proof that this scheduler can verify. If the data folder was "
                "rebuilt, start the scheduler once with --take-over. If the state of the node is "
                "wrong, start its agent with an empty work folder."
            )
            await self._refuse(context, _FAILED, "WrongEpoch", sentence, request.node.id, proven=True)

    async def _notice_lost_events(self, request: pb.Registration, context: Any) -> None:
        """Compare the last event that the node has seen with the journal, to detect that an old copy was restored."""
        if request.highest_task > self._loop.engine.state.last_task:
            answer = await self._loop.tell(command.SkipTaskNumbers(TaskId(request.highest_task)))
            if isinstance(answer, Refusal):
                await self._refuse(context, _WRONG, answer.code, answer.sentence(), request.node.id, proven=True)
        behind = request.seq > self._loop.committed
        if not behind and request.hash and request.seq:
            found = await asyncio.to_thread(self._position_at, request.seq)
            behind = found is not None and found.hash != request.hash
        if behind:
            self._liveness.wait_for_the_absent()
            log.error(
                "journal_found_behind",
                node=request.node.id,
                seen=request.seq,
                here=self._loop.committed,
                message="This node has seen events that are not in the journal, as after restoring an old "
                "copy. Attempts that the journal does not contain are kept and listed as unknown "
                "attempts.",
            )


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
