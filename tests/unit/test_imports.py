"""Pure packages use no clock, no randomness and no I/O. import-linter checks the same in `make check`; this checks it in the tests."""

import ast
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

import gpuyard

PACKAGE = Path(gpuyard.__file__).parent
ROOT = Path(__file__).parents[2]
PURE = (
    "live/control_plane/alerts/rules",
    "core/domain",
    "core/engine",
    "core/placement",
    "core/replication",
    "plan/executor",
    "plan/planner",
)
OUTSIDE = {
    "asyncio", "concurrent", "datetime", "fcntl", "io", "logging", "multiprocessing", "os", "pathlib", "random",
    "secrets", "select", "signal", "socket", "sqlite3", "subprocess", "sys", "tempfile", "threading", "time", "uuid",
}  # fmt: skip
CALLS = {"open", "print", "input", "exec", "eval", "breakpoint", "id", "hash", "__import__"}
"""Built-ins that reach outside, or whose answer differs from process to process."""
ALLOWED = {
    ("core/placement/shape.py", "id"),
    ("plan/planner/compiled/jit.py", "pathlib"),
    ("plan/planner/api.py", "pathlib"),
    ("plan/planner/api.py", "time"),
}
"""`id` tells nodes apart there; it is counted, not ordered by and not kept. `pathlib` sees in `jit` whether sources have
changed since they were compiled. `api` is what people call: it opens files and hands the time in."""


def broken_rules(source: str, name: str) -> list[str]:
    """Violations of purity in a file, one sentence each."""
    tree = ast.parse(source)
    return [*_imports(tree, name), *_calls(tree, name)]


def _imports(tree: ast.Module, name: str) -> Iterator[str]:
    for place in ast.walk(tree):
        modules = [alias.name for alias in place.names] if isinstance(place, ast.Import) else []
        if isinstance(place, ast.ImportFrom):
            modules = [place.module or ""]
        for module in modules:
            if module.split(".")[0] in OUTSIDE and (name, module) not in ALLOWED:
                yield f"{name} imports {module}"


def _calls(tree: ast.Module, name: str) -> Iterator[str]:
    for place in ast.walk(tree):
        if isinstance(place, ast.Call) and isinstance(place.func, ast.Name):
            called = place.func.id
            if called in CALLS and (name, called) not in ALLOWED:
                yield f"{name}:{place.lineno} calls {called}()"


def _files(room: str) -> list[Path]:
    return sorted((PACKAGE / room).rglob("*.py"))


@pytest.mark.parametrize("room", PURE)
def test_a_pure_package_uses_no_clock_no_randomness_and_no_io(room: str) -> None:
    assert _files(room), f"the room {room} is gone: say in PURE what became of it"
    broken = [
        rule
        for file in _files(room)
        for rule in broken_rules(file.read_text(encoding="utf-8"), file.relative_to(PACKAGE).as_posix())
    ]
    assert broken == []


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("import time", "x.py imports time"),
        ("from os.path import join", "x.py imports os.path"),
        ("def f() -> None:\n    import random", "x.py imports random"),
        ("print('hello')", "x.py:1 calls print()"),
        ("text = open('x').read()", "x.py:1 calls open()"),
        ("key = hash('a')", "x.py:1 calls hash()"),
    ],
)
def test_a_broken_rule_is_found_and_named(source: str, said: str) -> None:
    assert broken_rules(source, "x.py") == [said]


def test_pure_computation_is_allowed() -> None:
    source = "from heapq import heappush\nfrom gpuyard.core.domain.values import Value\nheappush([], len('time'))"
    assert broken_rules(source, "x.py") == []


def test_every_package_has_its_place_in_the_layers() -> None:
    rooms = {f"gpuyard.{name}" for name in ("cli", "input", "simulator", "system", "testing")}
    for building in ("core", "learn", "live", "plan"):
        rooms |= {
            f"gpuyard.{building}.{path.stem}"
            for path in (PACKAGE / building).iterdir()
            if path.name != "__init__.py" and (path.suffix == ".py" or (path / "__init__.py").exists())
        }
    assert {path.name for path in PACKAGE.iterdir() if (path / "__init__.py").exists()} == {
        room.split(".")[1] for room in rooms
    }, "a new building says here and in the layers where it stands"
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    layers = next(contract["layers"] for contract in contracts if contract["type"] == "layers")
    assert {room for layer in layers for room in layer.split(" | ")} == rooms
