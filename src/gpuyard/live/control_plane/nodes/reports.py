"""Reports of nodes: pass each to the engine as a command, and acknowledge it when its events are durable.

agent ─► report ─► command ─► engine ─► journal ─► acknowledged; until then the agent keeps the report
"""

import asyncio
from collections.abc import Container
from math import isfinite
from typing import Any

import structlog

from gpuyard.core.domain import commands as command
from gpuyard.core.domain.values import AttemptRef, NodeId
from gpuyard.live.control_plane.loop import EngineCrashed, EngineLoop
from gpuyard.live.control_plane.nodes.gangs import Gangs
from gpuyard.live.control_plane.nodes.sessions import AgentSession
from gpuyard.live.wire import agents_pb2 as pb
from gpuyard.live.wire.blobs import is_sha256
from gpuyard.live.wire.rpc import actual_of, attempt_of, outcome_of

MOST_AGO_SECONDS = 30 * 86_400.0
TRIES = 3
"""A report that breaks the engine this many times is acknowledged and dropped: it would break it forever."""

log = structlog.get_logger()


class ReportIntake:
    """Takes the reports of all nodes."""

    def __init__(self, loop: EngineLoop, gangs: Gangs) -> None:
        self._loop = loop
        self._gangs = gangs
        self._broke: dict[tuple[NodeId, AttemptRef], int] = {}
        """Number of times that the reports of an attempt broke the engine."""

    def ended(self, ref: AttemptRef) -> None:
        """Forget an attempt that has ended."""
        if self._broke:
            self._broke = {where: count for where, count in self._broke.items() if where[1] != ref}

    def keep_only(self, node: NodeId, there: Container[AttemptRef]) -> None:
        """Forget the attempts that a node no longer has."""
        self._broke = {where: count for where, count in self._broke.items() if where[0] != node or where[1] in there}

    def take(self, session: AgentSession) -> None:
        """Pass a node's reports to the engine. If the disk is full, keep them and acknowledge nothing."""
        if self._loop.unwritable or not session.backlog:
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
            if not answer.cancelled() and isinstance(answer.exception(), EngineCrashed):
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
                    it.result if is_sha256(it.result) else "",
                )
            case "started":
                return command.ReportStarted(task, attempt, node, origin, at)
            case "prepared":
                self._gangs.part_prepared(ref, node, report.prepared.port)
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
