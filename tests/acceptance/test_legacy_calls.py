"""The documented calls of the two legacy systems, verbatim except for the port."""

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.live import GPUYARD, Cluster, running_cluster
from tests.acceptance.waiting import until

POST_V1 = """
curl -X POST http://localhost:8080/api/v1/tasks \\
  -H "Content-Type: application/json" \\
  -d '{
    "priority": "high",
    "gpu_count": 2,
    "command": "python train.py --epochs 100"
  }'
"""
GET_V1 = "curl http://localhost:8080/api/v1/tasks/{task_id}"
GPUS = "curl http://localhost:8080/api/v1/gpus"
QUOTA = "curl http://localhost:8080/api/v1/quota"
POST_DESKTOP = """
curl -X POST http://localhost:8080/api/tasks \\
     -H "Content-Type: application/json" \\
     -d '{"tenant_id":"tenant-1","name":"test-task","gpu_request":1,"memory_mb":4096,"priority":50}'
"""
GET_DESKTOP = "curl http://localhost:8080/api/tasks/{task_id}"
METRICS = "curl http://localhost:8080/api/monitor/metrics"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with running_cluster(tmp_path_factory.mktemp("seeds"), gpus=4) as running:
        yield running


def call(cluster: Cluster, line: str, task_id: str = "") -> Any:
    """What a shell makes of the line."""
    line = line.replace("localhost:8080", f"localhost:{cluster.http}").replace("{task_id}", task_id)
    done = subprocess.run(["sh", "-c", line.strip()], capture_output=True, text=True, timeout=30, check=True)
    return json.loads(done.stdout)


def test_a_task_is_submitted_runs_on_two_gpus_and_reports_how_it_ended(cluster: Cluster) -> None:
    submitted = call(cluster, POST_V1)
    assert submitted["status"] == "pending"
    assert submitted["created_at"].endswith("Z")
    told = until(lambda: (it := call(cluster, GET_V1, submitted["task_id"]))["finished_at"] and it, what="the end")
    assert (told["priority"], told["gpu_count"], len(told["allocated_gpus"])) == ("high", 2, 2)
    assert told["allocated_gpus"] == told["assigned_gpus"]
    assert told["task_id"] == told["id"] == submitted["task_id"]
    assert told["started_at"] is not None
    assert (told["status"], told["exit_code"] != 0) == ("failed", True), "there is no train.py here"


def test_gpus_are_listed_with_their_states(cluster: Cluster) -> None:
    told = call(cluster, GPUS)
    assert (told["total"], told["offline"]) == (4, 0)
    assert told["idle"] + told["busy"] == 4
    fields = {"id", "node_id", "device_index", "model", "memory", "status", "current_task", "updated_at"}
    assert all(fields <= gpu.keys() for gpu in told["gpus"])
    assert {gpu["model"] for gpu in told["gpus"]} == {"RTX4090"}
    assert all(gpu["virtual"] for gpu in told["gpus"])


def test_the_quota_is_shown(cluster: Cluster) -> None:
    told = call(cluster, QUOTA)
    assert told["total_gpus"] == 4
    assert told["online"]["quota"] + told["batch"]["quota"] == 4
    assert told["online"].keys() >= {"quota", "used", "available"}


def test_a_task_without_a_command_is_a_lease_and_holds_its_gpu(cluster: Cluster) -> None:
    submitted = call(cluster, POST_DESKTOP)
    assert (submitted["tenant_id"], submitted["name"], submitted["gpu_request"]) == ("tenant-1", "test-task", 1)
    told = until(lambda: (it := call(cluster, GET_DESKTOP, submitted["id"]))["status"] == "running" and it)
    assert len(told["device_ids"]) == 1
    metrics = call(cluster, METRICS)
    assert metrics["total_gpus"] == 4
    assert metrics["allocated_gpus"] >= 1
    assert metrics["active_tasks"] >= 1
    assert len(metrics["device_metrics"]) == 4
    stopped = call(cluster, f"curl -X DELETE http://localhost:8080/api/tasks/{submitted['id']}")
    assert stopped == {"status": "cancelled"}
    until(lambda: call(cluster, METRICS)["allocated_gpus"] == 0)


def test_the_settings_files_in_the_repository_are_usable() -> None:
    for verb, name in (("server", "scheduler.yaml"), ("agent", "agent.yaml")):
        path = Path(__file__).parents[2] / "configs" / name
        done = subprocess.run(
            [*GPUYARD, verb, "--config", str(path), "--check-config"],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, done.stderr
