"""Log events of the scheduler about tasks, nodes and quota; their names are stable."""

import json
from pathlib import Path
from typing import Any

from tests.acceptance.live import running_cluster
from tests.acceptance.waiting import until

Line = dict[str, Any]


def test_the_log_reports_tasks_nodes_and_quota(tmp_path: Path) -> None:
    path = tmp_path / "server.log"
    with running_cluster(
        tmp_path, gpus=2, logging={"format": "json", "output": str(path)}, agent={"heartbeat_timeout": "3s"}
    ) as cluster:
        client = cluster.client()
        good = client.wait(client.submit("true", gpu_count=1, tenant_id="lab"))
        bad = client.wait(client.submit("exit 3", gpu_count=2))
        client.submit("sleep 600", gpu_count=2)
        waits = client.submit("true", gpu_count=2)
        client.set_quota(0.25)
        client.set_tenant("lab", max_gpus=1)
        cluster.kill_node("node-1")
        offline = until(lambda: said(path, "agent_offline"), what="the node is offline")
        until(lambda: any("reason" in line for line in said(path, "task_pending")), what="its task waits again")

    (submitted,) = [line for line in said(path, "task_submitted") if line["task_id"] == good.id]
    assert (submitted["tenant_id"], submitted["class"], submitted["gpu_count"]) == ("lab", "batch", 1)
    assert submitted["by"].endswith("@127.0.0.1")
    assert submitted["level"] == "info"
    assert submitted["timestamp"].endswith("Z")
    scheduled = said(path, "task_scheduled")
    assert [line["task_id"] for line in scheduled] == ["task-1", "task-2", "task-3"]
    assert (scheduled[1]["attempt"], scheduled[1]["gpus"]) == (1, ["node-1/0", "node-1/1"])
    (finished,) = said(path, "task_finished")
    assert (finished["task_id"], finished["status"], finished["exit_code"]) == (good.id, "success", 0)
    assert finished["run_seconds"] >= 0
    (failed,) = said(path, "task_failed")
    assert (failed["task_id"], failed["status"], failed["exit_code"]) == (bad.id, "failed", 3)
    assert failed["reason"] == "exit_code"
    pending = [(line["task_id"], line.get("reason")) for line in said(path, "task_pending")]
    assert (waits.id, None) in pending
    assert ("task-3", "node_lost") in pending
    split, tenant = [line for line in said(path, "quota_updated") if line["by"] != "settings"]
    assert (split["online_percent"], split["batch_percent"]) == (0.25, 0.75)
    assert (tenant["tenant_id"], tenant["max_gpus"]) == ("lab", 1)
    assert said(path, "agent_registered")[0]["node_id"] == offline[0]["node_id"] == "node-1"


def said(path: Path, event: str) -> list[Line]:
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    return [line for line in lines if line["event"] == event]
