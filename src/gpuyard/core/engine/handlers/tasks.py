"""Commands of users about tasks: submit, cancel, hold, suspend, change. Each emits events, or returns a refusal."""

from collections import Counter
from math import isfinite

from msgspec.structs import replace

from gpuyard.core.domain import commands as command
from gpuyard.core.domain import events
from gpuyard.core.domain import refusals as no
from gpuyard.core.domain.causes import Cause, CauseKind
from gpuyard.core.domain.refusals import Refusal
from gpuyard.core.domain.task import NewTask, RunLimit, TaskRange, TaskSpec
from gpuyard.core.domain.validation import check_dependencies, check_estimate, check_spec
from gpuyard.core.domain.values import MILLI, Preemption, TaskId, TaskStatus
from gpuyard.core.engine.ledger import Ledger
from gpuyard.core.engine.lifecycle.attempts import end_or_stop
from gpuyard.core.engine.lifecycle.endings import end, is_ending
from gpuyard.core.engine.phases import Running, Stopping, Suspended, Waiting
from gpuyard.core.engine.state import State
from gpuyard.core.engine.task import OpenTask
from gpuyard.core.placement.shape import Shape


def submit(ledger: Ledger, asked: command.SubmitTasks) -> Refusal | None:
    """Submit all tasks of a batch, or refuse all of them."""
    if not asked.tasks:
        return no.NoTasks()
    if refusal := _too_many(ledger.state, asked.tasks):
        return refusal
    last = ledger.state.last_task
    linked = False
    for new in asked.tasks:
        if new.id <= last:
            return no.TaskIdTaken(new.id)
        last = new.id
        if refusal := check_spec(new.spec) or _forbidden_for_ever(ledger, new):
            return refusal
        linked = linked or new.spec.has_prerequisites
    if linked and (refusal := check_dependencies(asked.tasks, _Known(ledger.state))):
        return refusal
    if asked.limits and (refusal := _wrong_limits(asked)):
        return refusal
    for limit in asked.limits:
        ledger.emit(events.RunLimitSet(limit))
    for new in asked.tasks:
        ledger.emit(events.TaskSubmitted(new.id, new.spec, asked.key, asked.digest))
    if linked:
        _end_hopeless(ledger, asked.tasks)
    return None


def _too_many(state: State, tasks: tuple[NewTask, ...]) -> Refusal | None:
    """Refuse tasks that would exceed the size of the queue or a tenant's maximum of open tasks."""
    settings, waiting = state.settings, len(state.tasks) - state.active
    if settings.queue_size and waiting + len(tasks) > settings.queue_size:
        return no.QueueFull(waiting, len(tasks), settings.queue_size)
    tenant = tasks[0].spec.tenant
    for name, count in Counter(new.spec.tenant for new in tasks).items() if len(tasks) > 1 else ((tenant, 1),):
        usage = state.tenants.get(name)
        own = (usage.tenant if usage else state.default_tenant).max_open_tasks
        limit = settings.max_open_tasks or None if own is None else own
        open_tasks = usage.open_tasks if usage else 0
        if limit is not None and open_tasks + count > limit:
            return no.TooManyOpenTasks(name, open_tasks, count, limit)
    return None


def _wrong_limits(asked: command.SubmitTasks) -> Refusal | None:
    """Refuse limits on running tasks that are not each for several new tasks of one tenant, and for no others."""
    tasks, place = asked.tasks, 0
    for limit in sorted(asked.limits, key=lambda limit: limit.first):
        if limit.most < 1:
            return no.NotPositive("max_running", limit.most)
        while place < len(tasks) and tasks[place].id < limit.first:
            place += 1
        begin = place
        while place < len(tasks) and tasks[place].id <= limit.last:
            place += 1
        within = tasks[begin:place]
        numbers = (within[0].id, within[-1].id) if within else ()
        if numbers != (limit.first, limit.last) or len({new.spec.tenant for new in within}) > 1:
            return no.RunLimitsOverlap(limit.first, limit.last)
    return None


def _forbidden_for_ever(ledger: Ledger, new: NewTask) -> Refusal | None:
    """Refuse a task above its tenant's limits, without a system account to run as, or that must fit and never can."""
    spec, state = new.spec, ledger.state
    ask = spec.resources
    usage = state.tenants.get(spec.tenant)
    limits = usage.tenant if usage else state.default_tenant
    needed = ask.gpus * ask.nodes if ask.share is None else ask.share.fraction_milli / MILLI
    if limits.max_gpus is not None and needed > limits.max_gpus:
        return no.QuotaForbids(spec.tenant, needed, limits.max_gpus)
    if limits.max_gpus_by_model and ask.models:
        by_model = dict(limits.max_gpus_by_model)
        if all(needed > by_model.get(model, needed) for model in ask.models):
            model = max(ask.models, key=lambda model: by_model[model])
            return no.QuotaForbids(spec.tenant, needed, by_model[model], model)
    if ask.booking and (refusal := _not_its_booking(state, spec)):
        return refusal
    if not spec.require_fit and ask.account is None:
        return None
    never = Shape(ask).never(state.index)
    return never if spec.require_fit or isinstance(never, no.NoSystemUser) else None


def _not_its_booking(state: State, spec: TaskSpec) -> Refusal | None:
    """Refuse a task whose booking has ended, belongs to another tenant, or has too few GPUs on a node."""
    ask, record = spec.resources, state.bookings.get(spec.resources.booking)
    if record is None:
        return no.UnknownBooking(ask.booking)
    booking = record.booking
    if booking.tenant != spec.tenant or booking.maintenance:
        return no.BookingOfOthers(booking.id, spec.tenant)
    needed = max(ask.gpus, 1 if ask.share else 0)
    if sum(part.gpus >= needed for part in booking.parts) < ask.nodes:
        parts = ", ".join(f"{part.gpus} on {part.node}" for part in booking.parts)
        return no.BookingTooSmall(booking.id, needed, ask.nodes, parts)
    return None


def _end_hopeless(ledger: Ledger, tasks: tuple[NewTask, ...]) -> None:
    """Cancel new tasks that require the success of a task that did not succeed."""
    failed: dict[TaskRange, TaskId | None] = {}
    for new in tasks:
        for first, last, needs_success in new.spec.prerequisites():
            if not needs_success:
                continue
            if (first, last) not in failed:
                failed[first, last] = _first_failed(ledger.state, first, last)
            dependency = failed[first, last]
            if dependency is not None and new.id in ledger.state.tasks:
                end(
                    ledger,
                    ledger.state.tasks[new.id],
                    TaskStatus.CANCELLED,
                    Cause(CauseKind.DEPENDENCY, task=dependency),
                )


def _first_failed(state: State, first: TaskId, last: TaskId) -> TaskId | None:
    """Return the first task of a range that has ended and did not succeed."""
    for number in range(first, last + 1):
        status = state.ended.get(TaskId(number))
        if status is not None and status is not TaskStatus.SUCCESS:
            return TaskId(number)
    return None


def cancel(ledger: Ledger, asked: command.CancelTask) -> Refusal | None:
    """Cancel a task in any phase; a repeated request has no further effect."""
    task = _open_task(ledger, asked.task)
    if isinstance(task, Refusal):
        return task
    if isinstance(task.phase, Stopping) and task.phase.cause.why is CauseKind.CANCELLED:
        return None
    end_or_stop(ledger, task, Cause(CauseKind.CANCELLED), TaskStatus.CANCELLED)
    return None


def hold(ledger: Ledger, asked: command.HoldTask) -> Refusal | None:
    """Keep a waiting task from being placed until it is released."""
    task = _open_task(ledger, asked.task)
    if isinstance(task, Refusal):
        return task
    if not isinstance(task.phase, Waiting):
        return _wrong_phase(task, "hold", "waiting")
    if not task.held:
        ledger.emit(events.TaskHeld(task.id))
    return None


def release(ledger: Ledger, asked: command.ReleaseTask) -> Refusal | None:
    """Release a task on hold, so that it waits for GPUs again."""
    task = _open_task(ledger, asked.task)
    if isinstance(task, Refusal):
        return task
    if not task.held or not isinstance(task.phase, Waiting):
        return _wrong_phase(task, "release", "on hold")
    ledger.emit(events.TaskReleased(task.id))
    return None


def suspend(ledger: Ledger, asked: command.SuspendTask) -> Refusal | None:
    """Suspend a running task: it leaves its GPUs and keeps its work."""
    task = _open_task(ledger, asked.task)
    if isinstance(task, Refusal):
        return task
    if task.spec.preemption is not Preemption.SUSPEND:
        return no.NotSuspendable(task.id, task.spec.preemption)
    if task.stuck is not None:
        return no.SuspensionFailedBefore(task.id, task.stuck)
    if not isinstance(task.phase, Running):
        return _wrong_phase(task, "suspend", "running")
    cause = Cause(CauseKind.SUSPENDED_BY_USER)
    ledger.emit(events.AttemptSuspending(task.id, task.phase.attempt, cause, task.round + 1))
    return None


def resume(ledger: Ledger, asked: command.ResumeTask) -> Refusal | None:
    """Let a task that was suspended on request wait for GPUs again."""
    task = _open_task(ledger, asked.task)
    if isinstance(task, Refusal):
        return task
    if not (isinstance(task.phase, Suspended) and task.phase.by_user):
        return _wrong_phase(task, "resume", "suspended on request")
    ledger.emit(events.TaskReleased(task.id))
    return None


def change_priority(ledger: Ledger, asked: command.ChangePriority) -> Refusal | None:
    """Change the priority of a task."""
    task = _open_task(ledger, asked.task)
    if isinstance(task, Refusal):
        return task
    if not 0 <= asked.priority <= 100:
        return no.PriorityOutOfRange(asked.priority)
    ledger.emit(events.PriorityChanged(task.id, asked.priority))
    return None


def revise_estimate(ledger: Ledger, asked: command.ReviseEstimate) -> Refusal | None:
    """Change the run time estimate of a task; None removes it."""
    task = _open_task(ledger, asked.task)
    if isinstance(task, Refusal):
        return task
    if asked.estimate and (refusal := check_estimate(asked.estimate)):
        return refusal
    ledger.emit(events.EstimateRevised(task.id, asked.estimate))
    return None


def extend(ledger: Ledger, asked: command.ExtendTask) -> Refusal | None:
    """Extend the timeout or deadline of a task; they can never be shortened."""
    task = _open_task(ledger, asked.task)
    if isinstance(task, Refusal):
        return task
    if asked.timeout_seconds is None and asked.deadline is None:
        return no.NothingToExtend()
    if is_ending(task):
        return _wrong_phase(task, "extend", "waiting or running")
    until = {}
    for field in ("timeout_seconds", "deadline"):
        value, had = getattr(asked, field), getattr(task.spec, field)
        if value is not None and not isfinite(value):
            return no.NotFinite(field)
        if value is not None and (had is None or value < had):
            return no.NotLonger(task.id, field, value)
        until[field] = had if value is None else value
    ledger.emit(events.TaskExtended(task.id, **until))
    return None


def set_run_limit(ledger: Ledger, asked: command.SetRunLimit) -> Refusal | None:
    """Set how many tasks of an array or sweep may run at the same time; 0 removes the limit."""
    task, limit = _open_task(ledger, asked.task), asked.limit
    if isinstance(task, Refusal):
        return task
    if limit.most < 0:
        return no.NegativeCount("max_running", limit.most)
    if task.run_limit is not None:
        limit = replace(task.run_limit.limit, most=limit.most)
        if limit != task.run_limit.limit:
            ledger.emit(events.RunLimitSet(limit))
        return None
    if not limit.most:
        return None
    if not limit.first <= task.id <= limit.last <= ledger.state.last_task or _is_limited(ledger.state, limit, task):
        return no.RunLimitsOverlap(limit.first, limit.last)
    ledger.emit(events.RunLimitSet(limit))
    return None


def _is_limited(state: State, limit: RunLimit, task: OpenTask) -> bool:
    """Whether a limit would also be for tasks that have another one, or that are of another tenant."""
    others = (state.tasks.get(TaskId(number)) for number in range(limit.first, limit.last + 1))
    return any(
        other is not None and (other.run_limit is not None or other.spec.tenant != task.spec.tenant) for other in others
    )


def settle_notice(ledger: Ledger, asked: command.SettleNotice) -> Refusal | None:
    """Note that a message was delivered or given up; a repeated report has no further effect."""
    if (asked.task, asked.number, asked.moment) in ledger.state.notices:
        ledger.emit(
            events.NoticeSettled(asked.task, asked.number, asked.moment, asked.delivered, asked.tries, asked.message)
        )
    return None


def _open_task(ledger: Ledger, task_id: TaskId) -> OpenTask | Refusal:
    task = ledger.state.tasks.get(task_id)
    if task is not None:
        return task
    status = ledger.state.ended.get(task_id)
    return no.UnknownTask(task_id) if status is None else no.TaskIsOver(task_id, status)


def _wrong_phase(task: OpenTask, asked: str, needed: str) -> no.WrongPhase:
    phase = "on hold" if task.held else type(task.phase).__name__.lower()
    return no.WrongPhase(task.id, phase, asked, needed)


class _Known:
    """Task numbers on which a new task may depend."""

    def __init__(self, state: State) -> None:
        self._state = state

    def __contains__(self, task: object) -> bool:
        return task in self._state.tasks or task in self._state.ended
