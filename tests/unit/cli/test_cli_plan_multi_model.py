"""`gpuyard plan --multi-model`: how many models a GPU holds."""

import json
from pathlib import Path

from tests.unit.cli.test_cli_plan import Plan, Said, chain, plan

__all__ = ["chain", "plan"]


def test_plans_are_made_and_checked_for_gpus_that_hold_several_models(
    plan: Plan, chain: Path, tmp_path: Path, capsys: Said
) -> None:
    out, switches = tmp_path / "plan.json", []
    for how_many in ("--single-model", "--multi-model"):
        words = ("--strategy", "dynamic", how_many, "--out", out, "--json")
        assert plan("solve", chain, *words) == 0
        switches.append(json.loads(capsys.readouterr().out)["switches"])
    assert switches[1] < switches[0]
    assert plan("check", chain, out, "--multi-model") == 0
    assert plan("check", chain, out) == 1
