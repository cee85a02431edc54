"""The pages about REST, tasks and access name every address, parameter, field and right that there is, and no other."""

import ast
import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

from msgspec.structs import fields

from gpuyard.live.control_plane.access.principal import ROLE_SCOPES
from gpuyard.live.control_plane.rest.routes import ROUTES
from gpuyard.live.wire.tasks import RESERVED_VARIABLES, TaskRequest

MANUAL = Path(__file__).parents[2] / "docs" / "manual"
SOURCE = Path(__file__).parents[2] / "src" / "gpuyard"
ROW = re.compile(r"^\| (GET|POST|PUT|PATCH|DELETE) \| `([^`]+)` \| (\S+) \|", re.MULTILINE)

MAKE_ERRORS = {"WrongRequest", "Denied", "Unavailable", "_denied", "_turn_away", "_wrong", "error"}
CODE = re.compile(r"(?:[A-Z][a-z]+)+")


def _page(name: str) -> str:
    return (MANUAL / name).read_text(encoding="utf-8")


def test_the_documented_routes_are_the_existing_routes() -> None:
    told = ROW.findall(_page("rest_api.md"))
    there = [(route.method, route.path, route.action.value if route.action else "–") for route in ROUTES]
    assert sorted(told) == sorted(there)


def test_every_table_of_routes_has_a_head() -> None:
    lines = _page("rest_api.md").splitlines()
    for before, line in pairwise(lines):
        assert before.startswith("|") or not ROW.match(line), f"no head above: {line}"


def test_every_code_of_an_error_is_in_the_page() -> None:
    told = set(re.findall(r"`(\w+)`", _page("rest_api.md")))
    there = {code for folder in ("live/control_plane", "live/wire", "input") for code in _codes_in(SOURCE / folder)}
    assert len(there) > 60, "the functions that make errors have other names now"
    assert there - told == {"WrongNode"}, "which is an answer to agents"


def _codes_in(folder: Path) -> Iterator[str]:
    """Yield the codes in calls of the functions that make errors of the API."""
    for file in folder.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in MAKE_ERRORS:
                for given in node.args[:2]:  # a status may come first
                    if isinstance(given, ast.Constant) and isinstance(given.value, str) and CODE.fullmatch(given.value):
                        yield given.value


def test_every_query_parameter_is_in_the_page() -> None:
    page = _page("rest_api.md")
    named = set(re.findall(r"`(\w+)(?:=[^`]*)?`", page))
    assert {parameter.name for route in ROUTES for parameter in route.query} <= named


def test_every_field_of_a_task_is_in_the_table_of_the_request() -> None:
    table = _page("tasks.md").split("## The request")[1].split("### How many GPUs")[0]
    first_cells = " ".join(line.split("|")[1] for line in table.splitlines() if line.startswith("|"))
    told = set(re.findall(r"`(\w+)`", first_cells))
    assert told == {field.encode_name for field in fields(TaskRequest)}


def test_every_reserved_variable_is_in_the_page() -> None:
    assert set(re.findall(r"`(\w+)`", _page("tasks.md"))) >= RESERVED_VARIABLES


def test_the_documented_roles_are_the_effective_ones() -> None:
    rows = re.findall(r"^\| `(\w+)` \| [^|]+ \| (\w+) \| (\w+) \| (\w+) \| (\w+) \|$", _page("access.md"), re.MULTILINE)
    told = {right: reaches for right, *reaches in rows}
    there = {action.value: [reach.value for reach in of_roles.values()] for action, of_roles in ROLE_SCOPES.items()}
    assert told == there
