"""The manual as a site: every page can be reached and found, and nothing is loaded from another host."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
LOADED = re.compile(r"<(?:script|img|iframe|link)\b[^>]*\b(?:src|href)=\"?(?:https?:)?//[^\s\">]+")
MADE_BY_LINKS = re.compile(r"rel=\"?(?:canonical|next|prev)")


class _Loader(yaml.SafeLoader):
    """Reads mkdocs.yml without the Python objects that its tags name."""


_Loader.add_multi_constructor("tag:yaml.org,2002:python/", lambda _loader, _suffix, _node: None)


def _pages_of(entry: object) -> set[str]:
    """Return the pages below an entry of the navigation."""
    if isinstance(entry, str):
        return {entry}
    assert isinstance(entry, dict | list)
    below = entry.values() if isinstance(entry, dict) else entry
    return {page for each in below for page in _pages_of(each)}


def test_every_page_of_the_documents_is_in_the_navigation() -> None:
    config = yaml.load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"), _Loader)
    listed = _pages_of(config["nav"])
    pages = {path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")}
    records = {page for page in pages if re.match(r"decisions/\d{4}-", page)}  # listed by tools/site_pages.py
    assert sorted(pages - records - listed) == []


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built in strict mode: a broken link or anchor is an error."""
    pytest.importorskip("material")
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def test_every_page_of_the_site_can_be_found_by_search(site: Path) -> None:
    index = json.loads((site / "search" / "search_index.json").read_text(encoding="utf-8"))
    found = {entry["location"].partition("#")[0] for entry in index["docs"]}
    pages = {path.parent.relative_to(site).as_posix() for path in site.rglob("index.html")}
    assert {"" if page == "." else f"{page}/" for page in pages} == found


def test_the_site_loads_nothing_from_another_host(site: Path) -> None:
    loaded = {
        f"{page.relative_to(site)}: {tag}"
        for page in site.rglob("*.html")
        for tag in LOADED.findall(page.read_text(encoding="utf-8"))
        if not MADE_BY_LINKS.search(tag)
    }
    assert loaded == set()
