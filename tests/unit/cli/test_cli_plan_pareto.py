"""`gpuyard plan pareto`."""

import json
from pathlib import Path

import pytest

from tests.unit.cli.test_cli_plan import Plan, Said, chain, plan
from tests.unit.live.sdk.fake_server import Answering, fake_server

__all__ = ["chain", "plan"]


def test_a_front_is_shown_written_and_drawn_with_its_plans(
    plan: Plan, chain: Path, tmp_path: Path, capsys: Said
) -> None:
    out, picture, plans = tmp_path / "front.json", tmp_path / "front.png", tmp_path / "plans"
    words = ("--rounds", 3, "--idle-rate", 0.3, "--out", out, "--picture", picture, "--plans", plans)
    assert plan("pareto", chain, *words) == 0
    said = json.loads(out.read_text())
    shown = capsys.readouterr().out.splitlines()
    assert shown[0].split() == ["CHOSEN", "PLAN", "MAKESPAN", "SPREAD", "SWITCHES", "WHICH"]
    assert shown[-1] == (
        "Chosen at an idle rate of 30% (as given); weights: makespan 0.78, switches 0.07, balance 0.15, energy 0.00."
    )
    assert (said["idle_rate"], said["idle_rate_from"]) == (0.3, "as given")
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert len(list(plans.iterdir())) == len(said["points"])
    assert plan("check", chain, plans / "front-00.json") == 0


def test_the_ends_the_knee_and_the_chosen_plan_are_shown_and_all_shows_the_others(
    plan: Plan, chain: Path, capsys: Said
) -> None:
    words = ("pareto", chain, "--rounds", 25, "--idle-rate", 1)
    assert plan(*words, "--json") == 0
    points = json.loads(capsys.readouterr().out)["points"]
    assert len(points) > 5
    assert plan(*words, "--all") == 0
    every = capsys.readouterr().out.splitlines()
    assert len(every) == len(points) + 2
    assert plan(*words) == 0
    _, *shown, more, _ = capsys.readouterr().out.splitlines()
    for name, objective in {"shortest": "makespan_s", "most balanced": "utilization_spread", "fewest switches": "switches"}.items():  # fmt: skip
        (row,) = (line for line in shown if name in line)
        number = int(row.lstrip("* ").split()[0])
        assert points[number][objective] == min(point[objective] for point in points)
    assert sum("knee" in line for line in shown) == 1
    assert sum(line.startswith("*") for line in shown) == 1
    assert more == f"{len(points) - len(shown)} more plans are on the front; --all shows them."


def test_equal_fronts_and_plans_are_equal_files(plan: Plan, chain: Path, tmp_path: Path) -> None:
    for name in ("a", "b"):
        assert plan("pareto", chain, "--rounds", 2, "--out", tmp_path / f"front-{name}") == 0
        assert plan("solve", chain, "--rounds", 2, "--out", tmp_path / f"plan-{name}") == 0
    for kind in ("front", "plan"):
        assert (tmp_path / f"{kind}-a").read_bytes() == (tmp_path / f"{kind}-b").read_bytes()


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


def _gpus(idle: int, busy: int, offline: int) -> dict[str, object]:
    return {"total": idle + busy + offline, "idle": idle, "busy": busy, "external": 0, "offline": offline, "gpus": []}


def test_the_idle_rate_of_a_cluster_determines_the_weights(plan: Plan, chain: Path, capsys: Said) -> None:
    def answer(line: Answering) -> None:
        line.say(_gpus(idle=2, busy=6, offline=4))

    with fake_server(answer) as server:
        words = ("--idle-rate", "live", "--server", server.url)
        assert plan("pareto", chain, "--rounds", 1, *words) == 0
        assert capsys.readouterr().out.splitlines()[-1] == (
            f"Chosen at an idle rate of 25% (2 of 8 GPUs of {server.url} are idle); weights: makespan 0.81, switches 0.06, "
            "balance 0.12, energy 0.00."
        )
        assert plan("solve", chain, "--strategy", "pareto", "--rounds", 1, "--json", *words) == 0
        figures = json.loads(capsys.readouterr().out)
        assert (figures["idle_rate"], figures["idle_rate_from"]) == (0.25, f"2 of 8 GPUs of {server.url} are idle")
        assert [asked.path for asked in server.asked] == ["/api/v1/gpus"] * 2


def test_an_unknown_idle_rate_is_reported_in_one_sentence(plan: Plan, chain: Path, capsys: Said) -> None:
    with fake_server(lambda line: line.say(_gpus(idle=0, busy=0, offline=3))) as server:
        assert plan("pareto", chain, "--idle-rate", "live", "--server", server.url) == 2
        assert capsys.readouterr().err == f"gpuyard: The idle rate of {server.url} is unknown: no GPU is online.\n"
    words = ("--idle-rate", "live", "--server", server.url, "--wait-for-scheduler", 0)
    assert plan("pareto", chain, *words) == 2
    assert f"The idle rate of {server.url} is unknown: No scheduler answers at {server.url}" in capsys.readouterr().err


@pytest.mark.parametrize("rate", ["half", "-0.1", "1.5", "nan", ""])
def test_an_idle_rate_is_a_number_from_0_to_1_or_live(plan: Plan, chain: Path, capsys: Said, rate: str) -> None:
    assert plan("pareto", chain, "--idle-rate", rate) == 2
    assert f"{rate!r} is not a number from 0 to 1 and not 'live'" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["solve", "run"])
def test_only_pareto_has_weights(plan: Plan, chain: Path, capsys: Said, command: str) -> None:
    assert plan(command, chain, "--idle-rate", 0.5) == 2
    assert capsys.readouterr().err == "gpuyard: The idle rate determines the weights of pareto; auto has none.\n"
