"""What nodes say about attempts: started, suspended, resumed, ended.

A report about an attempt that is not the present one is refused; one that says again what is known already, or what
does not matter any more, is taken and makes no fact.
"""

from math import isfinite
from typing import Any

from gpuyard.core.domain import commands as command
from gpuyard.core.domain import events as fact
from gpuyard.core.domain import refusals as no
from gpuyard.core.domain.causes import Cause, Why
from gpuyard.core.domain.refusals import Refusal
from gpuyard.core.domain.values import AttemptRef, NodeId, Outcome, TaskId
from gpuyard.core.engine.attempts import moves_on, part_ended
from gpuyard.core.engine.ledger import Ledger
from gpuyard.core.engine.phases import ACTIVE, Placed, Resuming, Running, Suspending
from gpuyard.core.engine.task import Task


def started(ledger: Ledger, asked: command.ReportStarted) -> Refusal | None:
    """It runs, or its part on one node does."""
    task = _attempt(ledger, asked.task, asked.attempt, asked.node, asked.origin)
    if isinstance(task, Refusal):
        return task
    if asked.started_at is not None and not isfinite(asked.started_at):
        return no.NotFinite("started_at")
    if isinstance(task.phase, Placed):
        moves_on(ledger, task, asked.node, asked.started_at)
    return None  # said twice, or already being stopped: nothing new


def suspended(ledger: Ledger, asked: command.ReportSuspended) -> Refusal | None:
    """It has left its GPUs, or its part on one node has."""
    task = _suspension(ledger, asked)
    if isinstance(task, Refusal):
        return task
    if isinstance(task.phase, Suspending):
        moves_on(ledger, task, asked.node)
    return None


def resumed(ledger: Ledger, asked: command.ReportResumed) -> Refusal | None:
    """It runs again, or its part on one node does."""
    task = _suspension(ledger, asked)
    if isinstance(task, Refusal):
        return task
    if isinstance(task.phase, Resuming):
        moves_on(ledger, task, asked.node)
    return None


def not_suspended(ledger: Ledger, asked: command.ReportNotSuspended) -> Refusal | None:
    """It runs on. Whoever it was to make room for asks anew; parts of a gang that were moved come back."""
    task = _suspension(ledger, asked)
    if isinstance(task, Refusal):
        return task
    if isinstance(task.phase, Suspending):
        claims = [reservation for reservation in ledger.state.reservations.values() if task.id in reservation.victims]
        ledger.emit(fact.SuspensionFailed(task.id, asked.attempt, asked.round, asked.message))
        for reservation in claims:
            ledger.emit(fact.ReservationDropped(reservation.task.id, Cause(Why.NOT_SUSPENDED, task=task.id)))
    return None


def not_resumed(ledger: Ledger, asked: command.ReportNotResumed) -> Refusal | None:
    """What was in host memory is gone; the task starts over."""
    task = _suspension(ledger, asked)
    if isinstance(task, Refusal):
        return task
    if isinstance(task.phase, Resuming | Running):
        report = command.ReportEnded(task.id, asked.attempt, Outcome.LOST, node=asked.node, message=asked.message)
        part_ended(ledger, task, report)
    return None


def ended(ledger: Ledger, asked: command.ReportEnded) -> Refusal | None:
    """It is over, or its part on one node is; so may be what was given up with a node that was lost."""
    if asked.node in ledger.state.index.hosts:
        what = AttemptRef(asked.task, asked.attempt, asked.origin)
        if what in ledger.state.presumed_on(asked.node):
            ledger.emit(fact.RemainsEnded(asked.node, *what))
            return None
    task = _attempt(ledger, asked.task, asked.attempt, asked.node, asked.origin)
    if isinstance(task, Refusal):
        return task
    if refusal := _not_finite(asked):
        return refusal
    part_ended(ledger, task, asked)
    return None


def _not_finite(asked: command.ReportEnded) -> Refusal | None:
    busy = asked.actual.gpu_utilization if asked.actual is not None else None
    if busy is not None and not isfinite(busy):
        return no.NotFinite("gpu_utilization")
    return no.NotFinite("ended_at") if asked.ended_at is not None and not isfinite(asked.ended_at) else None


def _attempt(ledger: Ledger, task_id: TaskId, attempt: int, node: NodeId | None, origin: int) -> Task | Refusal:
    """The task a report speaks of, if the attempt is the present one and on that node."""
    task = ledger.state.tasks.get(task_id)
    if task is None or not isinstance(task.phase, ACTIVE) or (task.phase.attempt, task.origin) != (attempt, origin):
        return no.StaleReport(task_id, attempt)
    if node is not None and node not in task.phase.placement.nodes:
        return no.NotOnNode(task_id, attempt, node)
    return task


def _suspension(ledger: Ledger, asked: Any) -> Task | Refusal:
    """The task a report about a suspension speaks of, if that is the present one."""
    task = _attempt(ledger, asked.task, asked.attempt, asked.node, asked.origin)
    if isinstance(task, Task) and asked.round != task.round:
        return no.StaleReport(asked.task, asked.attempt)
    return task
