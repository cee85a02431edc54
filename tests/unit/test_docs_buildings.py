"""Each building has a README, and the files that it names exist."""

import re
from pathlib import Path

import pytest

import gpuyard

PACKAGE = Path(gpuyard.__file__).parent
ROOT = Path(__file__).parents[2]
BUILDINGS = sorted(path.parent.name for path in PACKAGE.glob("*/__init__.py"))
PATH = re.compile(r"`([\w/]+(?:/|\.(?:py|csv|proto|md)))`")


@pytest.mark.parametrize("building", BUILDINGS)
def test_every_file_that_a_readme_names_exists(building: str) -> None:
    gone = []
    for line in (PACKAGE / building / "README.md").read_text(encoding="utf-8").splitlines():
        named = PATH.findall(line)
        room = PACKAGE / building / (named[0] if named and line.startswith("| `") else "")  # a row is about a package
        places = (room, PACKAGE / building, PACKAGE, ROOT)
        gone += [name for name in named if not any((place / name).exists() for place in places)]
    assert gone == []


@pytest.mark.parametrize("building", ["core", "learn", "live", "plan"])
def test_every_package_of_a_building_is_in_its_readme(building: str) -> None:
    text = (PACKAGE / building / "README.md").read_text(encoding="utf-8")
    rooms = [f"`{path.parent.name}/`" for path in (PACKAGE / building).glob("*/__init__.py")]
    assert [room for room in rooms if room not in text] == []


@pytest.mark.parametrize("building", ["core", "learn", "live", "plan", "simulator"])
def test_a_readme_has_a_drawing_a_reading_order_and_how_to_add_things(building: str) -> None:
    text = (PACKAGE / building / "README.md").read_text(encoding="utf-8")
    assert "```" in text
    assert "## To add" in text
    assert "## Reading order" in text or "## Where a task goes" in text
