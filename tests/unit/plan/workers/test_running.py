"""A plan is run from Python as by the command."""

from pathlib import Path

import msgspec
import pytest

from gpuyard.core.domain.errors import WrongInput
from gpuyard.plan.planner import solve
from gpuyard.plan.planner.plan import Plan
from gpuyard.plan.planner.problem import Problem
from gpuyard.plan.workers import On, RunWatch, run_plan
from tests.unit.plan.planner.small_problems import problem

SMALL = problem(("a", "A", 1.0, ""), ("b", "B", 1.0, "a"), requests=2, gpus=2)


def test_every_call_is_done_and_the_record_is_a_file_like_a_plan() -> None:
    told: list[str] = []

    def planned(_: Problem, plan: Plan) -> None:
        told.append(f"planned {plan.makespan_s:.0f}")

    watch = RunWatch(
        planned=planned, opened=lambda: told.append("opened"), result=lambda call, _: told.append(f"{call}")
    )
    done = run_plan(SMALL, solve(SMALL, strategy="dynamic").plan, speed_up=100, strategy="dynamic", watch=watch)
    assert done.complete
    assert not done.ended_early
    assert (done.figures()["done"], done.figures()["failed"]) == (4, [])
    assert told[:2] == [f"planned {done.planned.makespan_s:.0f}", "opened"]
    assert sorted(told[2:]) == ["1", "3"]
    assert len(msgspec.json.decode(done.actual())["tasks"]) == 4


def test_a_caller_can_end_a_run() -> None:
    done = run_plan(SMALL, strategy="batch", watch=RunWatch(stopped=lambda: True))
    assert done.ended_early
    assert not done.complete
    assert done.figures()["ended_by_hand"] is True


def test_impossible_runs_are_reported_before_anything_is_planned(tmp_path: Path) -> None:
    how = tmp_path / "how.yaml"
    how.write_text("models: {'*': {command: [cat]}}")
    with pytest.raises(WrongInput, match="virtual runtimes"):
        run_plan(SMALL, runtimes=how, speed_up=2)
    with pytest.raises(WrongInput, match="omit one of them"):
        run_plan(SMALL, on=On.RAY, borrow=lambda _problem, _speed: pytest.fail("nothing is borrowed"))
    with pytest.raises(WrongInput, match="Unknown strategy"):
        run_plan(SMALL, strategy="magic")
