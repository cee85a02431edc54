"""News fragments: every file of changes/ has a known area and kind, and is short."""

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "changes"
CONFIG = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["towncrier"]
AREAS = {section["path"]: section["name"] for section in CONFIG["section"]}
KINDS = {kind["directory"]: kind["name"] for kind in CONFIG["type"]}
NAME = re.compile(rf"[a-z0-9_]+\.({'|'.join(KINDS)})\.md")
FRAGMENTS = sorted(path.relative_to(FOLDER) for path in FOLDER.glob("*/*"))
LONGEST_LINE = 140


def test_every_fragment_is_in_the_folder_of_a_known_area_and_names_its_kind() -> None:
    beside = {path.name for path in FOLDER.iterdir() if path.is_file()}
    assert beside == {"README.md", "template.jinja"}
    assert [str(path) for path in FRAGMENTS if path.parent.name not in AREAS or not NAME.fullmatch(path.name)] == []


@pytest.mark.parametrize("fragment", FRAGMENTS, ids=str)
def test_a_fragment_is_one_or_two_short_lines(fragment: Path) -> None:
    lines = (FOLDER / fragment).read_text(encoding="utf-8").splitlines()
    assert len(lines) in {1, 2}
    assert all(line.strip() == line and 0 < len(line) <= LONGEST_LINE for line in lines)


def test_areas_and_kinds_are_the_headings_of_the_changelog() -> None:
    newest = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8").split("\n## ")[1]
    assert re.findall(r"^### (.+)$", newest, re.MULTILINE) == [name for name in AREAS.values() if name in newest]
    assert set(re.findall(r"^(\w+)$", newest, re.MULTILINE)) <= set(KINDS.values())


def test_the_readme_of_the_fragments_names_every_area_and_kind() -> None:
    page = (FOLDER / "README.md").read_text(encoding="utf-8")
    assert [name for name in (*AREAS, *KINDS) if f"`{name}`" not in page] == []
