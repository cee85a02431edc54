"""Reports of nodes about attempts: started, suspended, resumed, ended.

A report about an attempt that is not the present one is refused. A report that repeats what is already known, or is no
longer relevant, is accepted and emits no event.
"""

from math import isfinite
from typing import Any

from gpuyard.core.domain import commands as command
from gpuyard.core.domain import events
from gpuyard.core.domain import refusals as no
from gpuyard.core.domain.causes import Cause, CauseKind
from gpuyard.core.domain.refusals import Refusal
from gpuyard.core.domain.values import AttemptRef, NodeId, Outcome, TaskId
from gpuyard.core.engine.ledger import Ledger
from gpuyard.core.engine.lifecycle.attempts import advance_attempt, part_ended
from gpuyard.core.engine.phases import ACTIVE, Placed, Resuming, Running, Suspending
from gpuyard.core.engine.task import OpenTask


def started(ledger: Ledger, asked: command.ReportStarted) -> Refusal | None:
    """Handle the start of an attempt, or of its part on one node."""
    task = _attempt(ledger, asked.task, asked.attempt, asked.node, asked.origin)
    if isinstance(task, Refusal):
        return task
    if asked.started_at is not None and not isfinite(asked.started_at):
        return no.NotFinite("started_at")
    if isinstance(task.phase, Placed):
        advance_attempt(ledger, task, asked.node, asked.started_at)
    return None  # a repeated report, or the attempt is already being stopped


def suspended(ledger: Ledger, asked: command.ReportSuspended) -> Refusal | None:
    """Handle the completed suspension of an attempt, or of its part on one node."""
    task = _suspension(ledger, asked)
    if isinstance(task, Refusal):
        return task
    if isinstance(task.phase, Suspending):
        advance_attempt(ledger, task, asked.node)
    return None


def resumed(ledger: Ledger, asked: command.ReportResumed) -> Refusal | None:
    """Handle the completed resumption of an attempt, or of its part on one node."""
    task = _suspension(ledger, asked)
    if isinstance(task, Refusal):
        return task
    if isinstance(task.phase, Resuming):
        advance_attempt(ledger, task, asked.node)
    return None


def not_suspended(ledger: Ledger, asked: command.ReportNotSuspended) -> Refusal | None:
    """Handle a failed suspension: the attempt keeps running, and suspended parts of a gang are resumed.

    Reservations that waited for the suspension are dropped, so their tasks are tried again.
    """
    task = _suspension(ledger, asked)
    if isinstance(task, Refusal):
        return task
    if isinstance(task.phase, Suspending):
        claims = [reservation for reservation in ledger.state.reservations.values() if task.id in reservation.victims]
        ledger.emit(events.SuspensionFailed(task.id, asked.attempt, asked.round, asked.message))
        for reservation in claims:
            ledger.emit(events.ReservationDropped(reservation.task.id, Cause(CauseKind.NOT_SUSPENDED, task=task.id)))
    return None


def not_resumed(ledger: Ledger, asked: command.ReportNotResumed) -> Refusal | None:
    """Handle a failed resumption: the state in host memory is lost, and the task starts over."""
    task = _suspension(ledger, asked)
    if isinstance(task, Refusal):
        return task
    if isinstance(task.phase, Resuming | Running):
        report = command.ReportEnded(task.id, asked.attempt, Outcome.LOST, node=asked.node, message=asked.message)
        part_ended(ledger, task, report)
    return None


def ended(ledger: Ledger, asked: command.ReportEnded) -> Refusal | None:
    """Handle the end of an attempt or of its part on one node, including attempts given up with a lost node."""
    if asked.node in ledger.state.index.hosts:
        what = AttemptRef(asked.task, asked.attempt, asked.origin)
        if what in ledger.state.presumed_on(asked.node):
            ledger.emit(events.OrphanedAttemptEnded(asked.node, *what))
            return None
    task = _attempt(ledger, asked.task, asked.attempt, asked.node, asked.origin)
    if isinstance(task, Refusal):
        return task
    if refusal := _not_finite(asked):
        return refusal
    part_ended(ledger, task, asked)
    return None


def _not_finite(asked: command.ReportEnded) -> Refusal | None:
    for name in ("gpu_utilization", "gpu_idle_fraction", "gpu_power_watts"):
        measured = getattr(asked.actual, name) if asked.actual is not None else None
        if measured is not None and not isfinite(measured):
            return no.NotFinite(name)
    return no.NotFinite("ended_at") if asked.ended_at is not None and not isfinite(asked.ended_at) else None


def _attempt(ledger: Ledger, task_id: TaskId, attempt: int, node: NodeId | None, origin: int) -> OpenTask | Refusal:
    """Return the task of a report, if the attempt is the present one and is on that node."""
    task = ledger.state.tasks.get(task_id)
    if task is None or not isinstance(task.phase, ACTIVE) or (task.phase.attempt, task.origin) != (attempt, origin):
        return no.StaleReport(task_id, attempt)
    if node is not None and node not in task.phase.placement.nodes:
        return no.NotOnNode(task_id, attempt, node)
    return task


def _suspension(ledger: Ledger, asked: Any) -> OpenTask | Refusal:
    """Return the task of a report about a suspension, if that suspension is the present one."""
    task = _attempt(ledger, asked.task, asked.attempt, asked.node, asked.origin)
    if isinstance(task, OpenTask) and asked.round != task.round:
        return no.StaleReport(asked.task, asked.attempt)
    return task
