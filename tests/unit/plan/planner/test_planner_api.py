"""Plans from Python: what the commands call."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import inf, nan
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gpuyard.cli import main
from gpuyard.core.domain.errors import WrongInput
from gpuyard.plan import planner
from gpuyard.plan.planner.api import Watch, prepare, valid_plan
from gpuyard.plan.planner.generate import generate
from gpuyard.plan.planner.instance import write_instance
from gpuyard.plan.planner.plan import Plan
from gpuyard.plan.planner.problem_file import problem_of
from tests.unit.plan.planner.small_problems import problem


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "chain.json"
    path.write_bytes(write_instance(generate("chain", 40, 2, seed=3)))
    return path


def test_a_solution_states_the_quality_of_the_plan(file: Path) -> None:
    found = planner.solve(file, strategy="batch")
    assert found.valid
    assert found.plan.makespan_s == found.makespan_s == found.measures.makespan_s
    assert found.makespan_s == pytest.approx(found.lower_bound_s * (1 + found.gap))
    assert found.figures()["strategy"] == "batch"
    assert "late_requests" not in found.figures()


def test_the_same_rounds_and_seed_make_the_same_plan() -> None:
    asked = problem_of(generate("agentic", 60, 2))
    one, two = (planner.solve(asked, strategy="search", rounds=5, seed=4).plan for _ in range(2))
    assert (one.start.tolist(), one.gpu.tolist()) == (two.start.tolist(), two.gpu.tolist())


@pytest.mark.parametrize("kind", [np.int64, np.int32, np.uint8])
def test_a_seed_of_numpy_makes_the_plan_of_the_same_number(kind: type) -> None:
    asked = problem_of(generate("agentic", 60, 2))
    one, two = (planner.solve(asked, strategy="search", rounds=5, seed=seed).plan for seed in (3, kind(3)))
    assert (one.start.tolist(), one.gpu.tolist()) == (two.start.tolist(), two.gpu.tolist())


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: planner.read("x" * 3000), f"{'x' * 200}…: File name too long."),
        (lambda: planner.read("a\nb"), r"a\nb: No such file or directory."),
        (lambda: prepare("x" * 3000), f"Unknown strategy '{'x' * 60}…'; "),
        (lambda: planner.solve("p.json", seconds=np.True_), "seconds is true; "),  # type: ignore[arg-type]
        (lambda: planner.solve("p.json", watching=3), "watching is 3; it must be a function."),  # type: ignore[arg-type]
        (lambda: planner.compare("p.json", left_out=3), "left_out is 3; it must be a function."),  # type: ignore[arg-type]
    ],
)
def test_a_refusal_is_one_short_line(call: Callable[[], object], sentence: str) -> None:
    with pytest.raises(WrongInput) as error:
        call()
    assert str(error.value).startswith(sentence)


def test_a_written_plan_is_read_back_and_keeps_every_rule(file: Path, tmp_path: Path) -> None:
    found = planner.solve(file, strategy="dynamic")
    for name in ("plan.json", "plan.json.gz"):
        found.write(tmp_path / name)
        assert planner.check(tmp_path / name, file) == []
        assert valid_plan(tmp_path / name, found.problem).makespan_s == found.makespan_s


def test_a_plan_that_breaks_a_rule_is_reported_in_sentences(file: Path) -> None:
    found = planner.solve(file, strategy="dynamic")
    late = Plan(found.plan.gpu, found.plan.start, found.plan.end + 1.0)
    assert "takes" in planner.check(late, file, at_most=1)[0]


def test_strategies_are_compared_with_the_best_bound_proved_by_any() -> None:
    asked = problem(("a", "A", 5.0, ""), ("b", "B", 2.0, "a"), ("c", "A", 1.0, "b"), gpus=1)
    both = planner.compare(asked, ["batch", "exact"], rounds=20)
    assert {one.lower_bound_s for one in both.values()} == {both["exact"].makespan_s}


def test_strategies_with_too_low_a_call_limit_are_left_out_unless_named() -> None:
    asked, left = problem_of(generate("chain", 100, 2)), []
    found = planner.compare(asked, rounds=1, left_out=lambda name, why: left.append((name, str(why))))
    assert "exact" not in found
    assert [name for name, _ in left] == ["exact"]
    with pytest.raises(WrongInput, match="at most 60 calls"):
        planner.compare(asked, ["batch", "exact"])


def test_a_caller_receives_better_plans_and_can_end_the_search() -> None:
    told: list[float] = []

    @contextmanager
    def watching(strategy: str, lower_bound_s: float) -> Iterator[Watch]:
        assert (strategy, lower_bound_s > 0) == ("search", True)
        yield Watch(lambda plan: told.append(plan.makespan_s), lambda: len(told) > 0)

    found = planner.solve(problem_of(generate("tiny", 60, 2)), strategy="search", seconds=600, watching=watching)
    assert told[0] >= found.makespan_s


def test_power_levels_need_gpus_that_have_several() -> None:
    levels = problem_of(generate("chain", 30, 2, levels=True))
    fast, slow = (planner.solve(levels, strategy="batch", max_slowdown=part) for part in (None, 0.2))
    assert slow.energy_kwh is not None
    assert fast.energy_kwh is not None
    assert slow.energy_kwh < fast.energy_kwh
    with pytest.raises(WrongInput, match="power levels"):
        planner.solve(problem_of(generate("chain", 30, 2)), strategy="batch", max_slowdown=0.2)


def test_errors_in_a_file_name_the_file(tmp_path: Path) -> None:
    broken = tmp_path / "broken.yaml"
    broken.write_text("models: {a: {memory_gb: 1}}\nmodels: {}\n")
    with pytest.raises(WrongInput, match=r"broken\.yaml: line 2: models is given twice"):
        planner.read(broken)
    with pytest.raises(WrongInput, match=r"none\.json: No such file"):
        planner.read(tmp_path / "none.json")


def test_options_of_reading_change_the_problem(file: Path) -> None:
    asked = planner.read(file, gpus=5, multi_model=True)
    assert (len(asked.gpus), asked.multi_model) == (5, True)


def test_preload_can_be_asked_for_if_the_memory_of_all_gpus_is_known(tmp_path: Path) -> None:
    said = generate("chain", 10, 2)
    known, unknown = tmp_path / "known.json", tmp_path / "unknown.json"
    known.write_bytes(write_instance(said))
    said.gpus[1].memory_gb = inf
    unknown.write_bytes(write_instance(said))
    assert [planner.read(known, preload=option).preload for option in (None, True, False)] == [False, True, False]
    with pytest.raises(WrongInput, match=r"unknown\.json: GPU 1 has no memory_gb, and preload needs it"):
        planner.read(unknown, preload=True)


def test_a_strategy_is_prepared_once() -> None:
    assert prepare("batch") == prepare("batch")
    with pytest.raises(WrongInput, match="Unknown strategy 'magic'"):
        prepare("magic")


PREPARED = """
import importlib, pkgutil, sys
from dataclasses import replace
from gpuyard.plan.planner import compiled
from gpuyard.plan.planner.api import prepare
from gpuyard.plan.planner.strategies import SearchBudget, strategy
from tests.unit.plan.planner.small_problems import drawn

modules = [importlib.import_module(f"{compiled.__name__}.{one.name}") for one in pkgutil.iter_modules(compiled.__path__)]
functions = {f"{f.__module__}.{f.__name__}": f for m in modules for f in vars(m).values() if hasattr(f, "nopython_signatures")}

def signatures():
    return {name: len(function.nopython_signatures) for name, function in functions.items()}

prepare(sys.argv[1])
before = signatures()
assert any(before.values())
for asked in (drawn("tiny", 40, 3), drawn("multi_gpu", 40, 4), replace(drawn("agentic", 40, 4), preload=True)):
    strategy(sys.argv[1])(asked, SearchBudget(1, int(sys.argv[2])))
print([name for name, many in signatures().items() if many != before[name]])
"""


@pytest.mark.parametrize(("name", "rounds"), [("search", 1500), ("exact", 5)])
def test_nothing_is_left_to_compile_after_a_strategy_is_prepared(name: str, rounds: int) -> None:
    """In a process of its own, where nothing was compiled or loaded before."""
    said = subprocess.run(
        [sys.executable, "-c", PREPARED, name, str(rounds)],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[4])},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert said == "[]\n"


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"rounds": 0}, "rounds is 0; it must be a whole number from 1 to 1,000,000,000."),
        ({"rounds": -1}, "rounds is -1; it must be a whole number from 1 to 1,000,000,000."),
        ({"seconds": -1.0}, "seconds is -1.0; it must be a number from 0 to 31,536,000."),
        ({"seed": -1}, "seed is -1; it must be a whole number from 0 to 9,223,372,036,854,775,807."),
        ({"max_slowdown": 11.0}, "max_slowdown is 11.0; it must be a number from 0 to 10."),
    ],
)
def test_python_and_the_command_refuse_a_search_that_can_not_be_meant_in_the_same_sentence(
    options: dict[str, Any],
    sentence: str,
    file: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(WrongInput) as error:
        planner.solve(file, **options)
    assert str(error.value) == sentence
    ((name, value),) = options.items()
    monkeypatch.setattr("sys.argv", ["gpuyard", "plan", "solve", str(file), f"--{name.replace('_', '-')}={value}"])
    assert main() == 2
    assert capsys.readouterr().err.replace("--max-slowdown", "max_slowdown") == f"gpuyard: {sentence}\n"


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda plan, _: plan.solve(None), "problem is null; it must be the path of a file."),
        (lambda plan, file: plan.solve(file, seconds=nan), "seconds is not a finite number; it must be a number"),
        (lambda plan, file: plan.solve(file, seed=1.5), "seed is 1.5; it must be a whole number"),
        (lambda plan, file: plan.solve(file, strategy=5), "strategy is 5; it must be text."),
        (lambda plan, file: plan.compare(file, 5), "strategies is 5; it must be a list of names"),
        (
            lambda plan, file: plan.read(file, gpus=10**9),
            "gpus is 1000000000; it must be a whole number from 1 to 1,000,000",
        ),
        (lambda plan, file: plan.read(file, multi_model="x"), 'multi_model is "x"; it must be true or false.'),
        (lambda plan, file: plan.check(file, file, at_most=0), "at_most is 0; it must be a whole number"),
        (lambda plan, file: plan.read_plan(None, plan.read(file)), "plan is null; it must be the path of a file."),
        (lambda plan, _: plan.read("/dev/zero"), "/dev/zero: this is a device, not a file."),
    ],
)
def test_what_can_not_be_meant_is_refused_in_one_sentence(
    call: Callable[[Any, Path], object], sentence: str, file: Path
) -> None:
    with pytest.raises(WrongInput) as error:
        call(planner, file)
    assert str(error.value).startswith(sentence)
