"""`gpuyard plan run` borrows GPUs of a cluster, yields to online tasks with notice, and continues afterwards."""

import json
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gpuyard.core.domain.values import TaskStatus
from tests.acceptance.cli_cluster import GPUYARD, CliCluster
from tests.acceptance.waiting import until


@contextmanager
def _cluster(folder: Path) -> Iterator[CliCluster]:
    """Four virtual GPUs, and tasks that may be stopped may be so at once."""
    cluster = CliCluster(folder)
    cluster.env["GPUYARD_SCHEDULER__PREEMPTION_MIN_RUN"] = "0s"
    try:
        cluster.up()
        yield cluster
    finally:
        cluster.end()


def _problem(folder: Path) -> str:
    """Sixty calls of one model on four GPUs: half a minute without interruption."""
    path = folder / "problem.json"
    nodes = [{"id": "a", "model": "m", "exec_time": 2.0}]
    said = {
        "format": "planner-instance/1",
        "name": "night",
        "models": {"m": {"memory_gb": 1, "load_time_s": 1}},
        "gpus": [{"id": number} for number in range(4)],
        "workflows": {"w": {"nodes": nodes}},
        "requests": [{"id": f"r{number}", "workflow": "w"} for number in range(60)],
    }
    path.write_text(json.dumps(said))
    return str(path)


def test_a_plan_uses_the_gpus_that_online_tasks_leave_and_yields_them(tmp_path: Path) -> None:
    with _cluster(tmp_path) as cluster:
        results = tmp_path / "results.jsonl"
        words = [GPUYARD, "plan", "run", _problem(tmp_path), "--strategy", "dynamic", "--speed-up", "3", "--json"]
        words += ["--results", str(results)]
        with subprocess.Popen(words, env=cluster.env, stdout=subprocess.PIPE, text=True, cwd=tmp_path) as run:
            client = cluster.client()
            until(lambda: results.exists() and len(results.read_text().splitlines()) > 4, what="the plan is under way")
            online = client.submit("sleep 2", gpu_count=2, task_class="online", priority="high")
            ended = client.wait(online, timeout=60)
            assert ended.status is TaskStatus.SUCCESS
            assert run.poll() is None, "the plan was over before the online task was"
            out, _ = run.communicate(timeout=120)
        assert run.returncode == 0
        said = json.loads(out)
        assert (said["calls"], said["done"]) == (60, 60)
        assert said["reclaimed"] == 2
        until(lambda: client.gpus().idle == 4, what="all GPUs are given back")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_plan_returns_its_gpus(tmp_path: Path, number: signal.Signals) -> None:
    places = tmp_path / "places"
    places.mkdir()
    with _cluster(tmp_path) as cluster:
        words = [GPUYARD, "plan", "run", _problem(tmp_path), "--strategy", "dynamic"]
        env = cluster.env | {"TMPDIR": str(places)}
        with subprocess.Popen(words, env=env, cwd=tmp_path, stderr=subprocess.PIPE, text=True) as run:
            client = cluster.client()
            until(lambda: len(list(client.tasks(status="running"))) == 4, what="the plan has all four GPUs")
            run.send_signal(number)
            _, said = run.communicate(timeout=30)
        assert run.returncode == 130
        assert said.splitlines()[-1].startswith("gpuyard: Interrupted: ")
        assert list(places.iterdir()) == []
        until(lambda: client.gpus().idle == 4, what="all GPUs are given back")
