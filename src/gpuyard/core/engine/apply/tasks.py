"""Effects of events about tasks: submitted, changed, requeued, ended."""

from msgspec.structs import replace

from gpuyard.core.domain import events
from gpuyard.core.domain.causes import Cause, CauseKind
from gpuyard.core.domain.errors import UnknownEvent
from gpuyard.core.engine.apply.checks import checked_transition, open_task
from gpuyard.core.engine.lifecycle.barriers import leave_barriers, pass_barriers, wait_for_prerequisites
from gpuyard.core.engine.lifecycle.notices import forget, note_end
from gpuyard.core.engine.lifecycle.run_limits import join_coming, leave, set_limit
from gpuyard.core.engine.phases import Ended, Running, Settling, Suspended, Waiting
from gpuyard.core.engine.state import PREEMPTING, State
from gpuyard.core.engine.task import OpenTask

OWN_FAILURES = (CauseKind.EXIT_CODE, CauseKind.OUT_OF_MEMORY, CauseKind.NOT_LAUNCHED, CauseKind.MEMBER_FAILED)
"""Causes that count against a task's retries."""


def apply_task_submitted(state: State, event: events.TaskSubmitted) -> None:
    """Add a task to the queue, unless other tasks have to end first."""
    at = state.now
    spec = event.spec
    if event.task <= state.last_task:
        raise UnknownEvent(f"TaskSubmitted refers to task {event.task}, a number that was used before.")
    task = state.tasks[event.task] = OpenTask(event.task, spec, state.usage_of(spec.tenant), at)
    task.tenant_usage.open_tasks += 1
    state.last_task = event.task
    if state.awaited:
        task.barriers = state.awaited.pop(event.task, None)
    if state.coming_limits:
        join_coming(state, task)
    state.count_demand(spec.resources, 1)
    if spec.has_prerequisites:
        wait_for_prerequisites(state, task)
    if spec.deadline is not None:
        state.timers.add_task(spec.deadline, task.id)
    state.enqueue(task, at)


def apply_task_held(state: State, event: events.TaskHeld) -> None:
    """Take a task out of the queue until it is released, and drop its reservation."""
    task = open_task(state, event.task, event)
    task.held = True
    state.leave_queue(task)
    state.end_reservation(task.id)


def apply_task_released(state: State, event: events.TaskReleased) -> None:
    """Let a task on hold, or one that a user had suspended, wait for GPUs again."""
    task = open_task(state, event.task, event)
    task.held = False
    if isinstance(task.phase, Suspended):
        task.phase = Suspended(task.phase.attempt, task.phase.placement, task.phase.since, by_user=False)
    state.enqueue(task, state.now)


def apply_priority_changed(state: State, event: events.PriorityChanged) -> None:
    """Set the priority of a task and update its place in the queue."""
    task = open_task(state, event.task, event)
    task.priority = event.priority
    state.requeue(task, state.now)


def apply_estimate_revised(state: State, event: events.EstimateRevised) -> None:
    """Set the estimate of a task and update its place in the queue, where run times matter."""
    task = open_task(state, event.task, event)
    task.estimate = event.estimate
    state.requeue(task, state.now)
    if state.bookings:  # a running task may end before a booking now
        state.queue.everything_changed(Cause(CauseKind.QUEUE_CHANGED, task=task.id))


def apply_task_extended(state: State, event: events.TaskExtended) -> None:
    """Set a later timeout or deadline."""
    task = open_task(state, event.task, event)
    task.spec = replace(task.spec, timeout_seconds=event.timeout_seconds, deadline=event.deadline)
    if event.deadline is not None:
        state.timers.add_task(event.deadline, task.id)
    if isinstance(task.phase, Running):
        state.watch(task, task.phase.since)
    state.requeue(task, state.now)


def apply_task_requeued(state: State, event: events.TaskRequeued) -> None:
    """Let a task wait for another attempt, if given not before an instant or with more GPU memory."""
    at = state.now
    task, phase = checked_transition(state, event.task, event)
    assert isinstance(phase, Settling)
    if event.cause.why in PREEMPTING:
        task.preemptions += 1
    elif event.cause.why in OWN_FAILURES:
        task.failures += 1
    task.phase = Waiting(at, event.not_before)
    if event.gpu_memory_mib:
        state.count_demand(task.spec.resources, -1)
        resources = task.spec.resources.with_gpu_memory(event.gpu_memory_mib)
        task.spec = replace(task.spec, resources=resources)
        state.count_demand(resources, 1)
    if task.spec.deadline is not None:
        state.timers.add_task(task.spec.deadline, task.id)
    state.enqueue(task, at)


def apply_task_ended(state: State, event: events.TaskEnded) -> None:
    """Remove a task that has ended, with its reservation, and open or break the barriers where others wait for it."""
    task, _ = checked_transition(state, event.task, event)
    if task.spec.notify:
        note_end(state, task, event.status)
    state.leave_queue(task)
    state.end_reservation(task.id)
    task.phase = Ended(event.status)
    if task.run_limit is not None:
        leave(state, task)
    del state.tasks[task.id]
    state.count_demand(task.spec.resources, -1)
    task.tenant_usage.open_tasks -= 1
    state.ended[task.id] = event.status
    state.ended_order.append(task.id)
    while len(state.ended_order) > state.settings.remember_ended:
        del state.ended[state.ended_order.popleft()]
    if task.waits_for:
        leave_barriers(task)
    if task.barriers:
        pass_barriers(state, task, event.status)
    if len(state.timers) > 64 + 8 * len(state.tasks):
        state.timers.tidy(state.tasks)


def apply_run_limit_set(state: State, event: events.RunLimitSet) -> None:
    """Set, change or remove the limit on running tasks of an array or sweep; tasks that run continue."""
    first = event.limit.first
    if not event.limit.most and first not in state.run_limits:
        raise UnknownEvent(f"RunLimitSet removes the limit of the tasks from {first} on, which is unknown.")
    set_limit(state, event.limit)


def apply_notice_settled(state: State, event: events.NoticeSettled) -> None:
    """Forget a message that was delivered or given up."""
    forget(state, (event.task, event.number, event.moment))
