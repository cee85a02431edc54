"""`gpuyard demo`: the sample workload of the empty dashboard, from the command line."""

import json
from pathlib import Path

from gpuyard.cli.demo import sample_workload
from tests.acceptance.cli_cluster import CliCluster
from tests.acceptance.waiting import until

NAMES = [str(task["name"]) for task in sample_workload()]
DASHBOARD = Path(__file__).parents[2] / "dashboard" / "src" / "pages" / "overview.tsx"


def test_the_sample_workload_runs_fails_and_depends(tmp_path: Path) -> None:
    cluster = CliCluster(tmp_path)
    try:
        cluster.up()
        told = json.loads(cluster.does("demo", "--json"))["tasks"]
        assert [task["name"] for task in told] == NAMES
        assert {task["project"] for task in told} == {"sample"}
        assert all(task["estimated_seconds"] for task in told)  # so that the overview shows an expected wait
        fails, report = told[4], told[5]
        assert report["depends_on"] == [told[2]["id"]]
        until(
            lambda: json.loads(cluster.does("show", fails["id"], "--json"))["status"] == "failed",
            60,
            "one of them fails",
        )
        printed = cluster.does("demo").splitlines()
        assert [line.split()[1] for line in printed[:-1]] == NAMES
        assert "gpuyard logs -f task-7" in printed[-1]
    finally:
        cluster.end()


def test_without_a_scheduler_it_says_so_in_one_sentence(tmp_path: Path) -> None:
    cluster = CliCluster(tmp_path)
    done = cluster.call("demo", "--server", "http://127.0.0.1:9", "--wait-for-scheduler", "0")
    assert done.returncode != 0
    assert done.stdout == ""
    assert len(done.stderr.strip().splitlines()) == 1, done.stderr
    assert "No scheduler answers at http://127.0.0.1:9" in done.stderr


def test_the_dashboard_submits_the_same_file() -> None:
    assert "src/gpuyard/cli/sample_workload.json" in DASHBOARD.read_text(encoding="utf-8")
