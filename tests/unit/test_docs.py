"""What the documents promise: examples run as pasted, links lead somewhere, both READMEs tell the same commands."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
READMES = ("README.md", "README.zh-CN.md")
RUNNABLE = (*READMES, "docs/howto/write_a_story.md", "docs/manual/explain.md")
"""Documents whose Python blocks are whole programs."""

FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#+ +(.+)$", re.MULTILINE)
ELSEWHERE = ("http://", "https://", "mailto:")
HIDDEN = {"build", "dist", "node_modules"}


def _pages() -> list[Path]:
    found = (page.relative_to(ROOT) for page in ROOT.rglob("*.md"))
    return sorted(
        page for page in found if not any(part.startswith(".") or part in HIDDEN for part in page.parts)
    )


def _blocks(page: str, language: str) -> list[str]:
    """The code blocks of a page in one language."""
    text = (ROOT / page).read_text(encoding="utf-8")
    return [body for named, body in FENCE.findall(text) if named == language]


def _anchors(page: Path) -> set[str]:
    """The names under which the headings of a page can be linked to."""
    text = FENCE.sub("", page.read_text(encoding="utf-8"))
    plain = (re.sub(r"[`*]|\]\([^)]*\)|\[", "", heading) for heading in HEADING.findall(text))
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in plain}


@pytest.mark.parametrize("page", RUNNABLE)
def test_every_python_example_runs_as_pasted(page: str) -> None:
    examples = _blocks(page, "python")
    assert examples, f"{page} has no Python example any more"
    for example in examples:
        done = subprocess.run([sys.executable, "-W", "error", "-c", example], capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, f"an example of {page} fails:\n{example}\n{done.stderr}"
        said = [line.split("# ", 1)[1] for line in example.splitlines() if line.startswith("print(") and "  # " in line]
        assert done.stdout.splitlines()[: len(said)] == said, f"an example of {page} prints something else"


@pytest.mark.parametrize("page", _pages(), ids=str)
def test_every_relative_link_leads_somewhere(page: Path) -> None:
    text = FENCE.sub("", (ROOT / page).read_text(encoding="utf-8"))
    for link in LINK.findall(text):
        if link.startswith(ELSEWHERE):
            continue
        path, _, anchor = link.partition("#")
        target = (ROOT / page).parent / path if path else ROOT / page
        assert target.exists(), f"{page} links to {link}, which does not exist"
        if anchor:
            assert anchor in _anchors(target), f"{page} links to {link}, which has no such heading"


@pytest.mark.parametrize("language", ["sh", "python", "text"])
def test_both_readmes_show_the_same_code(language: str) -> None:
    english, chinese = (_blocks(page, language) for page in READMES)
    assert _without_comments(english) == _without_comments(chinese)


def _without_comments(blocks: list[str]) -> list[str]:
    """Code alone: comments are in the reader's language."""
    return [re.sub(r"^\s*#.*\n", "", block, flags=re.MULTILINE) for block in blocks]


def test_the_readme_is_short_enough_to_be_read() -> None:
    for page in READMES:
        assert len((ROOT / page).read_text(encoding="utf-8").splitlines()) < 120


def test_every_page_of_the_manual_stands_in_its_index() -> None:
    folder = ROOT / "docs" / "manual"
    listed = set(LINK.findall((folder / "README.md").read_text(encoding="utf-8")))
    assert {page.name for page in folder.glob("*.md")} - {"README.md"} <= listed


def test_every_decision_stands_in_the_list_of_decisions() -> None:
    folder = ROOT / "docs" / "decisions"
    listed = set(LINK.findall((folder / "README.md").read_text(encoding="utf-8")))
    assert {page.name for page in folder.glob("0*.md")} <= listed
