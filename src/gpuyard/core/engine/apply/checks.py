"""Check that an event fits the state. If it does not, the journal and the code do not match."""

from gpuyard.core.domain import events
from gpuyard.core.domain.errors import UnknownEvent
from gpuyard.core.domain.values import TaskId
from gpuyard.core.engine.phases import ACTIVE, TRANSITIONS, Phase
from gpuyard.core.engine.state import State
from gpuyard.core.engine.task import OpenTask


def open_task(state: State, task_id: TaskId, event: events.Event) -> OpenTask:
    """Return the open task of an event."""
    task = state.tasks.get(task_id)
    if task is None:
        raise UnknownEvent(f"{events.name_of(event)} refers to task {task_id}, which is not open.")
    return task


def checked_transition(state: State, task_id: TaskId, event: events.Event) -> tuple[OpenTask, Phase]:
    """Return the task of an event and its phase, after checking in the transition table that the event fits the phase."""
    task = state.tasks.get(task_id) or open_task(state, task_id, event)
    phase = task.phase
    if (type(phase), type(event)) not in TRANSITIONS:
        raise UnknownEvent(f"{events.name_of(event)} does not fit task {task_id}, which is {type(phase).__name__}.")
    return task, phase


def task_with_attempt(state: State, task_id: TaskId, event: events.Event) -> OpenTask:
    """Return the task of an event, which must have an attempt."""
    task = open_task(state, task_id, event)
    if not isinstance(task.phase, ACTIVE):
        raise UnknownEvent(
            f"{events.name_of(event)} does not fit task {task.id}, which is {type(task.phase).__name__}."
        )
    return task
