"""The generated parts of the manual: complete, and what the repository holds is what the code says now."""

from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from typer.main import get_command

from gpuyard.cli import app
from gpuyard.core.domain.events import EVENTS, name_of
from gpuyard.core.domain.refusals import REFUSALS
from gpuyard.core.domain.settings import Backfill, Settings
from gpuyard.core.engine.phases import TRANSITIONS
from gpuyard.core.engine.policies import POLICIES
from tools.manual.drawing import drawing
from tools.manual.pages import all_events, all_settings, pages, policies, refusals_and_errors, task_states
from tools.manual.source import fields

MANUAL = Path(__file__).parents[3] / "docs" / "manual"
SVG = "{http://www.w3.org/2000/svg}"


@pytest.mark.parametrize("name", sorted(pages()))
def test_the_manual_matches_the_code(name: str) -> None:
    page = MANUAL / name
    written = page.read_text(encoding="utf-8") if page.exists() else ""

    assert written == pages()[name], f"docs/manual/{name} is not what the code says now; run `make docs`."


def test_the_drawing_shows_every_phase() -> None:
    drawn = {group.get("data-phase") for group in ElementTree.fromstring(drawing()).iter(f"{SVG}g")}

    assert {phase.__name__ for source, _ in TRANSITIONS for phase in (source, TRANSITIONS[source, _])} <= drawn


def test_the_drawing_shows_every_transition_and_no_other() -> None:
    drawn = [
        (source, group.get("data-event"), group.get("data-to"))
        for group in ElementTree.fromstring(drawing()).iter(f"{SVG}g")
        if group.get("class") == "transition"
        for source in (group.get("data-from") or "").split()
    ]

    table = [(source.__name__, event.__name__, target.__name__) for (source, event), target in TRANSITIONS.items()]
    assert sorted(drawn, key=str) == sorted(table)


def test_every_arrow_of_the_drawing_carries_the_name_of_its_event() -> None:
    for group in ElementTree.fromstring(drawing()).iter(f"{SVG}g"):
        if group.get("class") == "transition":
            assert [text.text for text in group.iter(f"{SVG}text")] == [group.get("data-event")]


def test_every_transition_is_in_the_table_of_states() -> None:
    page = task_states()
    for (source, event), target in TRANSITIONS.items():
        assert f"| `{source.__name__}` | `{event.__name__}` | `{target.__name__}` |" in page


def test_every_event_refusal_policy_and_setting_stands_in_the_manual() -> None:
    for page, names in (
        (all_events(), [name_of(event) for event in EVENTS]),
        (refusals_and_errors(), [refusal.__name__ for refusal in REFUSALS]),
        (policies(), list(POLICIES)),
        (all_settings(), list(Settings.__struct_fields__)),
    ):
        assert [name for name in names if f"`{name}`" not in page] == []


def test_a_field_is_read_with_its_default_and_its_docstring() -> None:
    (reservations,) = [field for field in fields(Settings) if field.name == "reservations"]

    words = "The number of tasks that have reservations under `conservative`."
    assert (reservations.kind, reservations.doc) == ("int", words)
    assert {field.name for field in fields(Backfill)} == set(Backfill.__members__)


def test_every_command_and_option_is_in_the_pages_about_the_command_line() -> None:
    page = "".join((MANUAL / name).read_text(encoding="utf-8") for name in ("command_line.md", "commands.md"))
    names: list[str] = []
    open_commands: list[tuple[str, Any]] = [("gpuyard", get_command(app))]
    for path, verb in open_commands:
        names += [path, *(option for parameter in verb.params for option in parameter.opts if option[0] == "-")]
        open_commands += [(f"{path} {name}", below) for name, below in getattr(verb, "commands", {}).items()]

    assert [name for name in names if name not in page] == []


def test_the_pages_of_policies_and_settings_name_the_key_of_the_file() -> None:
    assert "`scheduler.algorithm`" in policies()
    assert "`scheduler.algorithm`" in all_settings()
