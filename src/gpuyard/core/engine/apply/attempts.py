"""Effects of events about attempts: placed, started, suspended, resumed, stopped, ended.

GPUs are taken and charged from the placement to the end, except while the attempt is suspended: then it keeps only its
host memory. Resources of an ended attempt that may still run on a lost node stay taken there, and are not charged.
"""

from typing import cast

from gpuyard.core.domain import events
from gpuyard.core.domain.causes import Cause, CauseKind
from gpuyard.core.domain.errors import UnknownEvent
from gpuyard.core.domain.placement import Placement, Slice
from gpuyard.core.domain.values import MILLI, AttemptRef, NodeId, Outcome, Preemption
from gpuyard.core.engine.apply.checks import checked_transition, task_with_attempt
from gpuyard.core.engine.lifecycle.notices import note_start
from gpuyard.core.engine.lifecycle.run_limits import note_place
from gpuyard.core.engine.phases import (
    ACTIVE,
    Placed,
    Resuming,
    Running,
    Settling,
    Stopping,
    Suspended,
    Suspending,
    Waiting,
    WithPlacement,
)
from gpuyard.core.engine.state import MOVING, PREEMPTING, OrphanedAttempt, State, holds_gpus
from gpuyard.core.engine.task import OpenTask
from gpuyard.core.placement.speeds import speed_of


def apply_task_placed(state: State, event: events.TaskPlaced) -> None:
    """Take and charge the GPUs of a new attempt; its nodes have not reported its start yet."""
    at = state.now
    task, _ = checked_transition(state, event.task, event)
    placement = event.placement
    state.leave_queue(task)
    if state.reservations:
        state.end_reservation(task.id)
    task.attempts = event.attempt
    task.origin = state.origin
    task.attempt_seconds = 0.0
    task.round = 0
    task.members = task.ready = task.presumed = None
    task.phase = Placed(event.attempt, placement, at)
    if task.run_limit is not None:
        note_place(state, task)
    state.active += 1
    task.placed_at = at
    if task.spec.resources.speeds:
        task.speed = speed_of(task.spec.resources.speeds, placement, state.index)
    state.index.take(placement)
    if task.model is not None or state.index.model_cache.by_model:
        _note_model(state, task, placement)
    state.charge(task, placement, placement.charge_milli, at)
    for part in placement.slices:
        state.on_node[part.node][task.id] = task
    if task.preemption is not Preemption.NEVER:
        state.count_preemptible(placement, 1)


def _note_model(state: State, task: OpenTask, placement: Placement) -> None:
    """Record the task's model on its GPUs; the models that ran there before are no longer cached."""
    if state.settings.model_affinity:
        state.index.note_model(placement, task.model)


def apply_attempt_started(state: State, event: events.AttemptStarted) -> None:
    """The attempt runs on all its nodes."""
    at = state.now
    task, phase = checked_transition(state, event.task, event)
    phase = cast("Placed", phase)
    task.ready = task.avoid = None
    task.phase = Running(event.attempt, phase.placement, at)
    if task.spec.notify and event.attempt == 1:
        note_start(state, task)
    state.watch(task, at)
    _begins(state, task, phase.placement)


def apply_attempt_recovered(state: State, event: events.AttemptRecovered) -> None:
    """Continue an attempt that never stopped: charge its node again, and count the time it was missing as run time."""
    at = state.now
    task, phase = checked_transition(state, event.task, event)
    assert isinstance(phase, Waiting)
    here = state.orphaned_attempts.get(event.node, {})
    left = here.pop(AttemptRef(task.id, event.attempt, task.origin), None)
    if left is None:
        raise UnknownEvent(f"AttemptRecovered refers to task {task.id}, which has no attempt on node {event.node}.")
    if not here:
        del state.orphaned_attempts[event.node]
    placement = Placement((left.part,))
    state.leave_queue(task)
    state.end_reservation(task.id)
    task.losses = max(0, task.losses - 1)  # undo the loss counted when the node was lost
    state.active += 1
    task.phase = Running(event.attempt, placement, phase.since)
    if task.run_limit is not None:
        note_place(state, task)
    if task.spec.resources.speeds:
        task.speed = speed_of(task.spec.resources.speeds, placement, state.index)
    task.served_seconds = max(task.served_seconds, task.attempt_seconds * task.speed)
    state.charge(task, placement, placement.charge_milli, at)
    state.on_node[event.node][task.id] = task
    if task.preemption is not Preemption.NEVER:
        state.count_preemptible(placement, 1)
    state.watch(task, phase.since)
    _begins(state, task, placement)


def apply_attempt_suspending(state: State, event: events.AttemptSuspending) -> None:
    """The attempt is being moved out of GPU memory; it holds its GPUs until that is done."""
    at = state.now
    task, phase = checked_transition(state, event.task, event)
    assert isinstance(phase, Running)
    _count_service(task, phase, at)
    task.round = event.round
    task.phase = Suspending(event.attempt, phase.placement, at, event.cause)
    state.note_victim(task, event.cause)
    state.stops_soon(phase.placement, Cause(CauseKind.QUEUE_CHANGED, task=task.id))


def apply_suspension_failed(state: State, event: events.SuspensionFailed) -> None:
    """The attempt cannot be suspended and keeps running; it is not preempted again."""
    task, phase = checked_transition(state, event.task, event)
    assert isinstance(phase, Suspending)
    state.unnote_victim(task)
    task.ready = None
    task.stuck = event.message
    if task.preemption is not Preemption.NEVER:
        task.preemption = Preemption.NEVER
        state.count_preemptible(phase.placement, -1)
    task.phase = Running(event.attempt, phase.placement, phase.since)  # it has been running all the time
    state.watch(task, phase.since)


def apply_attempt_suspended(state: State, event: events.AttemptSuspended) -> None:
    """Free the GPUs of the attempt; its nodes keep its GPU contents in host memory."""
    at = state.now
    task, phase = checked_transition(state, event.task, event)
    assert isinstance(phase, Suspending)
    task.ready = None
    state.unnote_victim(task)
    by_user = phase.cause.why is CauseKind.SUSPENDED_BY_USER
    if phase.cause.why in PREEMPTING:
        task.preemptions += 1
    task.phase = Suspended(event.attempt, phase.placement, at, by_user)
    task.held = by_user
    state.release(task, phase.placement, at, keep_memory=True)
    state.enqueue(task, at)


def apply_attempt_resuming(state: State, event: events.AttemptResuming) -> None:
    """Take and charge GPUs for a suspended attempt; its nodes have not reported that it runs."""
    at = state.now
    task, _ = checked_transition(state, event.task, event)
    state.leave_queue(task)
    state.end_reservation(task.id)
    task.phase = Resuming(event.attempt, event.placement, at)
    task.placed_at = at
    _take_again(state, task, event.placement, at)


def _take_again(state: State, task: OpenTask, placement: Placement, at: float) -> None:
    """Take the resources of a resumed attempt except its host memory, which it has kept."""
    parts = tuple(_without_memory(part) for part in placement.slices)
    state.index.take(Placement(parts))
    _note_model(state, task, placement)
    state.charge(task, placement, placement.charge_milli, at)


def apply_attempt_resumed(state: State, event: events.AttemptResumed) -> None:
    """The attempt runs again on all its nodes."""
    at = state.now
    task, phase = checked_transition(state, event.task, event)
    assert isinstance(phase, Resuming)
    task.ready = None
    task.phase = Running(event.attempt, phase.placement, at)
    state.watch(task, at)
    _begins(state, task, phase.placement)


def _begins(state: State, task: OpenTask, placement: Placement) -> None:
    """Wake waiting tasks that may preempt this one now; while it was being started, none could."""
    queue = state.queue
    if queue.lines and state.is_preemptible(task) and state.may_preempt():
        cause = Cause(CauseKind.PREEMPTIBLE_STARTED, task=task.id)
        for part in placement.slices:
            for device_group in state.index.hosts[part.node].device_groups:
                queue.preemptible_started(device_group.number, cause)
        state.quotas_freed(task, cause)


def apply_attempt_stopping(state: State, event: events.AttemptStopping) -> None:
    """The attempt is being stopped; it holds its resources until its nodes report that it has ended."""
    at = state.now
    task, phase = checked_transition(state, event.task, event)
    if isinstance(phase, Running):
        _count_service(task, phase, at)
        state.movable.pop(task.id, None)
    state.leave_queue(task)
    state.end_reservation(task.id)
    assert isinstance(phase, WithPlacement)
    task.ready = None
    task.phase = Stopping(event.attempt, phase.placement, at, event.cause, holds_gpus(phase))
    state.note_victim(task, event.cause)
    state.stops_soon(phase.placement, Cause(CauseKind.QUEUE_CHANGED, task=task.id))


def apply_member_ready(state: State, event: events.MemberReady) -> None:
    """The part of a gang on one node has completed the step that the whole attempt is in."""
    task = task_with_attempt(state, event.task, event)
    task.ready = {*(task.ready or ()), event.node}


def apply_member_ended(state: State, event: events.MemberEnded) -> None:
    """The part of a gang on one node has ended."""
    task = task_with_attempt(state, event.task, event)
    task.members = {**(task.members or {}), event.node: event}
    if event.outcome is Outcome.LOST and state.index.hosts[event.node].lost:
        task.presumed = {*(task.presumed or ()), event.node}


def apply_attempt_ended(state: State, event: events.AttemptEnded) -> None:
    """Free the resources of an attempt that has ended; an event of the same step says whether its task is retried."""
    at = state.now
    task, phase = checked_transition(state, event.task, event)
    assert isinstance(phase, ACTIVE)
    cause = None
    if isinstance(phase, Running):
        _count_service(task, phase, at)
        state.movable.pop(task.id, None)
    if isinstance(phase, Stopping):
        cause = phase.cause
    state.unnote_victim(task)
    state.leave_queue(task)
    if cause is None or cause.why not in MOVING or event.outcome is not Outcome.STOPPED:
        state.end_reservation(task.id)  # a task that is being moved keeps the reservation of its new place
    if event.orphaned_on:
        _leave_behind(state, task, phase, event, at)
    elif isinstance(phase, Suspended) or (isinstance(phase, Stopping) and not phase.holds_gpus):
        state.index.give_memory(phase.placement)
        state.free(phase.placement, Cause(CauseKind.GPUS_FREED, task=task.id))
    else:
        state.release(task, phase.placement, at)
    for part in phase.placement.slices:
        del state.on_node[part.node][task.id]
    if task.preemption is not Preemption.NEVER:
        state.count_preemptible(phase.placement, -1)
    task.losses = task.losses + 1 if event.outcome is Outcome.LOST else 0
    if event.outcome is Outcome.NOT_LAUNCHED:
        task.avoid = _not_launched_on(task, phase.placement)
    task.members = task.ready = task.presumed = None
    saved = task.spec.preemption is Preemption.CHECKPOINT and event.outcome is Outcome.STOPPED
    if not saved:
        task.served_seconds = 0.0
    task.speed = 1.0
    task.phase = Settling(event.attempt, event.outcome, event.exit_code, cause)
    if task.run_limit is not None:
        note_place(state, task)
    state.active -= 1


def _not_launched_on(task: OpenTask, placement: Placement) -> NodeId:
    members = task.members or {}
    said = (node for node, end in members.items() if end.outcome is Outcome.NOT_LAUNCHED)
    return next(said, placement.nodes[0])


def _leave_behind(state: State, task: OpenTask, phase: WithPlacement, event: events.AttemptEnded, at: float) -> None:
    """Keep the resources of an ended attempt taken, uncharged, on the nodes that may still run it."""
    placement = phase.placement
    frees_gpus, cause = holds_gpus(phase), Cause(CauseKind.GPUS_FREED, task=task.id)
    for part in placement.slices:
        left = part if frees_gpus else Slice(part.node, memory_mib=part.memory_mib)
        if part.node in event.orphaned_on:
            ran = isinstance(phase, Running | Placed) and len(placement.slices) == 1
            ref, there = (
                AttemptRef(task.id, event.attempt, task.origin),
                state.orphaned_attempts.setdefault(part.node, {}),
            )
            if (before := there.get(ref)) is not None:  # only possible in older journals
                state.index.give(Placement((before.part,)))
            there[ref] = OrphanedAttempt(left, ran)
        else:
            state.index.give(Placement((left,)))
            state.free(Placement((part,)), cause)
    if frees_gpus:
        state.uncharge(task, placement, at, cause)


def _count_service(task: OpenTask, phase: Running, at: float) -> None:
    seconds = at - phase.since
    task.served_seconds += seconds * task.speed
    task.attempt_seconds += seconds
    task.gpu_seconds += seconds * phase.placement.charge_milli / MILLI


def _without_memory(part: Slice) -> Slice:
    return Slice(part.node, part.gpus, part.milli, part.gpu_memory_mib, part.cpus)
