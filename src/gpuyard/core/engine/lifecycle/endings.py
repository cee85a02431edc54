"""The end of an attempt: decide whether its task has succeeded, was ended, is retried, or has failed for good."""

from gpuyard.core.domain import commands as command
from gpuyard.core.domain import events
from gpuyard.core.domain.causes import Cause, CauseKind
from gpuyard.core.domain.placement import Placement
from gpuyard.core.domain.settings import Settings
from gpuyard.core.domain.values import NodeId, Outcome, TaskStatus
from gpuyard.core.engine.ledger import Ledger
from gpuyard.core.engine.lifecycle.barriers import Barrier
from gpuyard.core.engine.lifecycle.out_of_memory import more_memory
from gpuyard.core.engine.phases import Settling, Stopping
from gpuyard.core.engine.task import OpenTask

ENDING = (CauseKind.CANCELLED, CauseKind.TIMEOUT, CauseKind.DEADLINE)
"""Causes that stop a task for good."""


def finish(ledger: Ledger, task: OpenTask, ended: command.ReportEnded, orphaned_on: tuple[NodeId, ...]) -> None:
    """End an attempt and decide in the same step whether its task ends. `orphaned_on`: lost nodes that may still run it."""
    placement, outcome = task.active.placement, ended.outcome
    ended_at = ended.ended_at
    if ended_at is not None:
        ended_at = min(max(ended_at, task.placed_at), ledger.state.now)
    ledger.emit(
        events.AttemptEnded(
            task.id,
            task.attempts,
            outcome,
            ended.exit_code,
            ended.signal,
            ended.message,
            orphaned_on,
            ended.actual,
            ended_at,
            ended.result,
        )
    )
    settling = task.phase
    assert isinstance(settling, Settling)
    cause, why = settling.cause, settling.cause.why if settling.cause else None
    if why in ENDING:
        assert cause is not None
        status = TaskStatus.CANCELLED if why is CauseKind.CANCELLED else TaskStatus.TIMEOUT
        end(ledger, task, status, cause)
    elif outcome is Outcome.SUCCEEDED:
        end(ledger, task, TaskStatus.SUCCESS, Cause(CauseKind.SUCCEEDED))
    elif outcome is Outcome.TIMED_OUT:
        end(ledger, task, TaskStatus.TIMEOUT, Cause(CauseKind.TIMEOUT))
    elif outcome is Outcome.LOST:
        nodes = placement.nodes
        hosts = ledger.state.index.hosts
        missing = (node for node in nodes if hosts[node].lost or node in orphaned_on)
        node = ended.node or next(missing, nodes[0])
        why = CauseKind.NODE_LOST if hosts[node].lost or node in orphaned_on else CauseKind.ATTEMPT_LOST
        _requeue(ledger, task, Cause(why, node=node), _back_off(ledger.state.settings, task.losses - 1))
    elif cause is not None and why is not CauseKind.MEMBER_FAILED:
        _requeue(ledger, task, cause, delay=0.0)
    elif outcome is Outcome.OUT_OF_MEMORY and placement.charge_milli:
        _retry_with_more_memory(ledger, task, placement)
    else:
        _retry(ledger, task, cause or _failure(task, outcome))


def _failure(task: OpenTask, outcome: Outcome) -> Cause:
    return (
        Cause(CauseKind.NOT_LAUNCHED, node=task.avoid)
        if outcome is Outcome.NOT_LAUNCHED
        else Cause(CauseKind.EXIT_CODE)
    )


def _retry(ledger: Ledger, task: OpenTask, cause: Cause) -> None:
    """Retry a task after its own failure if it has retries left, doubling the delay each time; else end it."""
    if task.failures >= task.spec.retries:
        end(ledger, task, TaskStatus.FAILED, cause)
        return
    _requeue(ledger, task, cause, _back_off(ledger.state.settings, task.failures + 1))


def _retry_with_more_memory(ledger: Ledger, task: OpenTask, had: Placement) -> None:
    """Retry a task that ran out of GPU memory with a larger request, if it has retries and a GPU is larger."""
    if task.failures >= task.spec.retries:
        end(ledger, task, TaskStatus.FAILED, Cause(CauseKind.OUT_OF_MEMORY))
        return
    enough = more_memory(ledger.state, task.spec.resources, had)
    if enough is None:
        end(ledger, task, TaskStatus.FAILED, Cause(CauseKind.OUT_OF_MEMORY_ON_LARGEST))
        return
    _requeue(ledger, task, Cause(CauseKind.OUT_OF_MEMORY), _back_off(ledger.state.settings, task.failures + 1), enough)


def _back_off(settings: Settings, times: int) -> float:
    """Return the delay in seconds after `times` failures: 0 for none, then doubling up to the maximum."""
    if times <= 0:
        return 0.0
    return min(settings.retry_delay_seconds * 2.0 ** min(times - 1, 60), settings.retry_delay_max_seconds)


def _requeue(ledger: Ledger, task: OpenTask, cause: Cause, delay: float, gpu_memory_mib: int = 0) -> None:
    ledger.emit(events.TaskRequeued(task.id, cause, ledger.state.now + delay if delay else 0.0, gpu_memory_mib))


def end(ledger: Ledger, task: OpenTask, status: TaskStatus, cause: Cause) -> None:
    """End a task, and cancel the tasks that require its success."""
    over = [(task, status, cause)]
    for ending, how, why in over:
        if ending.id not in ledger.state.tasks:
            continue
        breaks = [] if how is TaskStatus.SUCCESS or not ending.barriers else _broken_by_failure(ending.barriers)
        ledger.emit(events.TaskEnded(ending.id, how, why))
        if breaks:
            cause = Cause(CauseKind.DEPENDENCY, task=ending.id)
            tasks = ledger.state.tasks
            over += [(tasks[other], TaskStatus.CANCELLED, cause) for barrier in breaks for other in barrier.dependents]


def _broken_by_failure(barriers: list[Barrier]) -> list[Barrier]:
    """Return the barriers that this failure breaks; dependents of already broken barriers are being ended."""
    return [barrier for barrier in barriers if barrier.needs_success and not barrier.broken]


def is_ending(task: OpenTask) -> bool:
    """Whether a task is being stopped for good."""
    return isinstance(task.phase, Stopping) and task.phase.cause.why in ENDING
