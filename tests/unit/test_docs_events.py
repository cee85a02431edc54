"""The page about operations names every event that a scheduler and an agent write to their logs, and no other."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "gpuyard"
LEVELS = frozenset({"debug", "info", "warning", "error", "exception", "critical"})
GATHERED = "events"
"""Lines that are written together: each has its own name (control_plane/lifecycle_log.py)."""
BOTH = ("cli/service/event_loop.py",)
SCHEDULER = ("live/control_plane", "live/pool", "core/journal", "live/wire/frames.py", *BOTH)
AGENT = ("live/agent", *BOTH)
VOTER = ("live/voting",)


def _files(places: tuple[str, ...]) -> Iterator[Path]:
    for place in places:
        path = SOURCE / place
        yield from [path] if path.is_file() else sorted(path.rglob("*.py"))


def _texts(value: ast.expr) -> set[str]:
    """The texts that an expression can be; it must not be computed, or the name could not be searched for."""
    if isinstance(value, ast.IfExp):
        return _texts(value.body) | _texts(value.orelse)
    assert isinstance(value, ast.Constant), f"an event's name is computed: {ast.unparse(value)}"
    return {str(value.value)}


def _logged(places: tuple[str, ...]) -> set[str]:
    found: set[str] = set()
    for path in _files(places):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            match node:
                case ast.Call(func=ast.Attribute(value=ast.Name(id="log"), attr=level), args=[name, *_]):
                    found |= _texts(name) if level in LEVELS else set()
                case ast.Dict(keys=keys, values=values):
                    for key, value in zip(keys, values, strict=True):
                        if isinstance(key, ast.Constant) and key.value == "event":
                            found |= _texts(value)
    return found - {GATHERED}


def _told(whose: str) -> set[str]:
    """What stands in backticks in the first column of the tables whose head names these events."""
    page = (ROOT / "docs" / "manual" / "operations.md").read_text(encoding="utf-8")
    tables = re.findall(rf"^\| (?:other )?event of {whose} \|.*\n(?:\|.*\n)+", page, flags=re.MULTILINE)
    rows = (line.split("|")[1] for table in tables for line in table.splitlines()[2:])
    return {name for cell in rows for name in re.findall(r"`(\w+)`", cell)}


@pytest.mark.parametrize(("whose", "places"), [("the scheduler", SCHEDULER), ("an agent", AGENT), ("a voter", VOTER)])
def test_every_event_of_the_log_is_in_its_table(whose: str, places: tuple[str, ...]) -> None:
    logged = _logged(places)
    assert "folder_permissions_corrected" in logged
    assert _told(whose) == logged
