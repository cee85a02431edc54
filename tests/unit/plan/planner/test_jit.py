"""What is kept of a compiled function is what its sources say now."""

import os
import subprocess
import sys
from pathlib import Path

CALLER = """
from gpuyard.plan.planner.compiled.jit import compiled
from callee import two

@compiled
def one():
    return two()
"""
CALLEE = """
from gpuyard.plan.planner.compiled.jit import borrowing

@borrowing
def two():
    return {number}
"""


def said_in(folder: Path) -> str:
    """What the caller says in a process of its own."""
    call = [sys.executable, "-c", "import caller; print(caller.one())"]
    return subprocess.run(
        call, cwd=folder, env={**os.environ, "PYTHONPATH": "."}, capture_output=True, text=True, check=True
    ).stdout


def test_a_function_is_compiled_anew_when_another_file_that_it_calls_has_changed(tmp_path: Path) -> None:
    (tmp_path / "caller.py").write_text(CALLER)
    for number in (2, 33):
        (tmp_path / "callee.py").write_text(CALLEE.format(number=number))
        assert said_in(tmp_path) == f"{number}\n"
    assert list(tmp_path.glob("__pycache__/caller.one*.nbc")) != []
