"""`gpuyard plan pareto`."""

import json
from pathlib import Path

import pytest

from tests.unit.cli.test_cli_plan import Plan, Said, chain, plan

__all__ = ["chain", "plan"]


def test_a_front_is_shown_written_and_drawn_with_its_plans(
    plan: Plan, chain: Path, tmp_path: Path, capsys: Said
) -> None:
    out, picture, plans = tmp_path / "front.json", tmp_path / "front.png", tmp_path / "plans"
    words = ("--rounds", 3, "--idle-rate", 0.3, "--out", out, "--picture", picture, "--plans", plans)
    assert plan("pareto", chain, *words) == 0
    said = json.loads(out.read_text())
    shown = capsys.readouterr().out.splitlines()
    assert len(shown) == len(said["points"]) + 2
    assert shown[-1] == (
        "Chosen at an idle rate of 30%; weights: makespan 0.78, switches 0.07, balance 0.15, energy 0.00."
    )
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert len(list(plans.iterdir())) == len(said["points"])
    assert plan("check", chain, plans / "front-00.json") == 0


def test_a_folder_of_plans_has_those_of_the_last_front_and_foreign_files(
    plan: Plan, chain: Path, tmp_path: Path
) -> None:
    plans = tmp_path / "plans"
    plans.mkdir()
    for name in ("front-00.json", "front-77.json", "front-100.json", "front-mine.json", "front-1.json.gz"):
        (plans / name).write_text("earlier")
    assert plan("pareto", chain, "--rounds", 1, "--plans", plans) == 0
    kept = {file.name for file in plans.iterdir() if file.read_bytes() == b"earlier"}
    assert kept == {"front-mine.json", "front-1.json.gz"}


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--picture", "front.html"), "front.html: the name of the picture must end in .png or .svg."),
        (("--plans", "/no/such/plans"), "Cannot write /no/such/plans: folder /no/such does not exist."),
        (("--plans", __file__), f"Cannot write {__file__}: it is not a folder."),
    ],
)
def test_unwritable_output_is_refused_before_anything_is_planned(
    plan: Plan, chain: Path, capsys: Said, words: tuple[str, str], sentence: str
) -> None:
    assert plan("pareto", chain, *words) == 2
    assert capsys.readouterr().err == f"gpuyard: {sentence}\n"
