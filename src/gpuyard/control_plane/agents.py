"""The scheduler's side of the line to the agents: who is there, what they are told, what they report.

Commands follow from committed facts. For a node that is connected they are sent as the facts come; for one that
connects, they are made anew from what is so (reconcile), so nothing has to be kept for nodes that are away and nothing is
sent twice that hurts: every command is safe to repeat.

A node is lost when it was not heard of for `offline_after_seconds`. Time in which this process itself stood still does
not count, nor does the time a predecessor asked the nodes to be patient for.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import suppress
from typing import Any

import grpc
import grpc.aio
import structlog

from gpuyard import __version__
from gpuyard.control_plane import launches
from gpuyard.control_plane.access.gate import check_join_token
from gpuyard.control_plane.loop import Loop
from gpuyard.control_plane.outputs import Outputs
from gpuyard.control_plane.reconcile import Key, Reconciled, reconcile
from gpuyard.control_plane.sessions import Session
from gpuyard.control_plane.views import Views
from gpuyard.domain import commands as command
from gpuyard.domain import events as fact
from gpuyard.domain.errors import StorageFull
from gpuyard.domain.refusals import Refusal
from gpuyard.domain.values import GpuHealth, NodeId, TaskId, TenantId
from gpuyard.engine.phases import Placed
from gpuyard.engine.state import State
from gpuyard.journal.records import Record
from gpuyard.wire import agents_pb2 as pb
from gpuyard.wire.rpc import PROTOCOL, SESSION, actual_of, health_of, node_spec_of, outcome_of
from gpuyard.wire.strict import WrongRequest

LARGEST_NUMBER = 2**53 - 1
CHECK_SECONDS = 1.0
STALLED_SECONDS = 2.0
"""A check that comes later than this says that we stood still, not that the nodes did."""

Secrets = Callable[[TaskId], Mapping[str, str]]
log = structlog.get_logger()


class Agents:
    """All agents. It answers the gRPC service and turns facts into commands."""

    def __init__(
        self,
        loop: Loop,
        views: Views,
        *,
        join_token: str,
        secrets: Secrets,
        run_as: Callable[[TenantId], str] = lambda _: "",
        heartbeat_seconds: float = 5.0,
        offline_after_seconds: float = 15.0,
    ) -> None:
        self.sessions: dict[NodeId, Session] = {}
        self.outputs = Outputs(self.sessions)
        self.telemetry: dict[NodeId, pb.Heartbeat] = {}
        """What nodes said last about themselves."""
        self._loop = loop
        self._views = views
        self._join_token = join_token
        self._secrets = secrets
        self._run_as = run_as
        self._heartbeat_seconds = heartbeat_seconds
        self._offline_after_seconds = offline_after_seconds
        self._last_heard: dict[NodeId, float] = {}
        self._instances: dict[NodeId, str] = {}
        self._gangs: dict[Key, Gang] = {}
        self._stopping = False

    # --- what the engine decided -------------------------------------------------------------------------------------

    def hear(self, record: Record) -> None:
        """Tell the nodes what follows from a committed fact."""
        event = record.fact
        if isinstance(event, fact.TaskPlaced):
            self._launch(event)
        elif isinstance(event, fact.AttemptStopping):
            self._send_to_all(event.task, launches.stop(event.task, event.attempt, event.cause.sentence()))
        elif isinstance(event, fact.AttemptSuspending):
            self._send_to_all(event.task, launches.suspend(event.task, event.attempt, event.round))
        elif isinstance(event, fact.AttemptResuming):
            for part in event.placement.slices:
                self._send(part.node, launches.resume(event.task, event.attempt, part.gpus, event.round))
        elif isinstance(event, fact.TaskExtended):
            self._extend(event.task)
        elif isinstance(event, fact.SuspensionFailed):
            placement = self._views.tasks[event.task].placement
            for part in placement.slices if placement and len(placement.slices) > 1 else ():
                self._send(part.node, launches.resume(event.task, event.attempt, part.gpus, event.round))
        elif isinstance(event, fact.AttemptEnded):
            self._gangs.pop((event.task, event.attempt), None)

    def _extend(self, task: TaskId) -> None:
        """A node ends tasks at their time-out by itself, so it has to know of another one."""

        def tell(asked: "asyncio.Future[pb.Command | None]") -> None:
            if not asked.cancelled() and asked.exception() is None and (said := asked.result()) is not None:
                self._send_to_all(task, said)

        self._loop.look(lambda state, now: launches.extend(state.tasks.get(task), now)).add_done_callback(tell)

    def _launch(self, event: fact.TaskPlaced) -> None:
        spec = self._views.tasks[event.task].spec
        gang = len(event.placement.slices) > 1
        if gang:
            self._gangs[event.task, event.attempt] = Gang(event.placement.nodes)
        for part in event.placement.slices:
            said = launches.launch(event.task, event.attempt, spec, part, gang=gang)
            self._complete(said, with_secrets=True)
            self._send(part.node, said)

    def _complete(self, said: pb.Command, *, with_secrets: bool) -> None:
        """Add to a launch what only committed facts and other stores know: who submitted it, its secrets, its system user."""
        view = self._views.tasks.get(TaskId(said.task))
        if view is None:
            return  # it has ended, and its end is on the way to the archive
        said.launch.by_owner = is_owner(view.by)
        said.launch.run_as = self._run_as(view.spec.tenant)
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

    async def register(self, request: pb.Registration, context: Any) -> pb.Welcome:
        """Let a node in, or say why not."""
        state = self._loop.engine.state
        if denied := check_join_token(request.join_token, self._join_token):
            log.warning("agent_refused", node=request.node.id[:128], why=denied.code, peer=context.peer())
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, denied.sentence)
        if request.protocol > PROTOCOL:
            message = (
                f"This agent speaks protocol {request.protocol} and the scheduler only up to {PROTOCOL}: "
                "upgrade the scheduler first."
            )
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, message)
        if request.yard and request.yard != state.yard:
            message = (
                f"This node belongs to yard {request.yard} and this scheduler runs yard {state.yard}. "
                "Check scheduler.master_address, or give the agent an empty work folder to move it here."
            )
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, message)
        try:
            spec = node_spec_of(request.node)
        except WrongRequest as wrong:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, wrong.message)
            raise
        if max([request.epoch, request.highest_task, *(it.task for it in request.attempts)]) > LARGEST_NUMBER:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "The node names an epoch or a task that can not be.")
        if self._loop.full:
            await context.abort(grpc.StatusCode.UNAVAILABLE, self._loop.full)
        await self._refuse_double(spec.id, request.instance, context)
        await self._notice_lost_facts(request)
        there = {(TaskId(it.task), it.attempt): int(it.state) for it in request.attempts}
        running = tuple(key for key, told in there.items() if told != pb.Attempt.ENDED)
        answer = await self._loop.tell(command.JoinNode(spec, running), f"agent:{spec.id}")
        if isinstance(answer, Refusal):
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, answer.sentence())
        session = Session(request, there)
        if (old := self.sessions.get(spec.id)) is not None:
            old.close()
        self.sessions[spec.id] = session
        self._instances[spec.id] = request.instance
        self._hear_from(spec.id)
        log.info("agent_registered", node_id=spec.id, gpus=len(spec.gpus), version=request.version, attempts=len(there))
        return pb.Welcome(
            yard=state.yard,
            epoch=state.epoch,
            seq=self._loop.committed,
            session=session.id,
            heartbeat_seconds=self._heartbeat_seconds,
            offline_after_seconds=self._offline_after_seconds,
            version=__version__,
        )

    async def _refuse_double(self, node: NodeId, instance: str, context: Any) -> None:
        known = self._instances.get(node)
        if known is None or known == instance:
            return
        silent = asyncio.get_running_loop().time() - self._last_heard.get(node, 0.0)
        if silent < self._offline_after_seconds:
            message = (
                f"Another agent with the id {node} is connected. Give each its own agent.id; "
                "an agent that moved to a new work folder is let in when the old one has been silent for "
                f"{self._offline_after_seconds:.0f} s."
            )
            await context.abort(grpc.StatusCode.ALREADY_EXISTS, message)

    async def _notice_lost_facts(self, request: pb.Registration) -> None:
        """A node is a witness of how far the journal went. It obeys nobody whose epoch it has outlived."""
        highest = TaskId(max([request.highest_task, *(it.task for it in request.attempts)]))
        state = self._loop.engine.state
        if request.epoch > state.epoch or highest > state.last_task:
            await self._loop.tell(command.BeginEpoch(__version__, request.epoch, highest))
        if request.seq > self._loop.committed:
            log.error(
                "journal_is_behind",
                node=request.node.id,
                seen=request.seq,
                here=self._loop.committed,
                message="This node has seen facts that the journal does not hold: was an old copy restored? "
                "Attempts the journal does not know are held and shown as strays.",
            )

    # --- the stream --------------------------------------------------------------------------------------------------

    async def connect(
        self, messages: AsyncIterator[pb.AgentMessage], context: Any
    ) -> AsyncIterator[pb.SchedulerMessage]:
        """One agent, for as long as it stays."""
        given = dict(context.invocation_metadata()).get(SESSION, "")
        session = next((it for it in self.sessions.values() if it.id == given), None)
        if session is None or session.connected:
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, "This session is over; register again.")
            return
        session.connected = True
        await self._reconcile(session)
        reader = asyncio.create_task(self._read(session, messages))
        try:
            async for message in session.messages(self._loop.engine.state.epoch, lambda: self._loop.committed):
                if reader.done():
                    break
                yield message
        finally:
            reader.cancel()
            session.close()
            if self.sessions.get(session.node) is session:
                session.connected = False

    async def _reconcile(self, session: Session) -> None:
        """Say to a node that came what follows from what we know and what it has."""

        def ask(state: State, now: float) -> tuple[Reconciled, list[pb.Command]]:
            found = reconcile(state, session.node, session.there)
            said = [launches.present(state.tasks[task], session.node) for task, _ in found.say]
            said += [launches.reminder(state.tasks[task], session.node) for task, _ in found.remind]
            said += [launches.extend(state.tasks[task], now) for task, _ in (*found.say, *found.remind)]
            for held in state.on_node.get(session.node, {}).values():
                self._join_gang(state, held.id)
            return found, [it for it in said if it is not None]

        found, commands = await self._loop.look(ask)
        for it in commands:
            if it.HasField("launch"):
                self._complete(it, with_secrets=(it.task, it.attempt) in found.say)
        for report in found.reports:
            self._loop.tell(report, f"agent:{session.node}")
        for task, attempt in found.stop:
            commands.append(launches.stop(task, attempt, "The task went on elsewhere."))
        for task, attempt in found.strays:
            log.warning("stray_attempt", node=session.node, task=task, attempt=attempt)
            session.strays[task, attempt] = None
            commands.append(pb.Command(task=task, attempt=attempt, stray=pb.Stray(task=task, attempt=attempt)))
        session.send(commands)

    def _join_gang(self, state: State, task_id: TaskId) -> None:
        """After a restart nobody remembers which parts of a gang were ready: they say so again when they are told to launch."""
        task = state.tasks[task_id]
        nodes = task.phase.placement.nodes  # type: ignore[attr-defined]
        if len(nodes) < 2 or not isinstance(task.phase, Placed):
            return
        gang = self._gangs.setdefault((task_id, task.attempts), Gang(nodes))
        for node in nodes:  # a part that runs already is as ready as one that waits
            session = self.sessions.get(node)
            if session is not None and session.there.get((task_id, task.attempts)) == pb.Attempt.RUNNING:
                gang.ports[node] = session.ports.get((task_id, task.attempts), 0)

    async def _read(self, session: Session, messages: AsyncIterator[pb.AgentMessage]) -> None:
        try:
            async for message in messages:
                if session.closed:
                    return
                self._hear_from(session.node)
                if message.HasField("heartbeat"):
                    self._heartbeat(session, message.heartbeat)
                if message.reports:
                    session.backlog.extend(message.reports)
                    self._take_reports(session)
        except Exception:  # one agent's nonsense is its own affair
            if not self._stopping:
                log.exception("agent_stream_failed", node=session.node)
        finally:
            session.close()

    def _hear_from(self, node: NodeId) -> None:
        self._last_heard[node] = asyncio.get_running_loop().time()

    def _heartbeat(self, session: Session, heartbeat: pb.Heartbeat) -> None:
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

    def _hear_of_card(self, session: Session, index: int, health: GpuHealth) -> None:
        """Tell the engine where the node says something else than the journal, one word at a time."""
        view = self._views.nodes.get(session.node)
        if view is None or index >= len(view.spec.gpus) or index in session.telling or self._loop.full:
            return
        if view.health.get(index, GpuHealth.OK) is not health:
            session.telling.add(index)
            told = self._loop.tell(command.SetGpuHealth(session.node, index, health), f"agent:{session.node}")
            told.add_done_callback(lambda _: session.telling.discard(index))

    def _take_reports(self, session: Session) -> None:
        """Hand over what a node has reported, unless there is no space: then it waits, and the node is told nothing."""
        if self._loop.full or not session.backlog:
            return
        reports, session.backlog = session.backlog, []
        by = f"agent:{session.node}"
        told: list[asyncio.Future[Any]] = []
        number = 0
        for report in reports:
            number = max(number, report.number)
            asked = self._command_of(session, report)
            if asked is not None:
                told.append(self._loop.tell(asked, by))
        if (
            told
        ):  # answers come in the order of the questions, so the last one stands for all; others wait for no receipt
            told[-1].add_done_callback(lambda _: self._receive(session, told, number))

    def _receive(self, session: Session, told: "list[asyncio.Future[Any]]", number: int) -> None:
        """Say that reports are durable. One that is refused is out of date: an answer, too."""
        if session.closed:
            return
        failed = next((error for it in told if (error := it.exception()) is not None), None)
        if failed is not None:
            log.warning("report_not_taken", node=session.node, why=str(failed))
            session.close()  # it registers again and says everything anew
            return
        session.received = max(session.received, number)
        session.wake_soon()

    def _command_of(self, session: Session, report: pb.Report) -> command.Command | None:
        task, attempt, node = TaskId(report.task), report.attempt, session.node
        match report.WhichOneof("what"):
            case "ended":
                it = report.ended
                self._gangs.pop((task, attempt), None)
                return command.ReportEnded(
                    task,
                    attempt,
                    outcome_of(it.outcome),
                    it.exit_code if it.HasField("exit_code") else None,
                    node,
                    it.signal if it.HasField("signal") else None,
                    it.message[:1000],
                    actual_of(it),
                )
            case "started":
                return command.ReportStarted(task, attempt, node)
            case "prepared":
                self._part_prepared(task, attempt, node, report.prepared.port)
                return None
            case "suspended":
                return command.ReportSuspended(task, attempt, report.suspended.round, node)
            case "resumed":
                return command.ReportResumed(task, attempt, report.resumed.round, node)
            case "not_suspended":
                said = report.not_suspended
                return command.ReportNotSuspended(task, attempt, said.round, said.message[:1000], node)
            case "not_resumed":
                told = report.not_resumed
                return command.ReportNotResumed(task, attempt, told.round, told.message[:1000], node)
        return None

    def _part_prepared(self, task: TaskId, attempt: int, node: NodeId, port: int) -> None:
        """When the last part of a gang is ready, all of them start."""
        gang = self._gangs.get((task, attempt))
        if gang is None or node not in gang.nodes:
            return
        gang.ports[node] = port
        if len(gang.ports) < len(gang.nodes):
            return
        first = self.sessions.get(gang.nodes[0])
        if first is None:
            return
        for rank, member in enumerate(gang.nodes):
            start = pb.Start(
                master_addr=first.address or "127.0.0.1",
                master_port=gang.ports[gang.nodes[0]],
                node_rank=rank,
                nodes=len(gang.nodes),
                rank=rank,
                world_size=len(gang.nodes),
            )
            self._send(member, pb.Command(task=task, attempt=attempt, start=start))

    # --- who is there ------------------------------------------------------------------------------------------------

    async def watch(self) -> None:
        """Declare nodes lost that were not heard of for too long."""
        loop = asyncio.get_running_loop()
        before = loop.time()
        for node in self._views.nodes:
            self._last_heard.setdefault(node, before)
        while True:
            await asyncio.sleep(CHECK_SECONDS)
            now = loop.time()
            stood_still = now - before - CHECK_SECONDS
            before = now
            if stood_still > STALLED_SECONDS:
                log.warning("stood_still", seconds=round(stood_still, 1))
            if self._loop.full:
                stood_still += CHECK_SECONDS  # nobody can join or report meanwhile, so nobody is silent
            if stood_still > STALLED_SECONDS or self._loop.full:
                for node in self._last_heard:
                    self._last_heard[node] += stood_still
            for session in list(self.sessions.values()):
                self._take_reports(session)
            with suppress(StorageFull):
                await self._lose_the_silent(now)

    async def _lose_the_silent(self, now: float) -> None:
        patient_until = self._loop.engine.state.patient_until
        if self._loop.full or patient_until > self._loop.clock():
            return
        for node, view in list(self._views.nodes.items()):
            if not view.lost and now - self._last_heard.setdefault(node, now) > self._offline_after_seconds:
                if (session := self.sessions.get(node)) is not None:
                    session.close()
                silent_seconds = round(now - self._last_heard[node], 1)
                if not isinstance(await self._loop.tell(command.LoseNode(node)), Refusal):
                    log.warning("agent_offline", node_id=node, silent_seconds=silent_seconds)

    def begin_anew(self) -> None:
        """Have every agent register again: a command may not have been said, and reconciling says it."""
        for session in self.sessions.values():
            session.close()

    def be_patient(self, seconds: float) -> None:
        """Tell all nodes that we stop on purpose and will be back."""
        self._stopping = True
        for session in self.sessions.values():
            session.patience_seconds = seconds
            session.wake()

    def stop_stray(self, node: NodeId, task: TaskId, attempt: int) -> bool:
        """End an attempt nobody knows, because an operator says so."""
        session = self.sessions.get(node)
        if session is None or not session.connected or (task, attempt) not in session.strays:
            return False
        del session.strays[task, attempt]
        session.send([launches.stop(task, attempt, "An operator ended this stray attempt.")])
        return True

    async def send_log(self, chunks: AsyncIterator[pb.LogChunk], context: Any) -> pb.LogReceipt:
        """Output that somebody asked for."""
        return await self.outputs.send_log(chunks, context)


class Gang:
    """The parts of an attempt on several nodes, until all are ready to start together."""

    def __init__(self, nodes: tuple[NodeId, ...]) -> None:
        self.nodes = nodes
        self.ports: dict[NodeId, int] = {}


def is_owner(by: str) -> bool:
    """Whether a task was submitted by whoever owns the scheduler's process."""
    return by.startswith("local:")
