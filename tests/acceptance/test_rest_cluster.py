"""GPUs, quota, nodes, tenants, leases, and the legacy API for all of it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from gpuyard.core.domain.commands import JoinNode, LoseNode, ReportStarted
from gpuyard.core.domain.values import NodeId, TaskId
from gpuyard.live.control_plane.settings import ServerSettings, TenantEntry
from tests.acceptance.rest_cluster import RestCluster
from tests.acceptance.waiting import until


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[RestCluster]:
    with RestCluster(tmp_path) as cluster:
        yield cluster


def test_gpus_are_counted_by_state(cluster: RestCluster) -> None:
    cluster.submit(gpu_count=2, priority="high")
    cluster.tell(JoinNode(cluster.node("n2", 3)))
    cluster.tell(LoseNode(NodeId("n2")))
    told = cluster.get("/api/v1/gpus")
    assert {word: told[word] for word in ("total", "idle", "busy", "offline", "external")} == {
        "total": 7, "idle": 2, "busy": 2, "offline": 3, "external": 0,
    }  # fmt: skip
    first = told["gpus"][0]
    assert (first["id"], first["node_id"], first["device_index"], first["memory"]) == ("n1/0", "n1", 0, 24576)
    assert (first["status"], first["current_task"], first["virtual"]) == ("busy", "task-1", True)


def test_the_split_is_changed_at_once_and_the_journal_names_the_user(cluster: RestCluster) -> None:
    assert cluster.get("/api/v1/quota")["online"] == {"quota": 3, "used": 0, "available": 3}
    told = cluster.ask("PUT", "/api/v1/quota", {"online_percent": 0.25, "mode": "borrow"}).json
    assert (told["total_gpus"], told["online"]["quota"], told["batch"]["quota"], told["mode"]) == (4, 1, 3, "borrow")
    assert cluster.ask("PUT", "/api/v1/quota", {"online_percent": 0.5}).json["mode"] == "borrow"
    last = list(cluster.scheduler.stores.journal.read())[-1]
    assert type(last.event).__name__ == "SplitSet"
    assert last.by.endswith("@127.0.0.1")


@pytest.mark.parametrize(
    "body", [{}, {"online_percent": 1.5}, {"online_percent": "half"}, {"online_percent": 0.5, "batch_percent": 0.6}]
)
def test_an_invalid_split_is_refused(cluster: RestCluster, body: dict[str, object]) -> None:
    before = cluster.get("/api/v1/quota")
    assert cluster.ask("PUT", "/api/v1/quota", body).status == 400
    assert cluster.get("/api/v1/quota") == before


def test_nodes_are_cordoned_drained_uncordoned_and_removed(cluster: RestCluster) -> None:
    assert cluster.ask("POST", "/api/v1/nodes/n1/cordon").json["status"] == "cordoned"
    assert cluster.submit(priority="high")["allocated_gpus"] == []
    assert cluster.ask("POST", "/api/v1/nodes/n1/drain").json["status"] == "draining"
    assert cluster.ask("POST", "/api/v1/nodes/n1/uncordon").json["status"] == "online"
    until(lambda: cluster.get("/api/v1/nodes/n1")["tasks"] == ["task-1"])
    in_use = cluster.ask("DELETE", "/api/v1/nodes/n1")
    assert (in_use.status, in_use.error["code"]) == (409, "NodeInUse")
    cluster.tell(JoinNode(cluster.node("n2", 1)))
    assert cluster.ask("DELETE", "/api/v1/nodes/n2").status == 200
    assert [node["id"] for node in cluster.get("/api/v1/nodes")["nodes"]] == ["n1"]
    for method, path in (("GET", ""), ("POST", "/cordon"), ("POST", "/drain?force=true"), ("DELETE", "")):
        assert cluster.ask(method, f"/api/v1/nodes/n9{path}").error["message"] == "Node n9 does not exist."
    assert cluster.ask("POST", "/api/v1/nodes/n1/unknown_attempts/task-9/1/stop").error["code"] == "NoSuchAttempt"


def test_a_tenants_limits_apply_at_once(cluster: RestCluster) -> None:
    told = cluster.ask("PUT", "/api/v1/tenants/lab", {"max_gpus": 1, "gpu_hours": 5}).json
    assert (told["id"], told["max_gpus"], told["gpu_hours"]) == ("lab", 1, 5)
    refused = cluster.ask("POST", "/api/v1/tasks", {"gpu_count": 2, "command": "true", "tenant_id": "lab"})
    assert (refused.status, refused.error["code"]) == (409, "QuotaForbids")
    cluster.submit(tenant_id="lab")
    told = cluster.get("/api/v1/tenants/lab")
    assert (told["used_gpus"], told["pending_tasks"]) == (1, 1)
    assert cluster.ask("PUT", "/api/v1/tenants/a%20b", {}).status == 400
    assert (
        cluster.ask("PUT", "/api/v1/tenants/lab", {"max_gpu": 1}).error["message"].endswith('did you mean "max_gpus"?')
    )


def test_a_lease_is_granted_listed_and_released(cluster: RestCluster) -> None:
    reply = cluster.ask("POST", "/api/v1/leases", {"gpu_count": 1, "timeout": 600})
    assert (reply.status, reply.json["id"], reply.json["gpus"]) == (201, "task-1", ["n1/0"])
    cluster.tell(ReportStarted(TaskId(1), 1))
    lease = cluster.get("/api/v1/leases/task-1")
    assert lease["status"] == "running"
    assert lease["expires_at"] > lease["started_at"]
    assert cluster.get("/api/v1/leases")["total"] == 1
    cluster.submit()
    assert cluster.get("/api/v1/leases")["total"] == 1
    assert cluster.ask("GET", "/api/v1/leases/task-2").status == 404
    released = cluster.ask("DELETE", "/api/v1/leases/task-1")
    assert (released.status, released.json["message"]) == (200, "task-1 is being released.")
    assert cluster.get("/api/v1/tasks/task-1")["reason"] == "The lease was released."
    assert cluster.ask("GET", "/api/v1/tasks/task-1/logs").error["code"] == "NoOutput"
    assert cluster.ask("POST", "/api/v1/leases", {"command": "true"}).error["field"] == "command"


def test_the_legacy_api_shows_the_same_tasks(cluster: RestCluster) -> None:
    sent = {"tenant_id": "lab", "name": "t", "gpu_request": 1, "memory_mb": 8192, "priority": 60, "timeout": 0}
    reply = cluster.ask("POST", "/api/tasks", sent)
    assert reply.status == 201
    task = reply.json
    assert {**task, **sent} == task
    assert (task["id"], task["device_ids"], task["status"]) == ("task-1", [], "pending")
    assert cluster.get("/api/tasks/task-1") == cluster.get("/api/tasks")[0] == task
    v1 = cluster.get("/api/v1/tasks/task-1")
    assert (v1["tenant_id"], v1["gpu_memory_mb"], v1["command"]) == ("lab", 8192, None)
    assert cluster.get("/api/stats")["tenants"]["lab"]["pending_tasks"] == 1
    metrics = cluster.get("/api/monitor/metrics")
    assert (metrics["total_gpus"], metrics["allocated_gpus"], metrics["active_tasks"]) == (4, 1, 1)
    assert metrics["tenant_utilization"] == {"lab": 0.0}
    device = cluster.get("/api/monitor/device/0")
    assert (device["allocated"], device["tenant_id"], device["task_id"]) == (True, "lab", "task-1")
    assert cluster.ask("GET", "/api/monitor/device/4").status == 404
    until(lambda: bool(cluster.get("/api/monitor/history")))
    assert set(cluster.get("/api/monitor/history")) == {"0", "1", "2", "3"}
    assert cluster.get("/api/monitor/history/0?limit=1")[0]["device_id"] == 0
    assert cluster.ask("DELETE", "/api/tasks/task-1").json == {"status": "cancelled"}


def test_the_settings_of_a_tenant_are_the_defaults_of_its_tasks(tmp_path: Path) -> None:
    tenants = {"lab": TenantEntry(priority=33, max_memory_per_gpu=1000, max_gpus=2)}
    with RestCluster(tmp_path, settings=ServerSettings(tenants=tenants)) as cluster:
        assert cluster.submit(tenant_id="lab")["priority"] == 33
        large = cluster.ask("POST", "/api/v1/tasks", {"gpu_count": 1, "gpu_memory_mb": 2000, "tenant_id": "lab"})
        assert (large.status, large.error["field"]) == (409, "gpu_memory_mb")
        told = cluster.get("/api/stats")["tenants"]["lab"]
        assert (told["max_gpus"], told["max_memory_per_gpu"]) == (4, 1000)


def test_health_and_documentation_are_served(cluster: RestCluster) -> None:
    assert cluster.get("/health") == cluster.get("/healthz") == cluster.get("/readyz")
    assert cluster.get("/openapi.json")["openapi"].startswith("3.1")
    page = cluster.ask("GET", "/docs")
    assert b"/api/v1/tasks:batch" in page.body
    assert "default-src 'none'" in page.headers["content-security-policy"]
