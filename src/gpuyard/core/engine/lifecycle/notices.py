"""Which messages about tasks are to be sent. They follow from the events, so they survive the scheduler."""

from msgspec.structs import replace

from gpuyard.core.domain.notice import ArrayProgress, Moment, PendingNotice
from gpuyard.core.domain.values import TaskId, TaskStatus
from gpuyard.core.engine.state import State
from gpuyard.core.engine.task import OpenTask

MOST_PENDING = 10_000
"""Maximum number of messages that wait; further ones are dropped, so that a receiver that is away costs no memory."""
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
            _add(state, PendingNotice(task.id, number, Moment.END, notice.target, state.now, count, told))
        elif Moment.FAIL in notice.on and (failed if alone else first_failure):
            count = _about(notice.each, notice.count)
            _add(state, PendingNotice(task.id, number, Moment.FAIL, notice.target, state.now, count))


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


def _add(state: State, pending: PendingNotice) -> None:
    if len(state.notices) < MOST_PENDING:
        state.notices[pending.task, pending.number, pending.moment] = pending
