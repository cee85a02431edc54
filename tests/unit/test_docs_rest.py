"""The pages about REST, tasks and access name every address, parameter, field and right that there is, and no other."""

import re
from pathlib import Path

from msgspec.structs import fields

from gpuyard.live.control_plane.access.principal import ROLE_SCOPES
from gpuyard.live.control_plane.rest.routes import ROUTES
from gpuyard.live.wire.tasks import RESERVED_VARIABLES, TaskRequest

MANUAL = Path(__file__).parents[2] / "docs" / "manual"
ROW = re.compile(r"^\| (GET|POST|PUT|PATCH|DELETE) \| `([^`]+)` \| (\S+) \|", re.MULTILINE)


def _page(name: str) -> str:
    return (MANUAL / name).read_text(encoding="utf-8")


def test_the_documented_routes_are_the_existing_routes() -> None:
    told = ROW.findall(_page("rest_api.md"))
    there = [(route.method, route.path, route.action.value if route.action else "–") for route in ROUTES]
    assert sorted(told) == sorted(there)


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
