"""`gpuyard plan submit` on a real cluster: the tasks run in order, yield to online tasks, and continue."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.acceptance.cli_cluster import CliCluster
from tests.acceptance.waiting import until
from tests.unit.plan.planner.small_problems import instance

WORDS = "echo began {calls} >> log; sleep %s; echo ended {calls} >> log"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CliCluster]:
    """Four virtual GPUs; preemption is immediate."""
    found = CliCluster(tmp_path_factory.mktemp("cluster"))
    found.env["GPUYARD_SCHEDULER__PREEMPTION_MIN_RUN"] = "0"
    try:
        found.up()
        yield found
    finally:
        found.end()


def planned(cluster: CliCluster, folder: Path, *nodes: tuple[str, str, float, str], requests: int) -> list[str]:
    """How to submit a plan of some work on four GPUs, to run in a folder."""
    work, plan = folder / "work.json", folder / "plan.json"
    work.write_bytes(msgspec.json.encode(instance(*nodes, gpus=4, requests=requests)))
    cluster.does("plan", "solve", str(work), "--strategy", "dynamic", "--out", str(plan))
    return ["plan", "submit", str(work), "--plan", str(plan), "-C", str(folder)]


def log(folder: Path) -> list[list[str]]:
    """What tasks wrote: began or ended, and their calls."""
    path = folder / "log"
    return [line.split() for line in path.read_text().splitlines()] if path.exists() else []


def test_a_plan_runs_as_tasks_in_a_valid_order(cluster: CliCluster, tmp_path: Path) -> None:
    submit = planned(cluster, tmp_path, ("a", "A", 1, ""), ("b", "B2", 1, "a"), ("c", "A", 1, "b"), requests=3)
    words = [*submit, "--wait", "--key", "once", "--json", "--", WORDS % 0.05]
    told = json.loads(cluster.does(*words))

    assert {task["status"] for task in told["tasks"]} == {"success"}
    assert sorted(call for task in told["tasks"] for call in task["calls"]) == sorted(
        f"r{number}/{node}" for number in range(3) for node in "abc"
    )
    lines = log(tmp_path)
    when = {(what, call): at for at, (what, *calls) in enumerate(lines) for call in calls}
    for number in range(3):
        for before, after in ("ab", "bc"):
            assert when["ended", f"r{number}/{before}"] < when["began", f"r{number}/{after}"]
    assert {task["model"]: task["gpu_count"] for task in told["tasks"]} == {"A": 1, "B2": 2}

    assert json.loads(cluster.does(*words)) == told  # with the same key nothing runs again
    assert log(tmp_path) == lines


def test_online_tasks_preempt_a_plan_that_continues_afterwards(cluster: CliCluster, tmp_path: Path) -> None:
    submit = planned(cluster, tmp_path, ("a", "A", 30, ""), ("b", "A", 1, "a"), requests=4)
    until_told = "test {node} = b || until test -e go; do sleep 0.1; done"
    ids = cluster.does(*submit, "--task-unit", "call", "--", WORDS.replace("sleep %s", until_told)).split()
    client = cluster.client()
    until(lambda: len(log(tmp_path)) == 4, what="the plan has all GPUs")

    online = client.submit("echo online >> log", gpu_count=2, priority="high", work_dir=tmp_path)
    assert client.wait(online, timeout=60).succeeded
    (tmp_path / "go").touch()
    ended: list[Any] = client.wait(ids, timeout=120)

    assert all(task.succeeded for task in ended)
    assert sum(task.attempts for task in ended) == len(ids) + 2
    words = log(tmp_path)
    assert words.index(["online"]) < words.index(["ended", "r0/b"])
    assert [words.count(["ended", f"r{number}/{node}"]) for number in range(4) for node in "ab"] == [1] * 8


def test_a_failed_task_is_reported_and_its_dependents_do_not_run(cluster: CliCluster, tmp_path: Path) -> None:
    submit = planned(cluster, tmp_path, ("a", "A", 1, ""), ("b", "A", 1, "a"), requests=1)
    done = cluster.call(*submit, "--task-unit", "call", "--wait", "--", "echo {calls} >> log; exit 3")
    assert done.returncode == 1
    assert "(r0/a): failed." in done.stdout
    assert "0 of 2 tasks succeeded" in done.stdout
    assert log(tmp_path) == [["r0/a"]]
