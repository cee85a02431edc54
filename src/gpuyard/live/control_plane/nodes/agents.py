"""The scheduler's side of the connections to agents: sends commands to connected nodes and hears them.

    events ─► commands ─► session ─► agent          registration.py   admits an agent and opens its session
    engine ◄─ commands ◄─ reports ◄─ session        reports.py        passes reports to the engine
                                                    liveness.py       declares silent nodes lost
                                                    gangs.py          starts the parts of an attempt together

Commands follow from committed events. A connected node gets them as the events come. For a node that connects, they are
computed from the current state (reconcile). So nothing is stored for absent nodes, and repetition does no harm: every
command is safe to repeat.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from functools import partial
from typing import Any

import grpc
import grpc.aio
import structlog

from gpuyard.core.domain import commands as command
from gpuyard.core.domain.events import (
    AttemptEnded,
    AttemptResuming,
    AttemptStopping,
    AttemptSuspending,
    NodeLost,
    NodeRemoved,
    NodeStopped,
    SuspensionFailed,
    TaskExtended,
    TaskPlaced,
)
from gpuyard.core.domain.refusals import Refusal
from gpuyard.core.domain.values import AttemptRef, GpuHealth, NodeId, TaskId, TenantId
from gpuyard.core.engine.state import State
from gpuyard.core.journal.records import Position, Record
from gpuyard.live.control_plane.access.principal import is_owner
from gpuyard.live.control_plane.loop import EngineLoop
from gpuyard.live.control_plane.nodes import launches
from gpuyard.live.control_plane.nodes.blob_transfer import BlobTransfer
from gpuyard.live.control_plane.nodes.channels import Channels
from gpuyard.live.control_plane.nodes.checkpoints import (
    MOST_CHECKPOINTS,
    CheckpointRetention,
    SpanLookup,
    submitted_us,
)
from gpuyard.live.control_plane.nodes.gangs import Gangs
from gpuyard.live.control_plane.nodes.liveness import NodeLiveness, now_on_loop
from gpuyard.live.control_plane.nodes.outputs import Outputs
from gpuyard.live.control_plane.nodes.reconcile import Reconciled, reconcile
from gpuyard.live.control_plane.nodes.registration import AgentRegistration
from gpuyard.live.control_plane.nodes.reports import ReportIntake
from gpuyard.live.control_plane.nodes.sessions import AgentSession, AgentSessions
from gpuyard.live.control_plane.options import SchedulerOptions
from gpuyard.live.control_plane.stores.database import StoreError
from gpuyard.live.control_plane.views import Views
from gpuyard.live.wire import agents_pb2 as pb
from gpuyard.live.wire.rpc import SESSION, attempt_of, health_of, heartbeat_of
from gpuyard.live.wire.task_answers import TaskAnswer, origin_of
from gpuyard.live.wire.tasks import parse_task_id

MOST_AWAY_SECONDS = 86_400.0
"""Maximum absence that an agent may announce."""

SecretLookup = Callable[[TaskId], Mapping[str, str]]
log = structlog.get_logger()


class AgentConnections:
    """All agents. Converts events to commands, and is the gRPC service: each call goes to the part that answers it."""

    def __init__(
        self,
        loop: EngineLoop,
        views: Views,
        options: SchedulerOptions,
        *,
        secrets: SecretLookup,
        run_as: Callable[[TenantId, str], str],
        draw_origin: Callable[[], int],
        position_at: Callable[[int], Position | None],
        spans: SpanLookup,
        may_send: Callable[[], bool] = lambda: True,
        blobs: BlobTransfer | None = None,
    ) -> None:
        """`may_send`: whether this scheduler still leads, by its lease."""
        self._may_send = may_send
        self._loop = loop
        self._views = views
        self._secrets = secrets
        self._run_as = run_as
        self._stopping = False
        self.telemetry: dict[NodeId, pb.Heartbeat] = {}
        """The last heartbeat of each node; only its time while the node is lost or away."""
        self.latencies: dict[NodeId, float] = {}
        """Time in seconds until the scheduler's answer to a heartbeat reached the node, for nodes that report it."""
        self.sessions = AgentSessions()
        self.outputs = Outputs(self.sessions)
        self.liveness = NodeLiveness(loop, views, self.sessions, options)
        self._gangs = Gangs(self.sessions)
        self._checkpoints = CheckpointRetention(views, spans, options.checkpoint_seconds)
        self._removals: set[asyncio.Task[None]] = set()
        self._reports = ReportIntake(loop, self._gangs)
        self.registration = AgentRegistration(
            loop,
            self.sessions,
            self.liveness,
            self._reports,
            options,
            draw_origin=draw_origin,
            position_at=position_at,
        )
        self.clients_at: Callable[[], Sequence[str]] = tuple
        """Where clients reach the schedulers of this cluster, as URLs, this one first; empty: unknown."""
        self.challenge = self.registration.challenge
        self.register = self.registration.register
        self.send_log = self.outputs.send_log
        transfer = blobs or BlobTransfer(views, None, asyncio.to_thread)
        self.fetch_blob = partial(transfer.fetch_blob, self.sessions.by_id)
        self.store_blob = partial(transfer.store_blob, self.sessions.by_id)
        self.channels = Channels(self.sessions, options.channels)
        self.channel = self.channels.channel

    async def watch(self) -> None:
        """Declare nodes lost after too long a silence."""

        def check(now: float) -> None:
            self.registration.refused.look(now)
            for session in list(self.sessions.values()):
                self._reports.take(session)  # those that waited for room on the disk

        await self.liveness.watch(check)

    # --- what the engine decided -------------------------------------------------------------------------------------

    def hear(self, record: Record) -> None:
        """Send the commands that follow from a committed event."""
        event = record.event
        if isinstance(event, TaskPlaced):
            self._launch(event)
        elif isinstance(event, AttemptStopping):
            grace_seconds = self._views.tasks[event.task].spec.grace_seconds
            self._send_to_all(event.task, launches.stop(self._ref(event), event.cause.sentence(), grace_seconds))
        elif isinstance(event, AttemptSuspending):
            self._send_to_all(event.task, launches.suspend(self._ref(event), event.round))
        elif isinstance(event, AttemptResuming):
            for part in event.placement.slices:
                self.sessions.send(part.node, launches.resume(self._ref(event), part.gpus, event.round))
        elif isinstance(event, TaskExtended):
            self._extend(event.task)
        elif isinstance(event, SuspensionFailed):
            placement = self._views.tasks[event.task].placement
            for part in placement.slices if placement and len(placement.slices) > 1 else ():
                self.sessions.send(part.node, launches.resume(self._ref(event), part.gpus, event.round))
        elif isinstance(event, AttemptEnded):
            ref = self._ref(event)
            self._gangs.ended(ref)
            self._reports.ended(ref)
        elif isinstance(event, NodeLost | NodeStopped | NodeRemoved):
            self._forget_readings(event.node)

    def _forget_readings(self, node: NodeId) -> None:
        """Forget what a node reported: it says nothing about now, also not when the node returns."""
        last = self.telemetry.pop(node, None)
        self.latencies.pop(node, None)
        if last is not None and node in self._views.nodes:
            self.telemetry[node] = pb.Heartbeat(at=last.at)

    def _ref(self, event: Any) -> AttemptRef:
        """Return the attempt of a committed event, which is the last one of its task."""
        return AttemptRef(event.task, event.attempt, self._views.tasks[event.task].origin)

    def _extend(self, task: TaskId) -> None:
        """Send a changed timeout to the nodes, because they enforce timeouts themselves."""

        def tell(asked: "asyncio.Future[pb.Command | None]") -> None:
            if asked.cancelled():
                return
            if asked.exception() is not None:
                self.sessions.close_all()  # the disk may be full: it is sent when the nodes register again
            elif (said := asked.result()) is not None:
                self._send_to_all(task, said)

        self._loop.look(lambda state, now: launches.extend(state.tasks.get(task), now)).add_done_callback(tell)

    def _launch(self, event: TaskPlaced) -> None:
        spec = self._views.tasks[event.task].spec
        gang, ref = len(event.placement.slices) > 1, self._ref(event)
        if gang:
            self._gangs.launched(ref, event.placement.nodes)
        for part in event.placement.slices:
            said = launches.launch(ref, spec, part, gang=gang)
            self._complete(said, with_secrets=True)
            self.sessions.send(part.node, said)

    def _complete(self, said: pb.Command, *, with_secrets: bool) -> None:
        """Add the submitter, secrets and system user to a launch; only the views and other stores have them."""
        view = self._views.tasks.get(TaskId(said.task))
        if view is None:
            return  # it has ended and is being archived
        said.launch.by_owner = is_owner(view.by)
        said.launch.request_id = view.request_id
        said.launch.restart_reason = view.restart_reason
        said.launch.submitted_us = submitted_us(view.submitted_at)
        said.launch.run_as = self._run_as(view.spec.tenant, "" if is_owner(view.by) else view.spec.user)
        if not said.launch.lease:
            said.launch.clients.extend(self.clients_at())
        if with_secrets and view.spec.secrets:
            said.launch.secrets.update(self._secrets(view.id))

    async def run_beside(self, told: TaskAnswer, shell: str, env: Mapping[str, str], seconds: float) -> str:
        """Run a command on the first node of a task's last attempt, as the user of the task, also after its end.

        Return why it failed, or nothing. It gets the variables of the task without its secrets, which may be gone.
        """
        number, attempt = parse_task_id(told.id), told.attempts
        owner, submitter = is_owner(told.created_by), told.submit_process
        launch = pb.Launch(
            shell=shell,
            env=told.env,
            work_dir=told.work_dir or "",
            tenant=told.tenant_id,
            user=told.user,
            by_owner=owner,
            run_as=self._run_as(TenantId(told.tenant_id), "" if owner else told.user),
            array_index=-1 if told.array_index is None else told.array_index,
            submit_host="" if submitter is None else submitter.host,
        )
        wanted = pb.RunCommand(launch=launch, env=env, timeout_seconds=seconds)
        ref = AttemptRef(number, attempt, origin_of(told, attempt))
        return await self.outputs.run_command(NodeId(told.node_ids[0]), ref, wanted)

    def _send_to_all(self, task: TaskId, said: pb.Command) -> None:
        view = self._views.tasks.get(task)
        for node in view.placement.nodes if view is not None and view.placement is not None else ():
            self.sessions.send(node, said)

    # --- the stream --------------------------------------------------------------------------------------------------

    async def connect(
        self, messages: AsyncIterator[pb.AgentMessage], context: Any
    ) -> AsyncIterator[pb.SchedulerMessage]:
        """Serve one agent while it is connected."""
        given = dict(context.invocation_metadata()).get(SESSION, "")
        session = self.sessions.by_id.get(given)
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
                if reader.done() or not self._may_send():
                    break
                yield message
        finally:
            if reader is not None:
                reader.cancel()
            session.close()
            self.sessions.by_id.pop(session.id, None)
            if self.sessions.get(session.node) is session:
                session.connected = False

    async def _reconcile(self, session: AgentSession) -> None:
        """Send a newly connected node the commands that follow from the state and from its attempts."""

        def ask(state: State, now: float) -> tuple[Reconciled, list[pb.Command]]:
            found = reconcile(state, session.node, session.there)
            said = [launches.command_for_phase(state.tasks[ref.task], session.node) for ref in found.say]
            said += [launches.relaunch(state.tasks[ref.task], session.node) for ref in found.remind]
            said += [launches.extend(state.tasks[ref.task], now) for ref in (*found.say, *found.remind)]
            for held in state.on_node.get(session.node, {}).values():
                self._gangs.restore(state, held.id)
            return found, [it for it in said if it is not None]

        found, commands = await self._loop.look(ask)
        for it in commands:
            if it.HasField("launch"):
                self._complete(it, with_secrets=attempt_of(it) in found.say)
        for report in found.reports:
            self._loop.tell(report, f"agent:{session.node}").add_done_callback(lambda it: _close_if_failed(it, session))
        for ref in found.stop:
            commands.append(launches.stop(ref, "The task continues on another node."))
        for ref in found.unknown:
            if session.there[ref] == pb.Attempt.PREPARED:  # a prepared part of a gang would wait for the others forever
                commands.append(launches.stop(ref, "This scheduler does not know the attempt, and it has not started."))
                continue
            log.warning(
                "unknown_attempt_found", node=session.node, task=ref.task, attempt=ref.attempt, origin=ref.origin
            )
            session.unknown_attempts[ref] = None
            unknown = pb.Stray(task=ref.task, attempt=ref.attempt, origin=ref.origin)
            commands.append(launches.attempt_command(ref, stray=unknown))
        session.send(commands)
        self._gangs.node_is_back(session.node)

    async def _read(self, session: AgentSession, messages: AsyncIterator[pb.AgentMessage]) -> None:
        try:
            async for message in messages:
                if session.closed:
                    return
                self.liveness.heard(session.node)
                if message.HasField("heartbeat"):
                    self._heartbeat(session, heartbeat_of(message.heartbeat))
                if message.reports:
                    session.backlog.extend(message.reports)
                    self._reports.take(session)
                if message.HasField("goodbye"):
                    self._goodbye(session, message.goodbye.back_within_seconds)
        except Exception:  # invalid input of one agent must not affect others
            if not self._stopping:
                log.exception("agent_stream_failed", node=session.node)
        finally:
            session.close()

    def _goodbye(self, session: AgentSession, seconds: float) -> None:
        """Handle the planned stop of an agent: its node is not lost until the announced absence is over."""
        if not seconds > 0.0:
            return  # zero or invalid: the usual limit on silence applies
        seconds = min(seconds, MOST_AWAY_SECONDS)
        node = session.node

        def told(answer: "asyncio.Future[Any]") -> None:
            if not answer.cancelled() and answer.exception() is None and not isinstance(answer.result(), Refusal):
                self.liveness.away_until[node] = now_on_loop() + seconds
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
        if view.away:  # it has said goodbye
            self._forget_readings(session.node)
        elif heartbeat.HasField("round_trip_seconds"):
            self.latencies[session.node] = heartbeat.round_trip_seconds
        else:
            self.latencies.pop(session.node, None)
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
        if heartbeat.checkpoints:
            found = list(heartbeat.checkpoints[:MOST_CHECKPOINTS])
            heartbeat.ClearField("checkpoints")
            removal = asyncio.create_task(self._remove_checkpoints(session, found))
            self._removals.add(removal)
            removal.add_done_callback(self._removals.discard)
        for use in heartbeat.gpus:
            self._hear_of_gpu(session, use.index, health_of(use.health))

    async def _remove_checkpoints(self, session: AgentSession, found: "list[pb.Checkpoint]") -> None:
        """Let a node remove the checkpoint folders that are no longer kept."""
        try:
            session.send(await self._checkpoints.removals(found, self._loop.clock()))
        except StoreError as error:  # the node reports them again
            log.warning("checkpoints_not_reviewed", node=session.node, message=str(error))

    def _hear_of_gpu(self, session: AgentSession, index: int, health: GpuHealth) -> None:
        """Tell the engine if a GPU's health differs from the journal; one change per GPU at a time."""
        view = self._views.nodes.get(session.node)
        if view is None or index >= len(view.spec.gpus) or index in session.reporting_gpus or self._loop.unwritable:
            return
        if view.health.get(index, GpuHealth.OK) is not health:
            session.reporting_gpus.add(index)

            def told(answer: "asyncio.Future[Any]") -> None:
                session.reporting_gpus.discard(index)
                if not answer.cancelled() and (error := answer.exception()) is not None:
                    log.warning("gpu_health_not_recorded", node=session.node, gpu=index, why=str(error))

            order = command.SetGpuHealth(session.node, index, health)
            self._loop.tell(order, f"agent:{session.node}").add_done_callback(told)

    def extend_liveness(self, seconds: float) -> None:
        """Tell all nodes that this scheduler stops on purpose and will be back."""
        self._stopping = True
        for session in self.sessions.values():
            session.absence_seconds = seconds
            session.wake()

    def stop_unknown_attempt(self, node: NodeId, task: TaskId, attempt: int) -> bool:
        """Stop an attempt that the scheduler does not know, by order of an operator; return whether it was found."""
        session = self.sessions.get(node)
        found = [ref for ref in session.unknown_attempts if ref[:2] == (task, attempt)] if session is not None else []
        if session is None or not session.connected or not found:
            return False
        for ref in found:
            del session.unknown_attempts[ref]
        session.send(launches.stop(ref, "An administrator ended this unknown attempt.") for ref in found)
        return True


def _close_if_failed(told: "asyncio.Future[Any]", session: AgentSession) -> None:
    """Close the session if a finding was not recorded, perhaps because the disk is full: the next one repeats it."""
    if not told.cancelled() and told.exception() is not None:
        session.close()
