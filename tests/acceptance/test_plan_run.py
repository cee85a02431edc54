"""`gpuyard plan run`: real workers hold models, and a plan ends although one of them is killed."""

import json
import os
import re
import signal
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from gpuyard.cli.plan.planning import GETTING_READY, LOADING
from tests.acceptance.waiting import until
from tests.contract.ray_cluster import REPOSITORY, beside_a_cluster, can_run

EXAMPLE = REPOSITORY / "examples" / "torch_workflow"
GPUYARD = [sys.executable, "-m", "gpuyard.cli"]
RUN = [*GPUYARD, "plan", "run"]
WITH_MODELS = [*RUN, str(EXAMPLE / "problem.json"), "--runtimes", str(EXAMPLE / "runtimes.yaml"), "--json"]
needs_torch = pytest.mark.skipif(find_spec("torch") is None, reason="the example's models need PyTorch")


def complaints(said: str) -> list[str]:
    """Lines, without the word that everything takes a while on a busy machine."""
    return [line for line in said.splitlines() if line not in {GETTING_READY, LOADING}]


def told(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*RUN, *words], check=False, capture_output=True, text=True, timeout=120, cwd=REPOSITORY)


def problem(folder: Path, **more: object) -> str:
    """Two models, three requests, two GPUs, planned for 21 s."""
    path = folder / "problem.json"
    path.write_text(
        json.dumps(
            {
                "format": "planner-instance/1",
                "name": "small",
                "models": {name: {"memory_gb": 1, "load_time_s": 5} for name in ("one", "two")},
                "gpus": [{"id": 0}, {"id": 1}],
                "workflows": {
                    "w": {
                        "nodes": [
                            {"id": "a", "model": "one", "exec_time": 4},
                            {"id": "b", "model": "two", "exec_time": 4, "deps": ["a"]},
                        ]
                    }
                },
                "requests": [{"id": f"r{number}", "workflow": "w"} for number in range(3)],
            }
            | more
        )
    )
    return str(path)


def runtimes(folder: Path, said: object) -> str:
    path = folder / "runtimes.yaml"
    path.write_text(json.dumps(said))
    return str(path)


def test_a_plan_of_virtual_models_takes_the_planned_time(tmp_path: Path) -> None:
    file, plan, out = problem(tmp_path), tmp_path / "plan.json", tmp_path / "actual.json"
    subprocess.run([*GPUYARD, "plan", "solve", file, "--strategy", "dynamic", "--out", str(plan)], check=True)
    ran = told(
        file, "--plan", str(plan), "--speed-up", "10", "--json", "--out", str(out), "--results", str(tmp_path / "r")
    )
    assert ran.returncode == 0, ran.stderr
    said = json.loads(ran.stdout)
    assert (said["calls"], said["done"]) == (6, 6)
    # The virtual models wait as long as planned; a busy machine adds to it, and nothing takes from it.
    assert -0.02 < said["gap"] < 1.0
    actual = json.loads(out.read_text())
    assert actual["planner"] == "actual"
    assert len(actual["tasks"]) == 6
    lines = [json.loads(line) for line in (tmp_path / "r").read_text().splitlines()]
    assert sorted(line["request"] for line in lines) == ["r0", "r1", "r2"]
    assert lines[0]["result"] == {"node": "b", "from": ["a"]}


def test_calls_that_fail_for_good_are_named_and_the_exit_code_is_1(tmp_path: Path) -> None:
    how = runtimes(tmp_path, {"models": {"one": "virtual", "two": {"virtual": {"fails": 1.0}}}})
    ran = told(problem(tmp_path), "--runtimes", how, "--speed-up", "100", "--retries", "1", "--strategy", "dynamic")
    assert ran.returncode == 1
    assert "r0/b, r1/b and r2/b were not done: SimulatedFailure: attempt 2 fails as configured." in ran.stderr
    assert re.search(r"^done +3$", ran.stdout, re.MULTILINE)
    assert re.search(r"^retries +3$", ran.stdout, re.MULTILINE)


def test_a_model_that_no_worker_can_load_is_named_with_the_reason(tmp_path: Path) -> None:
    how = runtimes(
        tmp_path, {"models": {"one": {"python": "tests.unit.plan.workers.toy_models:Broken"}, "two": "virtual"}}
    )
    ran = told(problem(tmp_path), "--runtimes", how, "--strategy", "dynamic")
    assert ran.returncode == 1
    assert (
        "r0/a, r1/a and r2/a were not done: its model could not be loaded: MemoryError: no room for it." in ran.stderr
    )


@pytest.mark.parametrize(
    ("said", "words", "sentence"),
    [
        ({"models": {"one": "virtual"}}, [], "'two' is missing"),
        (
            {"models": {"*": {"python": "json:loads"}}},
            ["--speed-up", "2"],
            "--speed-up works only with virtual runtimes",
        ),
        ({"models": {"*": "virtual"}}, ["--out", "/no/such/folder/x"], "Cannot write /no/such/folder/x"),
        ({"models": {"*": "virtual"}}, ["--plan", "/no/plan"], "/no/plan: No such file or directory."),
        ({"models": {"*": "virtual"}}, ["--strategy", "luck"], "Unknown strategy 'luck'"),
        ({"models": {"*": "virtual"}}, ["--speed-up", "nan"], "--speed-up"),
    ],
)
def test_invalid_input_is_one_sentence_and_exit_code_2(
    tmp_path: Path, said: object, words: list[str], sentence: str
) -> None:
    ran = told(problem(tmp_path), "--runtimes", runtimes(tmp_path, said), *words)
    assert ran.returncode == 2, ran.stderr
    assert sentence in ran.stderr
    assert len(complaints(ran.stderr)) == 1


def test_a_plan_that_breaks_a_rule_is_not_executed(tmp_path: Path) -> None:
    file, plan = problem(tmp_path), tmp_path / "plan.json"
    subprocess.run([*GPUYARD, "plan", "solve", file, "--strategy", "dynamic", "--out", str(plan)], check=True)
    said = json.loads(plan.read_text())
    said["tasks"][0]["start"] = 0.0
    plan.write_text(json.dumps(said))
    ran = told(file, "--plan", str(plan))
    assert ran.returncode == 2
    assert "plan.json: " in ran.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_plan_reports_its_progress_and_leaves_nothing_behind(
    tmp_path: Path, number: signal.Signals
) -> None:
    out, results, places = tmp_path / "actual.json", tmp_path / "results.jsonl", tmp_path / "places"
    places.mkdir()
    requests = [{"id": f"r{count}", "workflow": "w"} for count in range(40)]
    file = problem(tmp_path, requests=requests, models={m: {"memory_gb": 1, "load_time_s": 0} for m in ("one", "two")})
    words = [*RUN, file, "--strategy", "dynamic", "--speed-up", "20", "--out", str(out), "--results", str(results)]
    with subprocess.Popen(words, stderr=subprocess.PIPE, text=True, env=os.environ | {"TMPDIR": str(places)}) as run:
        until(lambda: results.exists() and len(results.read_text().splitlines()) > 1, what="some calls are done")
        run.send_signal(number)
        _, said = run.communicate(timeout=30)
    assert run.returncode == 130
    actual = json.loads(out.read_text())
    assert actual["ended_by_hand"] is True
    assert complaints(said) == [
        f"gpuyard: Interrupted: {len(actual['tasks'])} of 80 calls were done; see {out} for places and times."
    ]
    assert 2 < len(actual["tasks"]) < 80
    assert list(places.iterdir()) == []


def test_a_plan_interrupted_before_its_first_call_writes_nothing(tmp_path: Path) -> None:
    out, results = tmp_path / "actual.json", tmp_path / "results.jsonl"
    slow = {"one": {"memory_gb": 1, "load_time_s": 60}, "two": {"memory_gb": 1, "load_time_s": 60}}
    words = [*RUN, problem(tmp_path, models=slow), "--strategy", "dynamic", "--json"]
    words += ["--out", str(out), "--results", str(results)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as run:
        until(lambda: bool(children(run.pid)), what="workers have begun")
        run.send_signal(signal.SIGINT)
        said, grumble = run.communicate(timeout=30)
    assert run.returncode == 130
    assert complaints(grumble) == []
    figures = json.loads(said)
    assert (figures["done"], figures["ended_by_hand"], figures["failed"]) == (0, True, [])
    assert not out.exists()
    assert not results.exists()


def children(pid: int) -> list[str]:
    """Processes that a process began."""
    return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()


@needs_torch
def test_three_torch_models_run_on_this_machine_although_a_worker_is_killed(tmp_path: Path) -> None:
    results = tmp_path / "results.jsonl"
    words = [*WITH_MODELS, "--strategy", "dynamic", "--results", str(results)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as run:
        assert run.stderr is not None
        for line in run.stderr:
            if found := re.match(r"worker (\d+) loaded Generator", line):
                os.kill(int(found[1]), signal.SIGKILL)
                break
        out, _ = run.communicate(timeout=120)
    assert run.returncode == 0
    said = json.loads(out)
    assert (said["calls"], said["done"], said["lost"]) == (36, 36, 1)
    _all_answered(results)


def _all_answered(results: Path) -> None:
    lines = [json.loads(line) for line in results.read_text().splitlines()]
    assert sorted(line["request"] for line in lines) == [f"q{number:02}" for number in range(12)]
    assert all(len(line["result"]["words"]) == 27 for line in lines)


@needs_torch
@pytest.mark.skipif(not can_run(), reason="Ray, or network namespaces, cannot be used here")
def test_three_torch_models_run_on_a_ray_cluster_of_two_nodes_although_a_worker_is_killed(tmp_path: Path) -> None:
    results = tmp_path / "results.jsonl"
    words = [*WITH_MODELS, "--strategy", "dynamic", "--results", str(results), "--on", "ray", "--ray-address"]
    killing = beside_a_cluster([sys.executable, "-m", "tests.acceptance.kill_ray_actor", *words])
    ran = subprocess.run(killing, cwd=REPOSITORY, check=False, capture_output=True, text=True, timeout=240)
    assert ran.returncode == 0, ran.stderr[-3000:]
    said = json.loads(ran.stdout)
    assert (said["calls"], said["done"], said["lost"]) == (36, 36, 1)
    _all_answered(results)
