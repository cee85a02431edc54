"""The page about configuration has every key of both files, of a tenant and of a user, and every algorithm."""

import ast
import inspect
import re
from collections.abc import Iterable
from pathlib import Path

import pytest
from msgspec.structs import fields

from gpuyard.core.engine.policies import POLICIES
from gpuyard.live.agent.settings import LEAST_SECONDS as LEAST_OF_AGENT
from gpuyard.live.agent.settings import AgentSettings
from gpuyard.live.control_plane.settings import ALGORITHMS, ServerSettings, TenantEntry, UserEntry, engine_settings_of
from gpuyard.live.control_plane.settings import LEAST_SECONDS as LEAST_OF_SCHEDULER
from gpuyard.live.wire.config import Duration, keys_of
from tools.manual.pages import KEYS

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "manual" / "configuration.md"
CONFIG = ROOT / "configs" / "scheduler.yaml"


def _section(heading: str) -> str:
    """From a heading to the next of the same depth or above."""
    depth = len(heading.split(" ", maxsplit=1)[0])
    text = PAGE.read_text(encoding="utf-8")
    return re.split(rf"^#{{1,{depth}}} ", text.split(f"\n{heading}\n")[1], maxsplit=1, flags=re.MULTILINE)[0]


def _first_cells(lines: Iterable[str]) -> set[str]:
    """What stands in backticks in the first column of the tables."""
    rows = (line.split("|")[1] for line in lines if line.startswith("|"))
    return {name for cell in rows for name in re.findall(r"`([^`]+)`", cell)}


@pytest.mark.parametrize(("heading", "type_"), [("## The scheduler", ServerSettings), ("## The agent", AgentSettings)])
def test_every_key_of_a_file_is_in_its_table(heading: str, type_: type) -> None:
    keys = {".".join(keys) for keys in keys_of(type_)}
    told = _first_cells(_section(heading).split("\n### ")[0].splitlines())
    assert told == keys


def _default_of(settings: object, key: str) -> object:
    for part in key.split("."):
        name = next(field.name for field in fields(settings) if field.encode_name == part)  # type: ignore[arg-type]
        settings = getattr(settings, name)
    return settings


def _is_same(told: str, default: object) -> bool:
    if isinstance(default, bool):
        return told == str(default).lower()
    if isinstance(default, int | float):
        told = told.replace(" (hours)", "h")
        return float(told if told.isdigit() else Duration.read(told)) == float(default)
    return told == f"`{default}`"


@pytest.mark.parametrize(("heading", "type_"), [("## The scheduler", ServerSettings), ("## The agent", AgentSettings)])
def test_defaults_are_those_of_the_code(heading: str, type_: type) -> None:
    """As far as they are values: what stands for an empty one, or is decided later, is told in words."""
    rows = [
        line.split("|")[1:3] for line in _section(heading).split("\n### ")[0].splitlines() if line.startswith("| `")
    ]
    compared, wrong = 0, []
    for first, second in rows:
        keys, told = re.findall(r"`([^`]+)`", first), [each.strip() for each in second.split(",")]
        for key, text in zip(keys, told if len(told) == len(keys) else told * len(keys), strict=False):
            default = _default_of(type_(), key)
            if default not in (None, "", [], {}) and not key.startswith("executor.docker."):
                compared += 1
                wrong += [] if _is_same(text, default) else [f"{key}: {text} in the page, {default} in the code"]
    assert compared > 10
    assert wrong == []


def test_every_key_of_a_tenant_and_a_user_is_in_the_page() -> None:
    tenant = _first_cells(_section("### Tenants").splitlines())
    assert tenant == {field.encode_name for field in fields(TenantEntry)}
    row = next(line for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("| `users` |"))
    assert {field.encode_name for field in fields(UserEntry)} <= set(re.findall(r"`(\w+)`", row))


def test_the_table_of_algorithms_names_exactly_the_existing_ones() -> None:
    named = _first_cells(_section("### Algorithms").splitlines()) - {"scheduler.algorithm"}
    assert named == set(ALGORITHMS)
    assert "(policies.md)" in _section("### Algorithms")


def test_the_comment_in_the_shipped_file_names_every_algorithm() -> None:
    lines = CONFIG.read_text(encoding="utf-8").splitlines()
    place = lines.index("  algorithm: default")
    policies, names = lines[place - 2 : place]
    assert set(re.findall(r"\w+", policies.split(":")[1])) == set(POLICIES)
    assert ALGORITHMS.keys() - POLICIES.keys() <= set(re.findall(r"\w+", names))


def test_every_setting_of_the_engine_that_the_file_can_set_has_its_key() -> None:
    source = ast.parse(inspect.getsource(engine_settings_of))
    calls = (
        node for node in ast.walk(source) if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "replace"
    )
    set_by_keys = {
        word.arg for call in calls for word in call.keywords if not isinstance(word.value, ast.Name)
    }  # a plain name is a constant
    assert set(KEYS) == {*set_by_keys, "policy"}
    assert set(KEYS.values()) <= {".".join(keys) for keys in keys_of(ServerSettings)}


def test_the_minimum_of_every_duration_is_documented_once() -> None:
    scheduler, agent = _section("### Least values of durations").split("| least | agent's file |")
    for text, least in ((scheduler, LEAST_OF_SCHEDULER), (agent, LEAST_OF_AGENT)):
        told = [
            (key, float(row[1]) * (0.001 if row[2] == "ms" else 1.0))
            for row in re.finditer(r"^\| (\d+) (ms|s) \| (.*) \|$", text, re.MULTILINE)
            for key in re.findall(r"`(\w+\.\w+)`", row[3])
        ]
        assert sorted(told) == sorted(least.items())
