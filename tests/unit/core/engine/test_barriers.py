"""Arrays depend on arrays as groups: the cost of a request is linear in its tasks."""

import json

import msgspec
import pytest

from gpuyard.core.domain import commands as command
from gpuyard.core.domain import refusals as no
from gpuyard.core.domain.causes import Cause, CauseKind
from gpuyard.core.domain.events import TaskEnded
from gpuyard.core.domain.node import Gpu, NodeSpec
from gpuyard.core.domain.refusals import Refusal
from gpuyard.core.domain.task import NewTask, Resources, TaskSpec, ranges_in
from gpuyard.core.domain.values import NodeId, Outcome, TaskId, TaskStatus, TenantId
from gpuyard.core.engine import invariants, snapshot
from gpuyard.core.engine.engine import Engine, Events
from gpuyard.core.engine.explain import why_waits
from gpuyard.core.journal.codec import CODEC
from gpuyard.core.journal.records import JournalEntry


def spec(**more: object) -> TaskSpec:
    return TaskSpec(TenantId("lab"), Resources(gpus=1), command="true", **more)  # type: ignore[arg-type]


def two_arrays(count: int, **waits: object) -> Engine:
    """An array of so many tasks, and a second one that waits for all of it."""
    engine = Engine()
    engine.handle(command.JoinNode(NodeSpec(NodeId("n"), (Gpu("v", 1024),) * 2, 8, 1024), ()), 0.0)
    told(engine, batch(count, **waits))
    return engine


def batch(count: int, **waits: object) -> command.SubmitTasks:
    waits = waits or {"after_success_ranges": ((1, count),)}
    first = [NewTask(TaskId(1 + index), spec(array_index=index)) for index in range(count)]
    then = [NewTask(TaskId(1 + count + index), spec(array_index=index, **waits)) for index in range(count)]
    return command.SubmitTasks((*first, *then))


def told(engine: Engine, asked: command.Command) -> Events:
    events = engine.handle(asked, 1.0)
    assert not isinstance(events, Refusal), events.sentence()
    return events


def runs_all(engine: Engine, last: int, outcome: Outcome = Outcome.SUCCEEDED) -> None:
    """Every task up to this number is run, and ends so."""
    while any(task <= last for task in engine.state.tasks):
        for event in engine.decide(1.0):
            if hasattr(event, "placement"):
                told(engine, command.ReportStarted(event.task, 1))  # type: ignore[attr-defined]
                told(engine, command.ReportEnded(event.task, 1, outcome, 0))  # type: ignore[attr-defined]


def test_an_array_waits_until_all_of_another_has_ended() -> None:
    engine = two_arrays(10)
    assert len(engine.state.barriers) == 1
    assert engine.state.queue.waiting == 10
    assert why_waits(engine.state, TaskId(15), 1.0) == no.WaitingForTasks(TaskId(1), 10)

    runs_all(engine, 4)
    invariants.check(engine.state)
    open_ones = [task for task in engine.state.tasks if task <= 10]
    assert why_waits(engine.state, TaskId(15), 1.0) == no.WaitingForTasks(min(open_ones), len(open_ones))

    runs_all(engine, 10)
    invariants.check(engine.state)
    assert engine.state.barriers == {}
    assert engine.state.queue.waiting == 10


def test_the_failure_of_one_task_cancels_the_array_that_waits_with_that_reason() -> None:
    engine = two_arrays(10)

    events = told(engine, command.CancelTask(TaskId(3)))

    because = Cause(CauseKind.DEPENDENCY, task=TaskId(3))
    assert events[1:] == [TaskEnded(TaskId(number), TaskStatus.CANCELLED, because) for number in range(11, 21)]
    again = told(engine, command.CancelTask(TaskId(4)))
    assert again == [TaskEnded(TaskId(4), TaskStatus.CANCELLED, Cause(CauseKind.CANCELLED))]
    invariants.check(engine.state)


def test_after_any_accepts_a_failure() -> None:
    engine = two_arrays(3, after_any_ranges=((1, 3),))
    runs_all(engine, 3, Outcome.FAILED)
    assert sorted(engine.state.tasks) == [4, 5, 6]
    assert engine.state.queue.waiting == 3


def test_a_chain_of_arrays_is_cancelled_with_its_first_task_and_each_task_once() -> None:
    engine = Engine()
    tasks = [
        NewTask(TaskId(row * 50 + index + 1), spec(after_success_ranges=((row * 50 - 49, row * 50),) if row else ()))
        for row in range(5)
        for index in range(50)
    ]
    told(engine, command.SubmitTasks(tuple(tasks)))

    events = told(engine, command.CancelTask(TaskId(7)))

    assert len(events) == 1 + 4 * 50
    assert len(engine.state.tasks) == 49
    invariants.check(engine.state)


def test_an_earlier_failure_cancels_a_range_at_once() -> None:
    engine = two_arrays(4)
    told(engine, command.CancelTask(TaskId(2)))

    events = told(engine, command.SubmitTasks((NewTask(TaskId(9), spec(after_success_ranges=((1, 4),))),)))

    assert events[-1] == TaskEnded(TaskId(9), TaskStatus.CANCELLED, Cause(CauseKind.DEPENDENCY, task=TaskId(2)))
    invariants.check(engine.state)


def test_an_unknown_range_and_a_cycle_through_ranges_are_refused() -> None:
    engine = Engine()
    unknown = command.SubmitTasks((NewTask(TaskId(1), spec(after_any_ranges=((2, 3),))),))
    assert engine.handle(unknown, 0.0) == no.UnknownDependency(TaskId(1), TaskId(2))
    circle = command.SubmitTasks(
        (
            NewTask(TaskId(1), spec(after_any_ranges=((3, 4),))),
            NewTask(TaskId(2), spec(after_any_ranges=((3, 4),))),
            NewTask(TaskId(3), spec(after_success_ranges=((1, 2),))),
            NewTask(TaskId(4), spec()),
        )
    )
    assert isinstance(engine.handle(circle, 0.0), no.DependencyCycle)
    assert engine.state.tasks == {}


@pytest.mark.parametrize("waits", ["backward", "forward"])
def test_events_and_snapshot_grow_with_the_tasks_and_not_with_their_square(waits: str) -> None:
    sizes = []
    for count in (250, 1000):
        engine = Engine()
        asked = batch(count)
        if waits == "forward":  # the first array waits for the second
            tasks = [
                NewTask(new.id, spec(after_success_ranges=((count + 1, 2 * count),)) if new.id <= count else spec())
                for new in asked.tasks
            ]
            asked = command.SubmitTasks(tuple(tasks))
        events = told(engine, asked)
        sizes.append(
            sum(len(CODEC.encode(JournalEntry(1.0, event))) for event in events)
            + len(msgspec.json.encode(snapshot.dump(engine.state)))
        )
        invariants.check(engine.state)
    assert sizes[1] < 4.2 * sizes[0]


def test_barriers_are_restored_from_a_snapshot() -> None:
    engine = two_arrays(6)
    runs_all(engine, 2)
    again = Engine(snapshot.load(json.loads(msgspec.json.encode(snapshot.dump(engine.state)))))
    invariants.check(again.state)
    assert snapshot.dump(again.state) == snapshot.dump(engine.state)

    runs_all(again, 6)
    assert again.state.barriers == {}
    assert again.state.queue.waiting == 6


def test_consecutive_numbers_become_ranges() -> None:
    numbers = [TaskId(number) for number in (9, 1, 2, 3, 4, 20, 21, 2)]
    assert ranges_in(numbers, 4) == ((9, 20, 21), ((1, 4),))
    assert ranges_in(numbers, 2) == ((9,), ((1, 4), (20, 21)))
    assert ranges_in([], 2) == ((), ())
