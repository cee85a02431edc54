"""How an attempt progresses and ends, on one or several nodes.

For its task an attempt is a unit: it starts when its last part has started and ends when its last part has ended. A
part that fails stops the others. Parts that lost nodes may still run count as ended, and are recorded.
"""

from gpuyard.core.domain import commands as command
from gpuyard.core.domain import events
from gpuyard.core.domain.actual import combined_actual
from gpuyard.core.domain.causes import Cause, CauseKind
from gpuyard.core.domain.values import NodeId, Outcome, TaskStatus
from gpuyard.core.engine.ledger import Ledger
from gpuyard.core.engine.lifecycle.endings import end, finish
from gpuyard.core.engine.phases import ACTIVE, Placed, Resuming, Stopping, Suspending, Waiting
from gpuyard.core.engine.scheduling.backfill import is_unreachable
from gpuyard.core.engine.task import OpenTask


def advance_attempt(ledger: Ledger, task: OpenTask, node: NodeId | None, started_at: float | None = None) -> None:
    """Handle the completed start, suspension or resumption of an attempt or, with `node`, of its part on that node.

    A gang completes the step when its last part does.
    """
    phase = task.phase
    nodes = task.active.placement.nodes
    if node is not None:
        there = {node, *(task.ready or ()), *(task.members or ())}
        if not there.issuperset(nodes):
            if node not in (task.ready or ()) and node not in (task.members or ()):
                ledger.emit(events.MemberReady(task.id, task.attempts, node))
            return
    if isinstance(phase, Placed):
        ledger.emit(events.AttemptStarted(task.id, task.attempts, _while_placed(ledger, task, started_at)))
    elif isinstance(phase, Suspending):
        ledger.emit(events.AttemptSuspended(task.id, task.attempts))
        for reservation in [
            reservation
            for reservation in ledger.state.reservations.values()
            if is_unreachable(ledger.state, reservation)
        ]:
            ledger.emit(events.ReservationDropped(reservation.task.id, Cause(CauseKind.ROOM_LOST)))
    elif isinstance(phase, Resuming):
        ledger.emit(events.AttemptResumed(task.id, task.attempts))


def _while_placed(ledger: Ledger, task: OpenTask, instant: float | None) -> float | None:
    """Limit an instant reported by a node to the time between the placement and now."""
    return None if instant is None else min(max(instant, task.placed_at), ledger.state.now)


def end_or_stop(ledger: Ledger, task: OpenTask, cause: Cause, status: TaskStatus) -> None:
    """End a waiting task; stop an active one, or change the cause of a stop that is already in progress."""
    phase = task.phase
    if isinstance(phase, Waiting):
        end(ledger, task, status, cause)
    elif isinstance(phase, ACTIVE):
        ledger.emit(events.AttemptStopping(task.id, phase.attempt, cause))
        if any(ledger.state.index.hosts[node].lost for node in phase.placement.nodes):
            finish_lost(ledger, task)  # a lost node cannot report the end


def part_ended(ledger: Ledger, task: OpenTask, asked: command.ReportEnded) -> None:
    """Handle the end of an attempt, or of its part on one node."""
    nodes = task.active.placement.nodes
    if asked.node is not None and len(nodes) > 1:
        _member_ended(ledger, task, nodes, asked)
    else:
        finish(ledger, task, asked, tuple(task.presumed or ()))


def _member_ended(ledger: Ledger, task: OpenTask, nodes: tuple[NodeId, ...], asked: command.ReportEnded) -> None:
    """Handle the end of a part of a gang: the first failure stops the other parts, the last part ends the attempt."""
    assert asked.node is not None
    if asked.node in (task.members or {}):
        return
    ledger.emit(
        events.MemberEnded(
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
        ledger.emit(events.AttemptStopping(task.id, asked.attempt, Cause(CauseKind.MEMBER_FAILED, node=asked.node)))
    else:
        advance_attempt(ledger, task, asked.node)


def finish_lost(ledger: Ledger, task: OpenTask, gone: NodeId | None = None) -> None:
    """End an attempt whose nodes are lost; they may still run it, except for a node that is removed (`gone`).

    If parts of a gang are on other nodes, these are stopped first; the parts on lost nodes count as ended.
    """
    hosts, nodes = ledger.state.index.hosts, task.active.placement.nodes
    missing = [node for node in nodes if hosts[node].lost and node not in (task.members or {})]
    if len(nodes) > 1 and len(missing) + len(task.members or {}) < len(nodes):
        for node in missing:
            _member_ended(ledger, task, nodes, command.ReportEnded(task.id, task.attempts, Outcome.LOST, node=node))
        return
    orphaned_on = (node for node in nodes if (node in missing or node in (task.presumed or ())) and node != gone)
    finish(ledger, task, command.ReportEnded(task.id, task.attempts, Outcome.LOST), tuple(orphaned_on))
