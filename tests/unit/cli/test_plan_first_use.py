"""The first plan on a machine does not wait for the compiler."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpuyard.cli.plan import first_use
from gpuyard.plan.planner import code_mode
from gpuyard.plan.planner.strategies import SearchBudget, strategy
from tests.unit.plan.planner.small_problems import drawn

JIT = "gpuyard.plan.planner.compiled.jit"
PLAN = """
from gpuyard.plan.planner import code_mode
code_mode.plain = True
from gpuyard.plan.planner.strategies import SearchBudget, strategy
from tests.unit.plan.planner.small_problems import drawn
from dataclasses import replace
import sys
asked = replace(drawn(sys.argv[2], 20, 3), preload=sys.argv[2] == "agentic")
plan = strategy(sys.argv[1])(asked, SearchBudget(7, 20))
assert "numba" not in sys.modules
print(plan.gpu.tolist(), plan.start.tolist())
"""


@pytest.mark.parametrize(
    ("name", "family"),
    [
        ("batch", "switch_heavy"),
        ("dynamic", "agentic"),
        ("heft_affinity", "switch_heavy"),
        ("search", "agentic"),
    ],
)
def test_plain_python_makes_the_same_plan_as_compiled_code(name: str, family: str) -> None:
    """GPUs preload in one of the problems."""
    said = subprocess.run(
        [sys.executable, "-c", PLAN, name, family],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    plan = strategy(name)(replace(drawn(family, 20, 3), preload=family == "agentic"), SearchBudget(7, 20))
    assert said == f"{plan.gpu.tolist()} {plan.start.tolist()}\n"


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[Any]:
    """A machine on which nothing was compiled; the list of the processes that were started."""
    processes: list[Any] = []
    monkeypatch.setattr(code_mode, "plain", False)
    monkeypatch.delenv(first_use.SWITCH)
    monkeypatch.delitem(sys.modules, JIT)
    monkeypatch.setattr(first_use, "marker", lambda: tmp_path / "compiled")
    monkeypatch.setattr(subprocess, "Popen", lambda *command, **how: processes.append((command, how)))
    return processes


def test_a_small_problem_is_planned_without_compiled_code_while_another_process_compiles(
    started: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    first_use.choose_code(drawn("chain", 20, 2), None)
    assert code_mode.plain
    assert started[0][0][0][-1] == "gpuyard.cli.plan.first_use"
    assert "being compiled in the background" in capsys.readouterr().err


def test_large_problems_rounds_and_machines_with_compiled_code_use_it(started: list[Any], tmp_path: Path) -> None:
    first_use.choose_code(drawn("chain", first_use.MOST_CALLS + 10, 2), None)
    first_use.choose_code(drawn("chain", 20, 2), 5)
    (tmp_path / "compiled").touch()
    first_use.choose_code(drawn("chain", 20, 2), None)
    assert (started, code_mode.plain) == ([], False)


def test_the_environment_decides_if_it_says_anything(started: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    for said, plain in (("1", True), ("0", False)):
        monkeypatch.setenv(first_use.SWITCH, said)
        first_use.choose_code(drawn("chain", 20, 2), None)
        assert (started, code_mode.plain) == ([], plain)


FROM_PYTHON = """
from gpuyard.plan.planner.strategies import SearchBudget, strategy
from tests.unit.plan.planner.small_problems import drawn
plan = strategy("heft_affinity")(drawn("chain", 20, 3), SearchBudget(7, 20))
from gpuyard.plan.planner.compiled.jit import INTERPRETED
print(INTERPRETED, plan.makespan_s)
"""


def test_a_plan_from_python_follows_the_environment_too() -> None:
    root = Path(__file__).parents[3]
    switched = {**os.environ, "PYTHONPATH": f"{root}{os.pathsep}{root / 'src'}", first_use.SWITCH: "1"}
    said = subprocess.run([sys.executable, "-c", FROM_PYTHON], env=switched, capture_output=True, text=True, check=True)
    assert said.stdout == f"True {strategy('heft_affinity')(drawn('chain', 20, 3), SearchBudget(7, 20)).makespan_s}\n"


def test_the_marker_belongs_to_the_sources_and_the_interpreter() -> None:
    assert first_use.marker() == first_use.marker()
    assert first_use.marker().name.startswith("compiled-")
