"""`gpuyard plan`: pictures of plans."""

import json
from pathlib import Path

import pytest

from tests.unit.cli.test_cli_plan import Plan, Said, chain, plan

__all__ = ["chain", "plan"]


def test_a_plan_is_drawn_as_a_page_or_as_a_figure(plan: Plan, chain: Path, tmp_path: Path) -> None:
    for name, begins in (("a.html", b"<!doctype html>"), ("a.png", b"\x89PNG"), ("a.svg", b"<?xml")):
        assert plan("solve", chain, "--strategy", "batch", "--gantt", tmp_path / name) == 0
        assert (tmp_path / name).read_bytes().startswith(begins)


def test_existing_plans_are_drawn_below_each_other(plan: Plan, chain: Path, tmp_path: Path, capsys: Said) -> None:
    for name in ("batch", "dynamic"):
        plan("solve", chain, "--strategy", name, "--out", tmp_path / f"{name}.json")
    capsys.readouterr()
    out = tmp_path / "both.html"
    assert plan("draw", chain, tmp_path / "batch.json", tmp_path / "dynamic.json", "--out", out) == 0
    assert capsys.readouterr().out == f"{out} shows batch.json and dynamic.json.\n"
    assert "dynamic.json: " in out.read_text()


def test_a_partly_executed_plan_is_drawn(plan: Plan, chain: Path, tmp_path: Path) -> None:
    actual, out = tmp_path / "actual.json", tmp_path / "a.html"
    plan("solve", chain, "--strategy", "batch", "--out", actual)
    said = json.loads(actual.read_text())
    said["tasks"] = [task for task in said["tasks"] if task["request"] != "r1"]
    actual.write_text(json.dumps(said))
    assert plan("draw", chain, actual, "--out", out) == 0
    drawn = json.loads(out.read_text().split('type="application/json">')[1].split("</script>")[0])
    assert sum(drawn["panels"][0]["calls"]) == len(said["tasks"])


@pytest.mark.parametrize("verb", ["solve", "draw"])
def test_an_unknown_picture_format_is_refused_before_anything_is_done(
    plan: Plan, chain: Path, tmp_path: Path, capsys: Said, verb: str
) -> None:
    out = tmp_path / "a.gif"
    words = ("solve", chain, "--gantt", out) if verb == "solve" else ("draw", chain, tmp_path / "no.json", "--out", out)
    assert plan(*words) == 2
    assert capsys.readouterr().err == f"gpuyard: {out}: the name of the picture must end in .html, .png or .svg.\n"
    assert not out.exists()


def test_compared_strategies_are_drawn_below_each_other(plan: Plan, chain: Path, tmp_path: Path) -> None:
    out = tmp_path / "both.html"
    assert plan("compare", chain, "--strategies", "dynamic,batch", "--gantt", out) == 0
    text = out.read_text()
    assert text.index('"dynamic: ') < text.index('"batch: ')
