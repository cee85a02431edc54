"""Which messages about tasks are to be sent. They follow from the events, so they survive the scheduler."""

from msgspec.structs import replace

from gpuyard.core.domain.notice import ArrayProgress, Moment, PendingNotice
from gpuyard.core.domain.values import TaskId, TaskStatus
from gpuyard.core.engine.state import State
from gpuyard.core.engine.task import OpenTask

MOST_PENDING = 20_000
"""Maximum number of messages that wait, so that a receiver that is away costs no memory; further ones are dropped.

A user may have as many as there is room left: one alone has half of the room, two have a third each, and there is always
room for another one.
"""
FAILED = (TaskStatus.FAILED, TaskStatus.TIMEOUT)


def note_start(state: State, task: OpenTask) -> None:
    """Note the messages of a first start."""
    progress = _progress(state, task)
    if progress is not None and not progress.started:
        _keep(state, replace(progress, started=True))
    for number, notice in enumerate(task.spec.notify):
        alone = notice.each or notice.count == 1
        if Moment.START in notice.on and (alone or (progress is not None and not progress.started)):
            _add(
                state,
                task,
                PendingNotice(
                    task.id, number, Moment.START, notice.target, state.now, _about(notice.each, notice.count)
                ),
            )


def note_end(state: State, task: OpenTask, status: TaskStatus) -> None:
    """Note the messages of an end. A failure about which a message for the end is sent needs no second one."""
    progress, failed = _progress(state, task), status in FAILED
    first_failure = failed and progress is not None and not progress.failed
    done = False
    if progress is not None:
        counts = dict(progress.ended)
        counts[status.value] = counts.get(status.value, 0) + 1
        ended = tuple(sorted(counts.items()))
        done = sum(counts.values()) == progress.count
        progress = replace(progress, failed=progress.failed or failed, ended=ended)
        if done:
            del state.arrays[progress.first]
        else:
            _keep(state, progress)
    for number, notice in enumerate(task.spec.notify):
        alone = notice.each or notice.count == 1
        if Moment.END in notice.on and (alone or done):
            told = progress.ended if progress is not None and not alone else ()
            count = _about(notice.each, notice.count)
            _add(state, task, PendingNotice(task.id, number, Moment.END, notice.target, state.now, count, told))
        elif Moment.FAIL in notice.on and (failed if alone else first_failure):
            count = _about(notice.each, notice.count)
            _add(state, task, PendingNotice(task.id, number, Moment.FAIL, notice.target, state.now, count))


def _about(each: bool, count: int) -> int:
    return 1 if each else count


def _progress(state: State, task: OpenTask) -> ArrayProgress | None:
    """Return what has happened in the array of a task; None: no notice is about the whole array."""
    notice = next((one for one in task.spec.notify if one.count > 1 and not one.each), None)
    if notice is None:
        return None
    first = TaskId(task.id - notice.place)
    return state.arrays.get(first) or ArrayProgress(first, notice.count)


def _keep(state: State, progress: ArrayProgress) -> None:
    state.arrays[progress.first] = progress


def _add(state: State, task: OpenTask, pending: PendingNotice) -> None:
    pending = replace(pending, tenant=str(task.spec.tenant), user=task.spec.user)
    waiting = state.waiting_notices.get(pending.sender, 0)
    if waiting < MOST_PENDING - len(state.notices):
        state.notices[pending.task, pending.number, pending.moment] = pending
        state.waiting_notices[pending.sender] = waiting + 1
    else:
        state.dropped_notices[pending.sender] = state.dropped_notices.get(pending.sender, 0) + 1


def forget(state: State, key: tuple[TaskId, int, Moment]) -> None:
    """Forget a message that was delivered or given up. With another limit it may have been dropped."""
    pending = state.notices.pop(key, None)
    if pending is None:
        return
    left = state.waiting_notices[pending.sender] - 1
    if left:
        state.waiting_notices[pending.sender] = left
    else:
        del state.waiting_notices[pending.sender]
