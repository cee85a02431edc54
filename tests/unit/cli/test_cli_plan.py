"""`gpuyard plan`, from its options to its files."""

import json
from pathlib import Path

import pytest

from gpuyard import cli

Said = pytest.CaptureFixture[str]


@pytest.fixture
def plan(monkeypatch: pytest.MonkeyPatch) -> "Plan":
    return Plan(monkeypatch)


class Plan:
    """The verb, called with words."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._monkeypatch = monkeypatch

    def __call__(self, *words: object) -> int:
        self._monkeypatch.setattr("sys.argv", ["gpuyard", "plan", *map(str, words)])
        return cli.main()


@pytest.fixture
def chain(plan: Plan, tmp_path: Path) -> Path:
    file = tmp_path / "chain.json.gz"
    assert plan("generate", "chain", 40, 2, "--seed", 3, "--out", file) == 0
    return file


def test_a_problem_is_drawn_planned_and_its_plan_checked(plan: Plan, chain: Path, tmp_path: Path, capsys: Said) -> None:
    out = tmp_path / "plan.json"
    assert plan("solve", chain, "--strategy", "batch", "--out", out, "--json") == 0
    figures = json.loads(capsys.readouterr().out)
    assert figures["valid"] is True
    assert figures["strategy"] == "batch"
    assert figures["makespan_s"] / figures["lower_bound_s"] == pytest.approx(1 + figures["gap"])
    assert {"makespan_s", "switches", "switch_time_s", "utilisation_mean", "utilisation_spread", "planning_s"} <= figures.keys()  # fmt: skip
    assert plan("check", chain, out, "--json") == 0
    assert json.loads(capsys.readouterr().out) == {"valid": True, "faults": [], "makespan_s": figures["makespan_s"]}


def test_a_plan_that_breaks_a_rule_is_said_to_and_the_exit_code_is_1(
    plan: Plan, chain: Path, tmp_path: Path, capsys: Said
) -> None:
    out = tmp_path / "plan.json"
    plan("solve", chain, "--strategy", "batch", "--out", out)
    said = json.loads(out.read_text())
    said["tasks"][0]["end"] += 1
    out.write_text(json.dumps(said))
    capsys.readouterr()
    assert plan("check", chain, out) == 1
    assert "r0/n0 takes" in capsys.readouterr().out
    said["tasks"] = said["tasks"][:5]
    out.write_text(json.dumps(said))
    assert plan("check", chain, out) == 1
    assert capsys.readouterr().out.splitlines()[-1] == "And 25 more."


def test_a_problem_can_be_drawn_to_standard_output(plan: Plan, capsys: Said) -> None:
    assert plan("generate", "diamond", 8, 2) == 0
    assert json.loads(capsys.readouterr().out)["name"] == "diamond-n8-g2-s0"


def test_a_plan_for_another_problem_is_refused(plan: Plan, chain: Path, tmp_path: Path, capsys: Said) -> None:
    out, other = tmp_path / "plan.json", tmp_path / "other.json"
    plan("generate", "chain", 40, 2, "--seed", 4, "--out", other)
    plan("solve", chain, "--strategy", "batch", "--out", out)
    assert plan("check", other, out) == 2
    assert (
        f"{out}: The plan is for the instance 'chain-n40-g2-s3', this one is 'chain-n40-g2-s4'."
        in capsys.readouterr().err
    )


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("generate", "chains", 10, 2), "There is no family 'chains'"),
        (("generate", "chain", 10, 2, "--out", "/nowhere/x.json"), "/nowhere/x.json can not be written"),
        (("solve", "/nowhere/x.json"), "/nowhere/x.json: No such file or directory."),
        (("solve", "x.json", "--strategy", "magic"), "There is no strategy 'magic'"),
    ],
)
def test_what_can_not_be_done_gets_a_sentence_and_exit_code_2(
    plan: Plan, capsys: Said, words: tuple[object, ...], said: str
) -> None:
    assert plan(*words) == 2
    assert said in capsys.readouterr().err
