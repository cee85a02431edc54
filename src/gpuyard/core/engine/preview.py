"""Preview a submission: where and when a task would start if it were submitted now. The state is not changed.

The task is tried like every waiting task, with a record that belongs to no queue. It would be refused for the same
reasons as a real submission, would start on the same GPUs, would preempt the same tasks, and would wait behind the same
tasks; the expected start comes from the same search as `explain`. A submission also makes the engine look at the queue
again: rarely, a task that waits is then placed on these GPUs first, or is the one for which others are stopped.
"""

from typing import cast

from msgspec.structs import replace

from gpuyard.core.domain import commands as command
from gpuyard.core.domain.events import Event
from gpuyard.core.domain.placement import Placement
from gpuyard.core.domain.refusals import Never, Refusal
from gpuyard.core.domain.task import NewTask, TaskSpec
from gpuyard.core.domain.values import TaskId, TaskStatus, Value
from gpuyard.core.engine.explain import Revise, expected_start, spoken_refusal
from gpuyard.core.engine.handlers.tasks import submit
from gpuyard.core.engine.ledger import Ledger
from gpuyard.core.engine.quota import TenantUsage
from gpuyard.core.engine.scheduling.actions import Context
from gpuyard.core.engine.scheduling.preemption import find_preemption
from gpuyard.core.engine.scheduling.try_place import try_place
from gpuyard.core.engine.state import State
from gpuyard.core.engine.task import OpenTask
from gpuyard.core.engine.waiting.queue import Group, Line
from gpuyard.core.engine.waiting.wakeups import Blocked
from gpuyard.core.placement.shape import Shape


class Preview(Value, frozen=True):
    """What would happen to a task. Without a placement it would wait; with `never` or `fails_with` it would not start."""

    charge_milli: int
    """What it would count in quotas, in thousandths of a GPU."""
    class_index: int
    placement: Placement | None = None
    preempts: tuple[TaskId, ...] = ()
    """Tasks that would be stopped for it."""
    reason: Refusal | None = None
    """Why it would wait."""
    never: Never | None = None
    """Why no node of the cluster could hold it."""
    fails_with: TaskId | None = None
    """A task on whose success it depends and that did not succeed."""
    waits_for: int = 0
    """Number of open tasks that have to end first."""
    ahead: int = 0
    starts_at: float | None = None
    starts_low: float | None = None
    starts_high: float | None = None


class _Recorder:
    """Takes the place of the ledger: events are dropped instead of applied."""

    def __init__(self, state: State) -> None:
        self.state = state

    def emit(self, event: Event) -> None:
        """Drop an event."""


def preview(state: State, spec: TaskSpec, now: float, revise: Revise | None = None) -> Preview | Refusal:
    """Return what would happen to a task that is submitted now, or the refusal of the submission."""
    at, number = max(state.now, now), TaskId(state.last_task + 1)
    refusal = submit(cast("Ledger", _Recorder(state)), command.SubmitTasks((NewTask(number, spec),)))
    if refusal is not None:
        return refusal
    task = _waiting(state, number, spec, at)
    group = task.group
    assert group is not None
    shape = group.line.shape
    found = Preview(shape.need_milli, task.class_index)
    failed, open_tasks = _prerequisites(state, spec)
    if failed is not None:
        return replace(found, fails_with=failed)
    if never := shape.never(state.index):
        return replace(found, never=never)
    if open_tasks:
        return replace(found, waits_for=open_tasks)
    tried = try_place(Context(state, _emit_nothing), task, group.line, group)
    if isinstance(tried, Placement):
        return replace(found, placement=tried, charge_milli=tried.charge_milli)
    assert isinstance(tried, Blocked)
    ahead, (low, likely, high) = expected_start(state, task, shape, at, revise)
    if state.may_preempt() and shape.can_start(state.index):
        plan, _ = find_preemption(state, task, shape, at)
        if plan is not None:
            victims = tuple(sorted(victim.id for victim in plan.victims))
            return replace(found, preempts=victims, ahead=ahead, starts_at=at, starts_low=at, starts_high=at)
    reason = spoken_refusal(state, task, group, tried, at)
    return replace(found, reason=reason, ahead=ahead, starts_at=likely, starts_low=low, starts_high=high)


def _waiting(state: State, number: TaskId, spec: TaskSpec, at: float) -> OpenTask:
    """Return the record of a waiting task that is in no queue."""
    usage = state.tenants.get(spec.tenant)
    if usage is None:
        usage = TenantUsage(replace(state.default_tenant, id=spec.tenant), at)
    task = OpenTask(number, spec, usage, at)
    task.key = state.policy.key(task, at, state.settings)
    shape = Shape(spec.resources)
    shape.refresh(state.index)
    task.group = Group(Line(0, shape, 0), usage, task.class_index)
    return task


def _prerequisites(state: State, spec: TaskSpec) -> tuple[TaskId | None, int]:
    """Return a task that did not succeed although it had to, and the number of open tasks that have to end first."""
    count = 0
    for first, last, needs_success in spec.prerequisites():
        for number in range(first, last + 1):
            status = state.ended.get(TaskId(number))
            if needs_success and status is not None and status is not TaskStatus.SUCCESS:
                return TaskId(number), 0
            count += TaskId(number) in state.tasks
    return None, count


def _emit_nothing(_: Event) -> None:
    raise AssertionError("a preview makes no event")
