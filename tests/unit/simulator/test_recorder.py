"""What a recorder keeps of the events it heard."""

import tracemalloc

import pytest

from gpuyard.core.domain import events
from gpuyard.core.domain.causes import Cause, CauseKind
from gpuyard.core.domain.placement import Placement, Slice
from gpuyard.core.domain.task import Resources, TaskSpec
from gpuyard.core.domain.values import NodeId, Outcome, TaskId, TaskStatus, TenantId
from gpuyard.simulator.recorder import Recorder, TaskTimeline

PLACEMENT = Placement((Slice(NodeId("a"), (0, 1)),))


def submitted(number: int, user: str) -> events.TaskSubmitted:
    return events.TaskSubmitted(TaskId(number), TaskSpec(TenantId("all"), Resources(gpus=2), user=user))


def ended(number: int) -> list[events.Event]:
    return [
        events.AttemptEnded(TaskId(number), 1, Outcome.SUCCEEDED, 0),
        events.TaskEnded(TaskId(number), TaskStatus.SUCCESS, Cause(CauseKind.SUCCEEDED)),
    ]


def test_a_task_is_recorded_from_its_submission_to_its_end() -> None:
    recorder = Recorder()
    recorder.hear(1.0, [submitted(3, "ann"), submitted(7, "bob")])
    recorder.hear(2.0, [events.TaskPlaced(TaskId(7), 1, PLACEMENT)])
    assert recorder.lives[TaskId(7)] == TaskTimeline("bob", 1.0, 2.0, None, 0.0, 0)
    recorder.hear(5.0, [events.AttemptStopping(TaskId(7), 1, Cause(CauseKind.PREEMPTED, task=TaskId(9)))])
    recorder.hear(6.0, ended(7))
    assert recorder.lives[TaskId(7)] == TaskTimeline("bob", 1.0, 2.0, 6.0, 4.0, 1)
    assert recorder.lives[TaskId(3)] == TaskTimeline("ann", 1.0, None, None, 0.0, 0)
    assert (list(recorder.lives), [life.user for life in recorder.lives.over()]) == ([3, 7], ["bob"])
    assert recorder.gpu_seconds == 8.0
    with pytest.raises(KeyError):
        recorder.lives[TaskId(4)]


def test_an_ended_task_takes_less_than_a_hundred_bytes() -> None:
    recorder, lives = Recorder(), 10_000
    tracemalloc.start()
    for number in range(lives):
        recorder.hear(0.0, [submitted(number, "ann"), events.TaskPlaced(TaskId(number), 1, PLACEMENT), *ended(number)])
        recorder.line.clear()
    kept, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert kept / lives < 100
