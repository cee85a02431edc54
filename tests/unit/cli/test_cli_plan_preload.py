"""`gpuyard plan --preload`: whether a GPU loads its next model while it runs calls."""

import gzip
import json
from pathlib import Path

from tests.unit.cli.test_cli_plan import Plan, Said, chain, plan

__all__ = ["chain", "plan"]


def test_plans_are_made_and_checked_for_gpus_that_load_beside_calls(
    plan: Plan, chain: Path, tmp_path: Path, capsys: Said
) -> None:
    out, figures = tmp_path / "plan.json", []
    for how in ("--no-preload", "--preload"):
        assert plan("solve", chain, "--strategy", "dynamic", how, "--out", out, "--json") == 0
        figures.append(json.loads(capsys.readouterr().out))
    without, with_it = figures
    assert with_it["makespan_s"] < without["makespan_s"]
    assert with_it["lower_bound_s"] <= without["lower_bound_s"]
    assert 0 < with_it["hidden_switch_s"] <= with_it["switch_time_s"]
    assert "hidden_switch_s" not in without
    assert plan("check", chain, out, "--preload") == 0
    assert capsys.readouterr().out.startswith("The plan is valid")
    assert plan("check", chain, out) == 1
    told = capsys.readouterr().out
    assert told.startswith("The plan was made with preload, and the problem is without it: add --preload")
    assert "to change the model" in told


def test_to_follow_a_plan_with_preload_the_option_is_asked_for(
    plan: Plan, chain: Path, tmp_path: Path, capsys: Said
) -> None:
    out = tmp_path / "plan.json"
    assert plan("solve", chain, "--strategy", "dynamic", "--preload", "--out", out) == 0
    assert json.loads(out.read_bytes())["preload"] is True
    assert plan("run", chain, "--plan", out) == 2
    assert "plan.json: The plan was made with preload, and the problem is without it: add --preload" in (
        capsys.readouterr().err
    )


def test_a_plan_without_preload_says_nothing_of_it(plan: Plan, chain: Path, tmp_path: Path, capsys: Said) -> None:
    out = tmp_path / "plan.json"
    assert plan("solve", chain, "--strategy", "dynamic", "--no-preload", "--out", out) == 0
    said = json.loads(out.read_bytes())
    assert "preload" not in said
    said["tasks"][0]["end"] += 1.0
    out.write_text(json.dumps(said))
    assert plan("check", chain, out) == 1
    assert "preload" not in capsys.readouterr().out


def test_figures_state_what_is_hidden(plan: Plan, chain: Path, tmp_path: Path, capsys: Said) -> None:
    assert plan("compare", chain, "--strategies", "batch,dynamic", "--preload", "--gantt", tmp_path / "both.svg") == 0
    told = capsys.readouterr().out
    assert "HIDDEN" in told
    assert "HIDDEN those beside calls" in told
    assert plan("solve", chain, "--strategy", "dynamic", "--preload") == 0
    assert "of them beside calls" in capsys.readouterr().out


def test_preload_is_refused_if_the_memory_of_a_gpu_is_unknown(plan: Plan, chain: Path, capsys: Said) -> None:
    said = json.loads(gzip.decompress(chain.read_bytes()))
    del said["gpus"][0]["memory_gb"]
    chain.write_bytes(gzip.compress(json.dumps(said).encode()))
    assert plan("solve", chain, "--preload") == 2
    assert "has no memory_gb, and preload needs it" in capsys.readouterr().err
