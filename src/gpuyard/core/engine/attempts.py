"""How an attempt moves on and comes to its end, on however many nodes it is.

To its task an attempt is one thing: it starts when its last part has started, it is over when its last part is. A part
that fails stops the others; what lost nodes may still run of it counts as over, and is remembered.
"""

from gpuyard.core.domain import commands as command
from gpuyard.core.domain import events as fact
from gpuyard.core.domain.actual import combined_actual
from gpuyard.core.domain.causes import Cause, Why
from gpuyard.core.domain.values import NodeId, Outcome, TaskStatus
from gpuyard.core.engine.backfill import is_hopeless
from gpuyard.core.engine.endings import end, finish
from gpuyard.core.engine.ledger import Ledger
from gpuyard.core.engine.phases import ACTIVE, Placed, Resuming, Stopping, Suspending, Waiting
from gpuyard.core.engine.task import Task


def moves_on(ledger: Ledger, task: Task, node: NodeId | None, started_at: float | None = None) -> None:
    """An attempt, or its part on one node, has done what it was to do; a gang has when its last part has."""
    phase = task.phase
    nodes = task.active.placement.nodes
    if node is not None:
        there = {node, *(task.ready or ()), *(task.members or ())}
        if not there.issuperset(nodes):
            if node not in (task.ready or ()) and node not in (task.members or ()):
                ledger.emit(fact.MemberReady(task.id, task.attempts, node))
            return
    if isinstance(phase, Placed):
        ledger.emit(fact.AttemptStarted(task.id, task.attempts, _while_placed(ledger, task, started_at)))
    elif isinstance(phase, Suspending):
        ledger.emit(fact.AttemptSuspended(task.id, task.attempts))
        for reservation in [
            reservation for reservation in ledger.state.reservations.values() if is_hopeless(ledger.state, reservation)
        ]:
            ledger.emit(fact.ReservationDropped(reservation.task.id, Cause(Why.ROOM_LOST)))
    elif isinstance(phase, Resuming):
        ledger.emit(fact.AttemptResumed(task.id, task.attempts))


def _while_placed(ledger: Ledger, task: Task, instant: float | None) -> float | None:
    """An instant that a node has told, no earlier than the placement and no later than now."""
    return None if instant is None else min(max(instant, task.placed_at), ledger.state.now)


def end_or_stop(ledger: Ledger, task: Task, cause: Cause, status: TaskStatus) -> None:
    """End a task that waits; have a task that runs stopped, or what is already being done to it end in this way."""
    phase = task.phase
    if isinstance(phase, Waiting):
        end(ledger, task, status, cause)
    elif isinstance(phase, ACTIVE):
        ledger.emit(fact.AttemptStopping(task.id, phase.attempt, cause))
        if any(ledger.state.index.hosts[node].lost for node in phase.placement.nodes):
            finish_lost(ledger, task)  # nobody is there to be asked


def part_ended(ledger: Ledger, task: Task, asked: command.ReportEnded) -> None:
    """An attempt, or its part on one node, is over."""
    nodes = task.active.placement.nodes
    if asked.node is not None and len(nodes) > 1:
        _member_ended(ledger, task, nodes, asked)
    else:
        finish(ledger, task, asked, tuple(task.presumed or ()))


def _member_ended(ledger: Ledger, task: Task, nodes: tuple[NodeId, ...], asked: command.ReportEnded) -> None:
    """A gang lives and dies together: the first part that fails stops the others, the last part ends the attempt."""
    assert asked.node is not None
    if asked.node in (task.members or {}):
        return
    ledger.emit(
        fact.MemberEnded(
            task.id,
            asked.attempt,
            asked.node,
            asked.outcome,
            asked.exit_code,
            asked.signal,
            asked.message,
            asked.actual,
        )
    )
    ends = list((task.members or {}).values())
    if len(ends) == len(nodes):
        failed = (part for part in ends if part.outcome not in {Outcome.SUCCEEDED, Outcome.STOPPED})
        stopped = (part for part in ends if part.outcome is Outcome.STOPPED)
        full = (part for part in ends if part.outcome is Outcome.OUT_OF_MEMORY)
        how = next(full, None) or next(failed, None) or next(stopped, ends[-1])
        actual = combined_actual(part.actual for part in ends)
        report = command.ReportEnded(
            task.id, asked.attempt, how.outcome, how.exit_code, how.node, how.signal, how.message, actual,
            ended_at=asked.ended_at,
        )  # fmt: skip
        finish(ledger, task, report, tuple(node for node in nodes if node in (task.presumed or ())))
    elif asked.outcome is not Outcome.SUCCEEDED and not isinstance(task.phase, Stopping):
        ledger.emit(fact.AttemptStopping(task.id, asked.attempt, Cause(Why.MEMBER_FAILED, node=asked.node)))
    else:
        moves_on(ledger, task, asked.node)


def finish_lost(ledger: Ledger, task: Task, gone: NodeId | None = None) -> None:
    """An attempt is lost with its nodes, which may run it still, unless they are gone for good.

    The rest of a gang is stopped first; its parts on lost nodes count as over.
    """
    hosts, nodes = ledger.state.index.hosts, task.active.placement.nodes
    missing = [node for node in nodes if hosts[node].lost and node not in (task.members or {})]
    if len(nodes) > 1 and len(missing) + len(task.members or {}) < len(nodes):
        for node in missing:
            _member_ended(ledger, task, nodes, command.ReportEnded(task.id, task.attempts, Outcome.LOST, node=node))
        return
    remains = (node for node in nodes if (node in missing or node in (task.presumed or ())) and node != gone)
    finish(ledger, task, command.ReportEnded(task.id, task.attempts, Outcome.LOST), tuple(remains))
