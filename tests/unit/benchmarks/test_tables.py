"""The tables of the documentation are those that their results give."""

import json
import re
from pathlib import Path

import pytest

from benchmarks import tables
from benchmarks.common.results import RESULTS, about, write_result
from benchmarks.tables import ROOT, TABLES, WrongTable, pages, render, source, with_tables

RESULT_FILES = sorted(RESULTS.glob("*.json"))


@pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_a_page_has_the_tables_of_its_results(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert with_tables(text, page.name) == text, "run: make tables"


def test_every_table_is_in_a_page() -> None:
    text = "".join(page.read_text(encoding="utf-8") for page in pages())
    assert [name for name in TABLES if f"<!-- table {name} -->" not in text] == []


@pytest.mark.parametrize("file", RESULT_FILES, ids=lambda file: file.stem)
def test_a_result_says_how_it_was_measured(file: Path) -> None:
    made = json.loads(file.read_text(encoding="utf-8"))["about"]
    assert {"commit", "date", "command", "seeds"} <= set(made)
    assert "/root" not in file.read_text(encoding="utf-8")


def test_a_table_changes_with_its_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = "# Title\n\n<!-- table gpu_models -->\nold\n<!-- end table -->\n\nText.\n"
    before = with_tables(page, "page.md")
    result = json.loads((RESULTS / "gpu_models.json").read_text(encoding="utf-8"))
    result["rows"]["default, blind"]["avg_jct_h"] = 1234.5
    write_result("gpu_models", result["about"], result["rows"], tmp_path)
    monkeypatch.setattr(tables, "RESULTS", tmp_path)
    monkeypatch.setattr(tables, "read_result", lambda name: json.loads((tmp_path / f"{name}.json").read_text()))
    after = with_tables(before, "page.md")
    assert "1234.50" in after
    assert "1234.50" not in before
    assert after.startswith("# Title\n\n<!-- table gpu_models -->\n| ")
    assert after.endswith("</sub>\n<!-- end table -->\n\nText.\n")


def test_a_table_that_can_not_be_made_is_named_with_its_page() -> None:
    with pytest.raises(
        WrongTable, match=r"page\.md: there is no table lost in benchmarks/tables\.py; it has published_venus"
    ):
        with_tables("<!-- table lost -->\n<!-- end table -->\n", "page.md")
    with pytest.raises(WrongTable, match="a table has no <!-- end table -->"):
        with_tables("<!-- table gpu_models -->\n| |\n", "page.md")


def test_the_source_of_a_table_names_command_commit_date_and_seeds() -> None:
    made = {"command": "benchmarks/x.py", "commit": "abc", "date": "2026-11-17", "seeds": [3, 4, 5]}
    assert source(made) == "<sub>`benchmarks/x.py`, commit abc, 2026-11-17, seeds 3 to 5.</sub>"
    assert source({**made, "seeds": [0]}).endswith("2026-11-17, seed 0.</sub>")


def test_a_result_is_written_with_the_commit_it_was_made_at(tmp_path: Path) -> None:
    path = write_result("one", about("benchmarks/one.py", [1], preemptible=0.5), {"a": 1}, tmp_path)
    written = json.loads(path.read_text())
    assert written["rows"] == {"a": 1}
    assert written["about"]["settings"] == {"preemptible": 0.5}
    assert written["about"]["commit"]


@pytest.mark.parametrize("name", TABLES)
def test_every_table_can_be_made(name: str) -> None:
    tables = re.findall(r"(?:^\|.*\n)+", render(name), re.MULTILINE)
    assert tables
    for table in tables:
        assert len({line.count("|") for line in table.splitlines()}) == 1
        assert len(table.splitlines()) > 2
