"""`gpuyard plan run`, before anything is run."""

import json
from pathlib import Path

import pytest

from gpuyard.plan.planner.instance import write_instance
from tests.unit.cli.test_cli_plan import Plan, Said, chain, plan
from tests.unit.plan.planner.small_problems import instance

__all__ = ["chain", "plan"]


@pytest.mark.parametrize(
    ("said", "sentence"),
    [
        ("models: {'*': {virtual: {fails: 2e1}}}", "models.*.virtual: drift and fails must be fractions from 0 to 1."),
        ("models: {'*': virtual}\nmodels: {}", "line 2: models is given twice, first in line 1; remove one of them."),
        (
            "models: {'*': [",
            "line 1: the file ends too early, in the block that begins on line 1; part of it is missing.",
        ),
        ("", "The file is empty."),
    ],
)
def test_an_invalid_runtimes_file_is_reported_in_one_sentence(plan: Plan, chain: Path, tmp_path: Path, capsys: Said, said: str, sentence: str) -> None:  # fmt: skip
    file = tmp_path / "runtimes.yaml"
    file.write_text(said)
    assert plan("run", chain, "--runtimes", file) == 2
    assert capsys.readouterr().err == f"gpuyard: {file}: {sentence}\n"


@pytest.mark.parametrize(
    ("said", "sentence"),
    [
        ({"python": "nowhere_at_all:Model"}, "models.*.python: module 'nowhere_at_all' was found neither next to the file nor on the Python path."),
        ({"command": ["./no_such_program"]}, "models.*.command: './no_such_program' is not an executable program."),
    ],
)  # fmt: skip
def test_a_missing_runtime_is_reported_before_anything_is_planned(
    plan: Plan, chain: Path, tmp_path: Path, capsys: Said, said: object, sentence: str
) -> None:
    file = tmp_path / "runtimes.json"
    file.write_text(json.dumps({"models": {"*": said}}))
    assert plan("run", chain, "--runtimes", file) == 2
    assert capsys.readouterr().err == f"gpuyard: {file}: {sentence}\n"


def test_gpus_may_hold_many_models_if_requested(plan: Plan, tmp_path: Path, capsys: Said) -> None:
    """Two models change places on one GPU that has room for both."""
    nodes = [("a", "A", 1.0, ""), ("b", "B", 1.0, "a"), ("c", "A", 1.0, "b"), ("d", "B", 1.0, "c")]
    file = tmp_path / "small.json"
    file.write_bytes(write_instance(instance(*nodes, gpus=1)))
    switches = {}
    for how_many in ("--single-model", "--multi-model"):
        assert plan("run", file, "--strategy", "dynamic", "--speed-up", 100, "--json", how_many) == 0
        switches[how_many] = json.loads(capsys.readouterr().out)["planned_switches"]
    assert switches == {"--single-model": 3, "--multi-model": 1}


def test_after_failures_there_is_no_gap_and_each_reason_is_shown_once(plan: Plan, tmp_path: Path, capsys: Said) -> None:
    file, how = tmp_path / "small.json", tmp_path / "how.yaml"
    file.write_bytes(write_instance(instance(("a", "A", 1.0, ""), ("b", "A", 1.0, "a"), requests=6)))
    how.write_text("models: {A: {virtual: {fails: 1.0}}}")
    words = ("run", file, "--strategy", "dynamic", "--speed-up", 1000, "--retries", 0, "--runtimes", how)
    assert plan(*words) == 1
    said = capsys.readouterr()
    assert dict(line.split() for line in said.out.splitlines() if line.startswith(("calls", "done", "gap"))) == {
        "calls": "12",
        "done": "0",
    }
    assert [line for line in said.err.splitlines() if line.startswith("gpuyard:")] == [
        "gpuyard: r0/a, r1/a, r2/a and 3 more were not done: SimulatedFailure: attempt 1 fails as configured.",
        "gpuyard: r0/b, r1/b, r2/b and 3 more were not done: it depends on a call that failed: SimulatedFailure: attempt 1 fails as configured.",
    ]
    assert plan(*words, "--json") == 1
    figures = json.loads(capsys.readouterr().out)
    assert (figures["gap"], figures["done"], len(figures["failed"])) == (None, 0, 12)
