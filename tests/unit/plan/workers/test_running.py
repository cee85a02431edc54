"""A plan is run from Python as by the command."""

from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from gpuyard.core.domain.errors import WrongInput
from gpuyard.plan.planner import solve
from gpuyard.plan.planner.plan import Plan
from gpuyard.plan.planner.plan_file import read_plan
from gpuyard.plan.planner.problem import Problem
from gpuyard.plan.planner.problem_file import problem_of
from gpuyard.plan.workers import On, RunWatch, run_plan
from tests.unit.plan.planner.small_problems import drawn, instance, problem

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


def test_without_a_plan_one_is_made_as_by_solve() -> None:
    """Six calls for which the fast strategy does not find the shortest plan, and a short search does."""
    hard = drawn("tight_chain", 6, 2, seed=1)
    prepared: list[str] = []
    watch = RunWatch(preparing=lambda strategy, _: prepared.append(strategy))
    done = run_plan(hard, seconds=1, speed_up=1000, watch=watch)
    assert done.planned.makespan_s == solve(hard, seconds=1).makespan_s
    assert done.planned.makespan_s < solve(hard, strategy="heft_affinity").makespan_s
    run_plan(hard, done.planned, speed_up=1000, watch=watch)
    assert prepared == ["auto", "heft_affinity"], "a given plan is only replanned, by the fast strategy"


def test_a_caller_can_end_a_run() -> None:
    done = run_plan(SMALL, strategy="batch", watch=RunWatch(stopped=lambda: True))
    assert done.ended_early
    assert not done.complete
    assert done.figures()["ended_by_hand"] is True


def test_a_recorded_run_that_is_ended_says_how_to_continue_it(tmp_path: Path) -> None:
    said: list[str] = []
    watch = RunWatch(stopped=lambda: True, warning=said.append)
    run_plan(SMALL, strategy="batch", resume=tmp_path / "record.jsonl", watch=watch)
    assert said[-1].endswith("record.jsonl; the same command continues the run.")


def test_impossible_runs_are_reported_before_anything_is_planned(tmp_path: Path) -> None:
    how = tmp_path / "how.yaml"
    how.write_text("models: {'*': {command: [cat]}}")
    with pytest.raises(WrongInput, match="virtual runtimes"):
        run_plan(SMALL, runtimes=how, speed_up=2)
    with pytest.raises(WrongInput, match="omit one of them"):
        run_plan(SMALL, on=On.RAY, borrow=lambda _problem, _speed: pytest.fail("nothing is borrowed"))
    with pytest.raises(WrongInput, match="Unknown strategy"):
        run_plan(SMALL, strategy="magic")


def test_a_model_is_loaded_while_its_worker_runs_a_call_and_the_run_is_shorter() -> None:
    """Three models in turn on one GPU that holds two of them: loads of 3 s beside calls of 8 s."""
    said = instance(("a", "A", 8.0, ""), ("b", "B", 8.0, "a"), ("c", "C", 8.0, "b"), gpus=1, preload=True)
    said.gpus[0].memory_gb = 60.0
    together = problem_of(said)
    runs = [
        run_plan(one, solve(one, strategy="dynamic").plan, speed_up=10, strategy="dynamic")
        for one in (together, replace(together, preload=False))
    ]
    assert [run.complete for run in runs] == [True, True]
    with_it, without = (run.figures() for run in runs)
    assert with_it["makespan_s"] < without["makespan_s"]
    assert with_it["hidden_switch_s"] > 4.0
    assert "hidden_switch_s" not in without
    record = read_plan(runs[0].actual(), together)
    assert record.is_actual
    assert record.plan.loads is not None
    assert record.plan.loads.model.tolist() == [0, 1, 2]
    for load, call in ((1, 0), (2, 1)):  # each begins while the call before is running
        assert record.plan.start[call] < record.plan.loads.start[load] + 2.0
        assert record.plan.loads.end[load] < record.plan.end[call]
    assert "loads" not in msgspec.json.decode(runs[1].actual())
