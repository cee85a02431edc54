"""Plans as files."""

from dataclasses import replace

import msgspec
import numpy as np
import pytest

from gpuyard.core.domain.errors import WrongInput
from gpuyard.plan.planner.plan_file import read_plan, write_plan
from tests.unit.plan.planner.small_problems import plan, problem

TWO = problem(("a", "A", 5.0, ""), ("b", "B2", 2.0, "a"))
RIGHT = plan((1, 3, 8), (0, 12, 14))


def written(**changes: object) -> bytes:
    said = msgspec.json.decode(write_plan(TWO, RIGHT, "by hand"))
    return msgspec.json.encode(said | changes)


def test_a_plan_is_written_in_the_documented_format() -> None:
    assert msgspec.json.decode(written()) == {
        "format": "planner-plan/1",
        "instance": "small",
        "tasks": [
            {"request": "r0", "node": "a", "gpus": [1], "start": 3.0, "end": 8.0},
            {"request": "r0", "node": "b", "gpus": [0, 1], "start": 12.0, "end": 14.0},
        ],
        "planner": "by hand",
    }


def test_a_plan_of_an_earlier_version_that_says_how_long_planning_took_is_read() -> None:
    assert read_plan(written(planning_s=0.5), TWO).faults == ()


@pytest.mark.parametrize("level", [None, np.array([0, 1], dtype=np.int32)])
def test_a_written_plan_is_read_back(level: "np.ndarray[tuple[int], np.dtype[np.int32]] | None") -> None:
    read = read_plan(write_plan(TWO, replace(RIGHT, level=level), "by hand"), TWO)
    assert read.faults == ()
    assert read.planner == "by hand"
    for column in ("gpu", "start", "end", "level"):
        ours, theirs = getattr(read.plan, column), getattr(RIGHT if column != "level" else replace(RIGHT, level=level), column)  # fmt: skip
        assert np.array_equal(ours, theirs) if theirs is not None else ours is None


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"instance": "other"}, "The plan is for the problem 'other', but this problem is 'small'."),
        ({"format": "planner-plan/9"}, "format is 'planner-plan/9'; plans have the format 'planner-plan/1'."),
        ({"tasks": [{"request": "r7", "node": "a", "gpus": [0], "start": 0, "end": 1}]}, "tasks[0].request: the problem has no request 'r7'."),
        ({"tasks": [{"request": "r0", "node": "z", "gpus": [0], "start": 0, "end": 1}]}, "tasks[0].node: request 'r0' has no node 'z'."),
        ({"tasks": [{"request": "r0"}]}, "tasks[0].node is missing; it is required."),
        ({"tasks": [{"request": "r0", "node": "a", "gpu": [0], "start": 0, "end": 1}]}, 'Unknown name "gpu" in tasks[0]; did you mean "gpus"?'),
        ({"tasks": [{"request": "r0", "node": "a", "gpus": [0], "start": "0", "end": 1}]}, 'tasks[0].start is "0"; it must be a number.'),
    ],
)  # fmt: skip
def test_a_plan_for_another_problem_is_refused(changes: dict[str, object], said: str) -> None:
    with pytest.raises(WrongInput) as error:
        read_plan(written(**changes), TWO)
    assert str(error.value) == said


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (written()[:60], "line 1: the file ends too early; part of it is missing."),
        (written().replace(b"3.0", b"3,0"), "line 1, column 104: this is not JSON: expecting property name enclosed in double quotes."),
        (b'{"format": "planner-instance/1", "models": {}}', "format is 'planner-instance/1'; plans have the format 'planner-plan/1'."),
        (b"", "The file is empty."),
        (b"[1]", "The plan is a list; it must be an object with format, instance, tasks, planner, …."),
        (b"hello", 'The plan is "hello"; it must be an object with format, instance, tasks, planner, ….'),
        (b"\x89PNG", "line 1: this is not UTF-8; save the file as UTF-8."),
    ],
)  # fmt: skip
def test_an_invalid_plan_is_reported_in_one_sentence(text: bytes, said: str) -> None:
    with pytest.raises(WrongInput) as error:
        read_plan(text, TWO)
    assert str(error.value) == said


def test_missing_or_duplicate_calls_and_invalid_gpus_are_faults() -> None:
    a = {"request": "r0", "node": "a", "gpus": [0], "start": 3.0, "end": 8.0}
    assert read_plan(written(tasks=[a, a]), TWO).faults == (
        "r0/a occurs twice in the plan, the second time at tasks[1].",
        "r0/b is not in the plan.",
    )
    b = {"request": "r0", "node": "b", "gpus": [0, 2], "start": 12.0, "end": 14.0}
    assert read_plan(written(tasks=[a, b]), TWO).faults == (
        "r0/b is planned on the GPUs [0, 2]; it needs 2 with consecutive numbers.",
    )


LOAD = {"model": "B2", "gpus": [0, 1], "start": 1.0, "end": 4.0}


def test_measured_loads_are_read() -> None:
    loads = read_plan(written(loads=[LOAD]), TWO).plan.loads
    assert loads is not None
    assert [column.tolist() for column in (loads.model, loads.gpu, loads.start, loads.end)] == [[1], [0], [1.0], [4.0]]
    assert read_plan(written(), TWO).plan.loads is None


@pytest.mark.parametrize(
    ("load", "said"),
    [
        (LOAD | {"model": "C"}, "loads[0].model: the problem has no model 'C'."),
        (LOAD | {"gpus": [1, 2]}, "loads[0].gpus: 'B2' needs 2 GPUs with consecutive numbers."),
        (LOAD | {"gpus": []}, "loads[0].gpus: 'B2' needs 2 GPUs with consecutive numbers."),
    ],
)
def test_impossible_loads_are_refused(load: dict[str, object], said: str) -> None:
    with pytest.raises(WrongInput) as error:
        read_plan(written(loads=[load]), TWO)
    assert str(error.value) == said
