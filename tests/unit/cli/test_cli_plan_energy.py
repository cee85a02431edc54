"""`gpuyard plan`: energy and power levels."""

import json
from pathlib import Path

import pytest

from tests.unit.cli.test_cli_plan import Plan, Said, chain, plan

__all__ = ["chain", "plan"]


@pytest.mark.slow
def test_generated_problems_may_have_power_levels_and_a_slower_plan_needs_less_energy(
    plan: Plan, tmp_path: Path, capsys: Said
) -> None:
    file, out = tmp_path / "chain.json", tmp_path / "plan.json"
    assert plan("generate", "chain", 60, 3, "--levels", "--out", file) == 0
    figures = []
    for more in ((), ("--max-slowdown", 0), ("--max-slowdown", 0.05)):
        assert plan("solve", file, "--strategy", "dynamic", "--json", "--out", out, *more) == 0
        figures.append(json.loads(capsys.readouterr().out))
    assert plan("check", file, out) == 0
    energy = [one["energy_kwh"] for one in figures]
    assert energy[0] > energy[1] > energy[2]
    assert figures[0]["makespan_s"] == figures[1]["makespan_s"]
    assert figures[2]["makespan_s"] <= 1.05 * figures[0]["makespan_s"]
    assert {one["watts_from"] for one in figures} == {"file"}


def test_without_power_levels_there_is_nothing_to_choose(plan: Plan, chain: Path, capsys: Said) -> None:
    assert plan("solve", chain, "--strategy", "dynamic", "--max-slowdown", 0.05) == 2
    assert capsys.readouterr().err == (
        "gpuyard: --max-slowdown needs GPUs with several power levels (gpus[].levels), and the file has none.\n"
    )


def test_energy_is_not_shown_if_it_is_unknown(plan: Plan, chain: Path, capsys: Said) -> None:
    assert plan("solve", chain, "--strategy", "dynamic", "--json") == 0
    assert "energy_kwh" not in json.loads(capsys.readouterr().out)
