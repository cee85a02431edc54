"""The calls of the legacy API's public client and page, against `/api`, decoded as strictly as its programs decode them.

Go refuses a fraction for a whole number and text for a list; a field that is not there or null is zero. The client submits
tasks, then asks for each of them until it has seen as many ends as there are tasks.
"""

import json
import time
import urllib.request
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from msgspec import Struct, convert

from gpuyard.core.domain.commands import ReportEnded, ReportStarted, SetSplit
from gpuyard.core.domain.refusals import Refusal
from gpuyard.core.domain.tenant import QuotaMode, Split
from gpuyard.core.domain.values import Outcome, TaskId
from gpuyard.live.control_plane.access.principal import Role
from gpuyard.live.control_plane.settings import MonitorSection, ServerSettings
from gpuyard.live.wire.config import Duration
from tests.acceptance.live import running_cluster
from tests.acceptance.rest_cluster import RestCluster

ENDS = ("completed", "failed", "cancelled")


class TaskResponse(Struct):
    """What the client decodes; each field has the zero of its type if it is missing."""

    id: str = ""
    tenant_id: str = ""
    name: str = ""
    description: str = ""
    status: str = ""
    gpu_request: int = 0
    memory_mb: int = 0
    priority: int = 0
    created_at: datetime | None = None
    started_at: datetime | None = None
    finished_at: datetime | None = None
    device_ids: list[int] | None = None
    timeout: int = 0
    created_by: str = ""


class DeviceMetrics(Struct):
    """One sample of a device."""

    device_id: int = 0
    timestamp: datetime | None = None
    gpu_utilization: int = 0
    memory_used: int = 0
    memory_total: int = 0
    temperature: int = 0
    power_usage: float = 0.0
    power_limit: float = 0.0
    fan_speed: int = 0
    allocated: bool = False
    tenant_id: str = ""
    task_id: str = ""


class SystemMetrics(Struct):
    """A sample of all of them."""

    timestamp: datetime | None = None
    total_gpus: int = 0
    allocated_gpus: int = 0
    avg_utilization: float = 0.0
    avg_memory_usage: float = 0.0
    avg_temperature: float = 0.0
    avg_power_usage: float = 0.0
    device_metrics: list[DeviceMetrics] = []
    active_tenants: int = 0
    active_tasks: int = 0
    tenant_utilization: dict[str, float] = {}


class TenantStats(Struct):
    """One tenant of the statistics; every field is needed."""

    max_gpus: int
    used_gpus: int
    max_memory_per_gpu: int
    usage_percent: float


class Stats(Struct):
    """The statistics."""

    pending_tasks: int
    running_tasks: int
    tenants: dict[str, TenantStats]


class LoginResponse(Struct):
    """A login."""

    token: str
    user_id: str
    username: str
    tenant_id: str
    role: str
    expires_at: int


class UserResponse(Struct):
    """Who one is."""

    id: str
    username: str
    tenant_id: str
    role: str
    permissions: list[str]
    created_at: str
    last_login: str


class TenantResponse(Struct):
    """Show the tenant of the current user."""

    id: str
    name: str
    description: str
    max_gpus: int
    max_memory: int
    priority: int
    created_at: str
    active: bool


def decoded(value: Any, type_: Any) -> Any:
    """As Go decodes: 300.0 is not a whole number; what is unknown is left alone."""
    _no_fractions(value, type_)
    return convert(value, type_)


def _no_fractions(value: Any, type_: Any) -> None:
    """msgspec takes 300.0 for a whole number, Go does not."""
    if isinstance(value, list):
        for item in value:
            _no_fractions(item, type_.__args__[0])
    elif isinstance(value, dict) and isinstance(type_, type) and issubclass(type_, Struct):
        for field, kind in type_.__annotations__.items():
            if kind is int:
                assert not isinstance(value.get(field, 0), float), (field, value[field])


def request_of(number: int) -> dict[str, Any]:
    """What the client sends: the task has no command."""
    return {
        "tenant_id": "tenant-1",
        "name": f"task-{number}",
        "description": f"example {number}",
        "gpu_request": 1,
        "memory_mb": 4096,
        "priority": 1 + 20 * number,
        "timeout": 300,
    }


def status_of(cluster: RestCluster, task: str) -> TaskResponse:
    told: TaskResponse = decoded(cluster.get(f"/api/tasks/{task}"), TaskResponse)
    return told


def test_the_client_submits_five_tasks_and_sees_each_of_them_end(tmp_path: Path) -> None:
    with RestCluster(tmp_path, gpus=4) as cluster:
        cluster.tell(SetSplit(Split(mode=QuotaMode.NONE)))
        tasks = []
        for number in range(5):
            reply = cluster.ask("POST", "/api/tasks", request_of(number))
            assert reply.status == 201
            task = decoded(reply.json, TaskResponse)
            sent = request_of(number)
            assert {name: getattr(task, name) for name in sent} == sent
            assert (task.status, task.started_at, task.finished_at) == ("pending", None, None)
            tasks.append(task.id)
        for number in range(1, 5):
            cluster.tell(ReportStarted(TaskId(number), 1))
        running = [status_of(cluster, task) for task in tasks]
        assert [task.status for task in running] == ["running"] * 4 + ["pending"]
        assert [task.device_ids for task in running] == [[0], [1], [2], [3], []]
        listed = decoded(cluster.get("/api/tasks"), list[TaskResponse])
        assert [task.id for task in listed] == tasks[::-1]
        assert decoded(cluster.get("/api/tenants/tenant-1"), list[TaskResponse]) == listed
        for number, outcome in enumerate((Outcome.SUCCEEDED, Outcome.FAILED, Outcome.FAILED), start=1):
            cluster.tell(ReportEnded(TaskId(number), 1, outcome))
        assert cluster.ask("DELETE", f"/api/tasks/{tasks[3]}").json == {"status": "cancelled"}
        cluster.tell(ReportEnded(TaskId(4), 1, Outcome.STOPPED))
        cluster.tell(ReportStarted(TaskId(5), 1))
        cluster.tell(ReportEnded(TaskId(5), 1, Outcome.SUCCEEDED))
        ended = [status_of(cluster, task) for task in tasks]
        assert [task.status for task in ended] == ["completed", "failed", "failed", "cancelled", "completed"]
        assert all(task.status in ENDS and task.finished_at for task in ended)
        assert decoded(cluster.get("/api/tenants/tenant-1"), list[TaskResponse]) == []


def test_tasks_that_time_out_have_failed_and_the_client_ends(tmp_path: Path) -> None:
    """With an agent: the client asks until it has seen as many ends as it has submitted tasks."""
    with running_cluster(tmp_path, quota={"mode": "none"}) as made:
        address = f"http://127.0.0.1:{made.http}/api/tasks"
        tasks = [submitted(address, {**request_of(number), "timeout": 1}).id for number in range(5)]
        seen = dict.fromkeys(tasks, "")
        give_up_at = time.monotonic() + 30
        while not all(status in ENDS for status in seen.values()):
            assert time.monotonic() < give_up_at, seen
            for task in tasks:
                with urllib.request.urlopen(f"{address}/{task}", timeout=10) as answer:
                    seen[task] = decoded(json.load(answer), TaskResponse).status
            time.sleep(0.1)  # the client itself waits two seconds
        assert set(seen.values()) == {"failed"}


def submitted(address: str, body: dict[str, Any]) -> TaskResponse:
    request = urllib.request.Request(address, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=10) as answer:
        assert answer.status == 201
        told: TaskResponse = decoded(json.load(answer), TaskResponse)
        return told


def test_the_legacy_page_reads_metrics_and_history(tmp_path: Path) -> None:
    settings = ServerSettings(monitor=MonitorSection(interval=Duration(1)))
    with RestCluster(tmp_path, gpus=2, settings=settings) as cluster:
        cluster.ask("POST", "/api/tasks", request_of(0))
        metrics = decoded(cluster.get("/api/monitor/metrics"), SystemMetrics)
        assert (metrics.total_gpus, metrics.allocated_gpus) == (2, 1)
        assert metrics.tenant_utilization == {"tenant-1": 0.0}
        for device in cluster.get("/api/monitor/metrics")["device_metrics"]:
            decoded(device, DeviceMetrics)
        assert decoded(cluster.get("/api/monitor/device/0"), DeviceMetrics).allocated
        give_up_at = time.monotonic() + 10
        while len(cluster.get("/api/monitor/history").get("0", ())) < 2:
            assert time.monotonic() < give_up_at, "no samples were taken"
        history = cluster.get("/api/monitor/history")
        assert set(history) == {"0", "1"}
        for samples in history.values():
            decoded(samples, list[DeviceMetrics])
        one = decoded(cluster.get("/api/monitor/history/1"), list[DeviceMetrics])
        assert {sample.device_id for sample in one} == {1}


def test_a_disabled_monitor_names_its_setting(tmp_path: Path) -> None:
    with RestCluster(tmp_path, settings=ServerSettings(monitor=MonitorSection(http_api=False))) as cluster:
        off = cluster.ask("GET", "/api/monitor/metrics")
        assert (off.status, off.error["code"]) == (404, "MonitorOff")
        assert "monitor.http_api" in off.error["message"]


def test_statistics_login_user_and_tenant_have_the_legacy_fields(tmp_path: Path) -> None:
    with RestCluster(tmp_path) as cluster:
        cluster.ask("POST", "/api/tasks", request_of(0))
        stats = decoded(cluster.get("/api/stats"), Stats)
        assert stats.tenants["tenant-1"] == TenantStats(4, 1, 0, 25.0)
        added = cluster.access.add_user("alice", "correct horse", None, Role.ADMIN)
        assert not isinstance(added, Refusal)
        reply = cluster.ask("POST", "/api/login", {"username": "alice", "password": "correct horse"})
        login = decoded(reply.json, LoginResponse)
        assert login.expires_at > time.time()
        user = decoded(cluster.get("/api/user", token=login.token), UserResponse)
        assert (user.id, user.role) == ("alice", "admin")
        assert "manage_users" in user.permissions
        assert datetime.fromisoformat(user.last_login).year >= 2024
        tenant = decoded(cluster.get("/api/tenant", token=login.token), TenantResponse)
        assert (tenant.id, tenant.max_gpus, tenant.active) == ("default", 4, True)


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/api/tasks/task-99", 404),
        ("DELETE", "/api/tasks/task-99", 404),
        ("POST", "/api/tasks", 400),
        ("GET", "/api/nothing", 404),
        ("PUT", "/api/tasks", 405),
        ("GET", "/api/monitor/device/99", 404),
    ],
)
def test_an_error_is_a_text(tmp_path: Path, method: str, path: str, status: int) -> None:
    with RestCluster(tmp_path) as cluster:
        reply = cluster.ask(method, path, b"{" if method == "POST" else None)
        assert reply.status == status
        assert isinstance(reply.json["error"], str)
        assert reply.json["error"]
