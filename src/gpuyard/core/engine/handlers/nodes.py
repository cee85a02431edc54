"""Commands about nodes: they join, are lost, return, leave, are closed, or one of their GPUs fails.

Reservations on a node are dropped before the node changes, and made again by the scheduling pass that follows.
"""

from math import isfinite

from gpuyard.core.domain import commands as command
from gpuyard.core.domain import events
from gpuyard.core.domain import refusals as no
from gpuyard.core.domain.causes import Cause, CauseKind
from gpuyard.core.domain.node import has_same_gpus, is_same_gpu
from gpuyard.core.domain.placement import Slice
from gpuyard.core.domain.refusals import Refusal
from gpuyard.core.domain.validation import check_node
from gpuyard.core.domain.values import NOT_THERE, AttemptRef, NodeId, OnLost, Outcome, Preemption
from gpuyard.core.engine.ledger import Ledger
from gpuyard.core.engine.lifecycle.attempts import finish_lost, part_ended
from gpuyard.core.engine.lifecycle.endings import is_ending
from gpuyard.core.engine.phases import ACTIVE, Placed, Running, Suspended, Waiting
from gpuyard.core.engine.scheduling.preemption import will_be_cleared
from gpuyard.core.engine.state import State
from gpuyard.core.engine.task import OpenTask
from gpuyard.core.placement.index import NodeEntry


def join(ledger: Ledger, asked: command.JoinNode) -> Refusal | None:
    """Register a node: it is new, unchanged, changed, or a different machine under a known name."""
    spec, state = asked.node, ledger.state
    if refusal := check_node(spec) or _contradiction(state, asked):
        return refusal
    host = state.index.hosts.get(spec.id)
    if host is None:
        ledger.emit(events.NodeJoined(spec, asked.instance, asked.boot))
    elif host.spec == spec:
        _hear_of(ledger, spec.id, asked.attempts, asked.instance, asked.boot)
    elif has_same_gpus(host.spec, spec):
        _drop_reservations_on(ledger, spec.id)
        ledger.emit(events.NodeChanged(spec))
        _hear_of(ledger, spec.id, asked.attempts, asked.instance, asked.boot)
    elif state.on_node[spec.id] or any(what in asked.attempts for what in state.presumed_on(spec.id)):
        return no.NodeChangedInUse(spec.id)
    else:
        _replace(ledger, host, asked)
    _take_back(ledger, spec.id, asked.running)
    if asked.complete:
        _give_up_missing(ledger, asked)
    _take_unknown(ledger, spec.id, asked)
    return None


def _contradiction(state: State, asked: command.JoinNode) -> Refusal | None:
    """Refuse attempts that cannot be on the node: active on other nodes, or with our own origin and never placed.

    If they were recorded as orphaned, the same attempt would have two entries once it is placed or lost there.
    """
    node = asked.node.id
    for ref in dict.fromkeys((*asked.attempts, *(ref for ref, _ in asked.parts))):
        task = state.tasks.get(ref.task)
        if task is not None and isinstance(task.phase, ACTIVE) and (task.attempts, task.origin) == ref[1:]:
            if node not in task.phase.placement.nodes:
                return no.AttemptElsewhere(node, *ref[:2], task.phase.placement.nodes)
        elif ref.origin == state.origin and not _was_placed(state, ref):
            return no.AttemptNeverPlaced(node, *ref[:2])
    return None


def _was_placed(state: State, ref: AttemptRef) -> bool:
    """Whether this scheduler can have placed an attempt with its origin. For ended tasks the count is not kept."""
    task = state.tasks.get(ref.task)
    return state.was_ours(ref.task) if task is None else ref.attempt <= task.attempts


def _hear_of(
    ledger: Ledger, node: NodeId, attempts: tuple[AttemptRef, ...], instance: str = "", boot: str = ""
) -> None:
    """Handle the report of a known node: anything it may have run that is not in `attempts` has ended."""
    state = ledger.state
    presumed, host = state.presumed_on(node), state.index.hosts[node]
    other = (instance, boot) != state.agents.get(node, ("", "")) and bool(instance)
    if host.lost or host.away or other:
        orphaned = tuple(what for what in presumed if what in attempts)
        ledger.emit(events.NodeReturned(node, orphaned, instance if other else "", boot if other else ""))
        return
    for what in presumed:
        if what not in attempts:
            ledger.emit(events.OrphanedAttemptEnded(node, *what))


def _take_back(ledger: Ledger, node: NodeId, running: tuple[AttemptRef, ...]) -> None:
    """Recover attempts that a lost node still runs and whose tasks wait: they continue instead of starting over."""
    state = ledger.state
    for ref in running:
        left, task = state.orphaned_attempts.get(node, {}).get(ref), state.tasks.get(ref.task)
        if left is None or not left.ran or task is None or task.held or not isinstance(task.phase, Waiting):
            continue
        if any(ref in others for name, others in state.orphaned_attempts.items() if name != node):
            continue  # another node reports the same attempt, so it is unknown which of the two runs it
        if (task.attempts, task.origin) == ref[1:]:
            ledger.emit(events.AttemptRecovered(task.id, ref.attempt, node))


def _give_up_missing(ledger: Ledger, asked: command.JoinNode) -> None:
    """Mark attempts that should be on a node and are not as lost, before their GPUs are counted as free.

    A placed attempt that is missing is launched again, under the same name, by the scheduler that placed it. A later
    scheduler cannot know whether it has already run, because its journal may be an old copy. An attempt is also not
    launched again on GPUs that an unknown attempt uses.
    """
    state, node = ledger.state, asked.node.id
    there = {*asked.attempts, *asked.ended}
    taken = {gpu for ref, part in asked.parts if not _is_ours(state, node, ref) for gpu in part.gpus}
    for task in list(state.on_node[node].values()):
        if node in (task.members or {}) or AttemptRef(task.id, task.attempts, task.origin) in there:
            continue
        phase = task.phase
        if isinstance(phase, Placed) and task.origin == state.origin:
            part = next(part for part in phase.placement.slices if part.node == node)
            if not taken.intersection(part.gpus):
                continue
        lost = command.ReportEnded(
            task.id, task.attempts, Outcome.LOST, node=node, message=NOT_THERE, origin=task.origin
        )
        part_ended(ledger, task, lost)


def _is_ours(state: State, node: NodeId, ref: AttemptRef) -> bool:
    ours = state.on_node[node].get(ref.task)
    return ours is not None and (ours.attempts, ours.origin) == ref[1:]


def _take_unknown(ledger: Ledger, node: NodeId, asked: command.JoinNode) -> None:
    """Record attempts on a node that are unknown, or known as ended: they hold GPUs nevertheless.

    If the journal is out of date, other tasks are booked on these GPUs; the attempts that really run there take
    precedence.
    """
    state = ledger.state
    for ref, part in asked.parts:
        if part.node != node or _is_ours(state, node, ref):
            continue
        free = state.index.free_of(part)
        if ref not in state.orphaned_attempts.get(node, {}) and (free or part.gpus):
            _drop_reservations_on(ledger, node)
            wanted = None if free == part else part
            ledger.emit(events.OrphanedAttemptFound(node, *ref, free or Slice(node), wanted))


def stop(ledger: Ledger, asked: command.StopNode) -> Refusal | None:
    """Note that an agent stops and will return: its attempts continue, and the node gets no new ones meanwhile."""
    if refusal := _known_node(ledger, asked.node):
        return refusal
    if not isfinite(asked.back_within_seconds):
        return no.NotFinite("back_within_seconds")
    if asked.back_within_seconds < 0:
        return no.NegativeCount("back_within_seconds", asked.back_within_seconds)
    if not ledger.state.index.hosts[asked.node].lost:
        _drop_reservations_on(ledger, asked.node)
        ledger.emit(events.NodeStopped(asked.node, ledger.state.now + asked.back_within_seconds))
    return None


def _replace(ledger: Ledger, before: NodeEntry, asked: command.JoinNode) -> None:
    """Replace an unused node whose GPUs changed by a new one; its cordon and GPU health are kept."""
    spec, health = asked.node, {gpu: before.health[gpu] for gpu in sorted(before.health)}
    _drop_reservations_on(ledger, spec.id)
    ledger.emit(events.NodeRemoved(spec.id))
    ledger.emit(events.NodeJoined(spec, asked.instance, asked.boot))
    for index, gpu in enumerate(spec.gpus):
        was = next((at for at in health if is_same_gpu(before.spec.gpus[at], gpu, at == index)), None)
        if was is not None:
            ledger.emit(events.GpuHealthChanged(spec.id, index, health[was]))
    if before.cordoned:
        ledger.emit(events.NodeCordoned(spec.id, before.draining, before.cordon_reason))


def lose(ledger: Ledger, asked: command.LoseNode) -> Refusal | None:
    """Mark a node as lost: its attempts are restarted elsewhere, unless their tasks are set to wait."""
    if refusal := _known_node(ledger, asked.node):
        return refusal
    if ledger.state.index.hosts[asked.node].lost:
        return None
    _drop_reservations_on(ledger, asked.node)
    ledger.emit(events.NodeLost(asked.node))
    for task in list(ledger.state.on_node[asked.node].values()):
        if task.spec.on_lost is not OnLost.WAIT or is_ending(task):
            finish_lost(ledger, task)
    return None


def return_node(ledger: Ledger, asked: command.ReturnNode) -> Refusal | None:
    """Handle the return of a node that was lost."""
    if refusal := _known_node(ledger, asked.node):
        return refusal
    _hear_of(ledger, asked.node, asked.attempts)
    _take_back(ledger, asked.node, asked.running)
    return None


def remove(ledger: Ledger, asked: command.RemoveNode) -> Refusal | None:
    """Remove a node for good, if nothing runs there."""
    if refusal := _known_node(ledger, asked.node):
        return refusal
    state = ledger.state
    here = list(state.on_node[asked.node].values())
    if here and not state.index.hosts[asked.node].lost:
        return no.NodeInUse(asked.node, tuple(task.id for task in here))
    if alive := [task for task in here if _runs_elsewhere(ledger, task, asked.node)]:
        return no.GangsElsewhere(asked.node, tuple(task.id for task in alive))
    _drop_reservations_on(ledger, asked.node)
    for task in here:
        finish_lost(ledger, task, gone=asked.node)
    ledger.emit(events.NodeRemoved(asked.node))
    return None


def _runs_elsewhere(ledger: Ledger, task: OpenTask, node: NodeId) -> bool:
    """Whether a gang has parts on other nodes that are not lost, and that have not ended."""
    nodes = task.active.placement.nodes
    others = [other for other in nodes if other != node and other not in (task.members or {})]
    return any(not ledger.state.index.hosts[other].lost for other in others)


def cordon(ledger: Ledger, asked: command.CordonNode) -> Refusal | None:
    """Close a node to new tasks; with `drain`, stop attempts that can be moved, and with `force` suspended ones too."""
    if refusal := _known_node(ledger, asked.node):
        return refusal
    host = ledger.state.index.hosts[asked.node]
    reason = asked.reason or host.cordon_reason
    changed = not host.cordoned or host.draining != asked.drain
    if changed:
        _drop_reservations_on(ledger, asked.node)
    if changed or reason != host.cordon_reason:
        ledger.emit(events.NodeCordoned(asked.node, asked.drain, reason))
    if asked.drain:
        for task in list(ledger.state.on_node[asked.node].values()):
            movable = task.preemption in {Preemption.CHECKPOINT, Preemption.REQUEUE}
            moves = movable and isinstance(task.phase, Running | Placed)
            if moves or (asked.force and isinstance(task.phase, Suspended)):
                ledger.emit(events.AttemptStopping(task.id, task.attempts, Cause(CauseKind.DRAINED, node=asked.node)))
    return None


def uncordon(ledger: Ledger, asked: command.UncordonNode) -> Refusal | None:
    """Open a node to new tasks again."""
    if refusal := _known_node(ledger, asked.node):
        return refusal
    if ledger.state.index.hosts[asked.node].cordoned:
        ledger.emit(events.NodeUncordoned(asked.node))
    return None


def set_health(ledger: Ledger, asked: command.SetGpuHealth) -> Refusal | None:
    """Set the health of a GPU."""
    if refusal := _known_node(ledger, asked.node):
        return refusal
    host = ledger.state.index.hosts[asked.node]
    if asked.gpu not in host.device_group_of:
        return no.UnknownGpu(asked.node, asked.gpu, len(host.spec.gpus))
    if host.health.get(asked.gpu, "ok") != asked.health:
        ledger.emit(events.GpuHealthChanged(asked.node, asked.gpu, asked.health))
        _drop_reservations_on(ledger, asked.node, unless_cleared=True)
    return None


def _known_node(ledger: Ledger, node: NodeId) -> Refusal | None:
    return None if node in ledger.state.index.hosts else no.UnknownNode(node)


def _drop_reservations_on(ledger: Ledger, node: NodeId, *, unless_cleared: bool = False) -> None:
    """Drop the reservations on a node that changes; they are made again by the next pass.

    With `unless_cleared`, a claim is kept if the node will still have room for it once its victims have ended.
    """
    for reservation in list(ledger.state.reservations.values()):
        if node in reservation.nodes and not (
            unless_cleared and reservation.claim and will_be_cleared(ledger.state, reservation, node)
        ):
            ledger.emit(events.ReservationDropped(reservation.task.id, Cause(CauseKind.NODES_CHANGED, node=node)))
