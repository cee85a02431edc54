"""Tests wait for an event, not for a time: see `until`, `settled` and `silent_for` of the helpers.

A fixed sleep is too short on a busy machine and too long on any other. Allowed without a reason are `sleep(0)`, which
gives way to others, and short sleeps in a `while` loop, which asks again and again. Everything else is listed here.
"""

import ast
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
POLL_SECONDS = 0.1
"""A poll that sleeps for longer than this makes every test that uses it slow."""

VIRTUAL = "simulation/faults/"
"""The event loop of these scenarios has a virtual clock: no real time passes while they sleep."""
ALLOWED: dict[str, tuple[int, str]] = {
    "acceptance/soak.py": (6, "faults of a soak are spread over real time; it is run by hand, not by the tests"),
    "acceptance/test_functions.py": (1, "the function that runs on the cluster takes as long as its argument says"),
    "acceptance/test_nodes.py": (1, "more time has to pass in suspension than the time limit of the task allows"),
    "unit/live/agent/test_supervisor_faults.py": (3, "faults come at random instants, drawn from a seed"),
    "unit/live/agent/test_exit_recorder.py": (
        1,
        "kills come at instants that differ, so that they meet tasks in every phase",
    ),
}
"""File: how many sleeps, and why they cannot be replaced by waiting for something."""


def sleeps_in(tree: ast.AST, *, polls: bool = False) -> Iterator[ast.Call]:
    """Calls of sleep that wait for a fixed time."""
    for child in ast.iter_child_nodes(tree):
        if isinstance(child, ast.Call) and _is_sleep(child) and not _is_allowed(child, polls=polls):
            yield child
        inside = polls or isinstance(child, ast.While)
        yield from sleeps_in(child, polls=inside and not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef))


def _is_sleep(call: ast.Call) -> bool:
    name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    return name == "sleep"


def _is_allowed(call: ast.Call, *, polls: bool) -> bool:
    seconds = call.args[0] if call.args else None
    if not isinstance(seconds, ast.Constant) or not isinstance(seconds.value, int | float):
        return False
    return seconds.value == 0 or (polls and seconds.value <= POLL_SECONDS)


def test_no_test_sleeps_for_a_fixed_time_without_a_reason() -> None:
    found: Counter[str] = Counter()
    places: dict[str, list[int]] = {}
    for path in sorted(TESTS.rglob("*.py")):
        name = path.relative_to(TESTS).as_posix()
        if name.startswith(VIRTUAL):
            continue
        for call in sleeps_in(ast.parse(path.read_text(encoding="utf-8"))):
            found[name] += 1
            places.setdefault(name, []).append(call.lineno)
    wrong = {name: places.get(name, []) for name in found | ALLOWED if found[name] != ALLOWED.get(name, (0, ""))[0]}
    assert not wrong, f"fixed sleeps, by line, in another number than is allowed: {wrong}"


@pytest.mark.parametrize(
    ("program", "count"),
    [
        ("time.sleep(1)", 1),
        ("await asyncio.sleep(0.01)", 1),
        ("sleep(seconds)", 1),
        ("for _ in range(9): time.sleep(0.01)", 1),
        ("while waits(): time.sleep(0.01)", 0),
        ("while waits(): time.sleep(5)", 1),
        ("while True:\n def f(): time.sleep(0.01)", 1),
        ("await asyncio.sleep(0)", 0),
        ("start('import time; time.sleep(600)')", 0),
    ],
)
def test_this_test_finds_fixed_sleeps_and_leaves_polls_alone(program: str, count: int) -> None:
    assert len(list(sleeps_in(ast.parse(program)))) == count
