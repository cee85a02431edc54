"""The cache of compiled functions follows their sources."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

CALLER = """
from gpuyard.plan.planner.compiled.jit import compiled
from callee import two

@compiled
def one():
    return two()
"""
CALLEE = """
from gpuyard.plan.planner.compiled.jit import njit_noref

@njit_noref
def two():
    return {number}
"""


def said_in(folder: Path) -> str:
    """What the caller says in a process of its own."""
    call = [sys.executable, "-c", "import caller; print(caller.one())"]
    return subprocess.run(
        call, cwd=folder, env={**os.environ, "PYTHONPATH": "."}, capture_output=True, text=True, check=True
    ).stdout


@pytest.mark.slow
def test_a_function_is_recompiled_when_another_file_that_it_calls_has_changed(tmp_path: Path) -> None:
    (tmp_path / "caller.py").write_text(CALLER)
    for number in (2, 33):
        (tmp_path / "callee.py").write_text(CALLEE.format(number=number))
        assert said_in(tmp_path) == f"{number}\n"
    assert list(tmp_path.glob("__pycache__/caller.one*.nbc")) != []


SHAPED = """
import numpy as np
from gpuyard.plan.planner.compiled.jit import compiled
from {module} import Shape

@compiled
def width(shape):
    return shape.width

def one():
    return width(Shape(7))
"""


def test_cache_entries_of_another_version_with_removed_types_are_recompiled(tmp_path: Path) -> None:
    for module in ("shapes", "forms"):
        (tmp_path / f"{module}.py").write_text(
            "from typing import NamedTuple\nclass Shape(NamedTuple):\n    width: int\n"
        )
        (tmp_path / "caller.py").write_text(SHAPED.format(module=module))
        assert said_in(tmp_path) == "7\n"
        (tmp_path / f"{module}.py").unlink()
