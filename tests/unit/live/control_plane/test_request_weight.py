"""The cost of a request with dependencies, in executed lines of the engine: linear in its size, and as its weight says.

Lines are counted, not seconds, so the figures are the same on every machine.
"""

import sys
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any

import pytest

from gpuyard.core.domain import commands as command
from gpuyard.core.domain.refusals import Refusal
from gpuyard.core.domain.task import NewTask, Resources, TaskSpec
from gpuyard.core.domain.values import TaskId, TenantId
from gpuyard.core.engine.engine import Engine
from gpuyard.live.control_plane.loop import LIGHT
from gpuyard.live.control_plane.submissions import Submission, _weight

BASE = 500
"""Tasks that are there before."""
SMALL, LARGE = 200, 800
LINES_FOR_ONE = 300
"""More lines than one unit of weight stands for."""


def spec(**waits: Any) -> TaskSpec:
    return TaskSpec(TenantId("lab"), Resources(gpus=1), command="true", **waits)


def after(number: int) -> dict[str, Any]:
    return {"after_success": (TaskId(number),)} if number else {}


def chain(size: int) -> list[TaskSpec]:
    return [spec(**after(BASE + place if place else 0)) for place in range(size)]


def backward_chain(size: int) -> list[TaskSpec]:
    return [spec(**after(BASE + place + 2 if place + 1 < size else 0)) for place in range(size)]


def array_after_array(size: int) -> list[TaskSpec]:
    half = size // 2
    waits = {"after_success_ranges": ((TaskId(BASE + 1), TaskId(BASE + half)),)}
    return [spec(**(waits if place >= half else {})) for place in range(size)]


def array_after_some(size: int) -> list[TaskSpec]:
    return [spec(after_any=tuple(TaskId(number) for number in range(1, 20, 2)))] * size


def fan_in(size: int) -> list[TaskSpec]:
    return [*[spec()] * (size - 1), spec(after_any=tuple(TaskId(BASE + 1 + place) for place in range(size - 1)))]


def hopeless_array(size: int) -> list[TaskSpec]:
    """It waits for the success of a task that was cancelled, and ends at once."""
    return [spec(after_success=(TaskId(1),))] * size


SHAPES = (chain, backward_chain, array_after_array, array_after_some, fan_in, hopeless_array)


def lines_of(do: Callable[[], object]) -> int:
    """How many lines of Python are run."""
    lines = 0

    def trace(_frame: FrameType, event: str, _argument: object) -> Any:
        nonlocal lines
        lines += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        do()
    finally:
        sys.settrace(before)
    return lines


def engine() -> Engine:
    made = Engine()
    made.handle(command.CreateCluster("yard"), 1.0)
    made.handle(submit([spec()] * BASE, 0), 2.0)
    made.handle(command.CancelTask(TaskId(1)), 3.0)
    return made


def submit(specs: Sequence[TaskSpec], first: int = BASE) -> command.SubmitTasks:
    return command.SubmitTasks(tuple(NewTask(TaskId(first + 1 + place), it) for place, it in enumerate(specs)))


def cost(specs: Sequence[TaskSpec]) -> int:
    """Of a submission and of the pass after it."""
    made, asked = engine(), submit(specs)

    def do() -> None:
        assert not isinstance(made.handle(asked, 4.0), Refusal)
        made.decide(4.0)

    return lines_of(do)


@pytest.mark.parametrize("shape", SHAPES)
def test_a_request_with_dependencies_costs_linear_work(
    shape: Callable[[int], list[TaskSpec]],
) -> None:
    assert cost(shape(LARGE)) < 1.5 * LARGE / SMALL * cost(shape(SMALL))


@pytest.mark.parametrize("made", [chain, backward_chain])
def test_the_end_of_a_chain_costs_linear_work(made: Callable[[int], list[TaskSpec]]) -> None:
    costs = []
    for size in (SMALL, LARGE):
        busy = engine()
        busy.handle(submit(made(size)), 4.0)
        first = BASE + 1 if made is chain else BASE + size

        def do(busy: Engine = busy, first: int = first, size: int = size) -> None:
            ended = busy.handle(command.CancelTask(TaskId(first)), 5.0)
            assert not isinstance(ended, Refusal)
            assert len(ended) == size

        costs.append(lines_of(do))
    assert costs[1] < 1.5 * LARGE / SMALL * costs[0]


@pytest.mark.parametrize("shape", SHAPES)
def test_the_weight_of_a_request_is_its_work(shape: Callable[[int], list[TaskSpec]]) -> None:
    for specs in (shape(SMALL), shape(LARGE), [spec(after_any_ranges=((TaskId(2), TaskId(BASE)),))]):
        weight = _weight([Submission([it], {}) for it in specs])
        assert cost(specs) < LINES_FOR_ONE * weight


def test_a_task_with_many_dependencies_is_handled_outside_the_loop() -> None:
    many = LIGHT + 1
    single = spec(after_success=tuple(TaskId(number) for number in range(1, 2 * many, 2)))
    row = spec(after_any_ranges=((TaskId(1), TaskId(many)),))
    for one in (single, row):
        assert _weight([Submission([one], {})]) > LIGHT


def test_the_weight_of_an_array_counts_the_dependencies_of_each_task() -> None:
    ten = tuple(TaskId(number) for number in range(1, 20, 2))
    assert _weight([Submission([spec(after_any=ten)] * 50, {})]) == 50 * 11
    assert _weight([Submission([spec()] * 50, {}, after_success=(0, 1))]) == 50 * 3
