"""The cost of requests over HTTP: limits of tasks and dependencies, and a responsive event loop."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpuyard.core.domain.commands import ChangeSettings, JoinNode, SetTenant
from gpuyard.core.domain.settings import Settings
from gpuyard.core.domain.tenant import Tenant
from gpuyard.core.domain.values import TenantId
from tests.acceptance.loop_time import loop_time
from tests.acceptance.rest_cluster import RestCluster

TASKS, BATCH = "/api/v1/tasks", "/api/v1/tasks:batch"


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[RestCluster]:
    with RestCluster(tmp_path) as cluster:
        yield cluster


def array(count: int, **more: object) -> dict[str, object]:
    return {"command": "true", "array": {"count": count}, **more}


def test_an_array_that_depends_on_an_array_is_shown_as_a_range(cluster: RestCluster) -> None:
    reply = cluster.ask("POST", BATCH, {"tasks": [array(2_000), array(2_000, depends_on=["tasks[0]"])]})

    assert reply.status == 201
    assert len(reply.body) < 10_000_000
    assert int(reply.headers["content-length"]) == len(reply.body)
    tasks = reply.json["tasks"]
    assert [task["id"] for task in tasks] == [f"task-{number}" for number in range(1, 4_001)]
    assert {tuple(task["depends_on"]) for task in tasks[2_000:]} == {("task-1..task-2000",)}
    waiting = cluster.get(f"{TASKS}/task-4000")
    assert waiting["reason_code"] == "WaitingForTasks"


def test_the_failure_of_one_task_of_an_array_cancels_its_dependents(cluster: RestCluster) -> None:
    cluster.ask("POST", BATCH, {"tasks": [array(20), array(500, depends_on=["tasks[0]"])]})

    cluster.ask("DELETE", f"{TASKS}/task-20")

    ended = cluster.get(f"{TASKS}?status=cancelled&limit=1000")
    assert ended["total"] == 501
    assert ended["tasks"][0]["reason_code"] == "dependency"


def test_many_dependencies_by_number_are_stored_as_a_range(cluster: RestCluster) -> None:
    cluster.ask("POST", TASKS, array(40))
    reply = cluster.ask("POST", TASKS, array(3, depends_on=[*range(1, 40), "task-40"], after_any=["task-1", 3]))
    assert reply.status == 201
    assert reply.json["depends_on"] == ["task-1..task-40"]
    assert reply.json["after_any"] == ["task-1", "task-3"]


@pytest.mark.parametrize(
    ("tasks", "code", "field"),
    [
        ([array(10_000)] * 11, "TooManyTasks", "tasks[10].array.count"),
        ([array(1), array(10_000, depends_on=list(range(1, 40, 2)))], "TooManyDependencies", "tasks[1].depends_on"),
        ([array(1)] * 11 + [array(10_000, after_any=[f"tasks[{i}]" for i in range(11)])], "TooManyDependencies", "tasks[11].after_any"),
    ],
)  # fmt: skip
def test_a_request_that_would_create_too_much_is_refused_before_anything_is_created(
    cluster: RestCluster, tasks: list[dict[str, object]], code: str, field: str
) -> None:
    reply = cluster.ask("POST", BATCH, {"tasks": tasks})
    assert (reply.status, reply.error["code"], reply.error["field"]) == (400, code, field)
    assert cluster.get(TASKS)["total"] == 0


def test_a_full_queue_and_a_tenant_with_too_many_open_tasks_get_429(cluster: RestCluster) -> None:
    cluster.tell(ChangeSettings(Settings(queue_size=10)))
    cluster.tell(SetTenant(Tenant(TenantId("lab"), max_open_tasks=5)))
    assert cluster.ask("POST", TASKS, array(4, tenant_id="lab", gpu_count=8)).status == 201

    reply = cluster.ask("POST", TASKS, array(2, tenant_id="lab", gpu_count=8))
    assert (reply.status, reply.error["code"]) == (429, "TooManyOpenTasks")
    assert "Tenant lab has 4 open tasks" in reply.error["message"]
    assert reply.headers["retry-after"]

    waiting = cluster.get(f"{TASKS}?status=pending")["total"]
    reply = cluster.ask("POST", TASKS, array(11 - waiting, tenant_id="other"))
    assert (reply.status, reply.error["code"]) == (429, "QueueFull")
    assert cluster.ask("POST", TASKS, array(10 - waiting, tenant_id="other")).status == 201


def test_the_event_loop_stays_responsive_during_a_large_request(cluster: RestCluster) -> None:
    """A generous bound: what took 13 s and more takes hundredths of a second."""
    with loop_time(cluster) as work:
        reply = cluster.ask("POST", BATCH, {"tasks": [array(5_000), array(5_000, depends_on=["tasks[0]"])]})
    assert reply.status == 201
    assert work.longest < 0.5


def test_the_event_loop_stays_responsive_while_thousands_of_nodes_are_listed(cluster: RestCluster) -> None:
    """A generous bound again."""
    nodes = 4_000

    async def join() -> None:
        loop = cluster.scheduler.loop
        await asyncio.gather(*(loop.tell(JoinNode(cluster.node(f"m{number:04}", 8))) for number in range(nodes)))

    cluster.inside(join)
    stalls = {}
    for path, many in (
        ("/api/v1/nodes", "nodes"),
        ("/api/v1/gpus", "gpus"),
        ("/api/monitor/metrics", "device_metrics"),
    ):
        with loop_time(cluster) as work:
            reply = cluster.ask("GET", path)
        stalls[path] = work.longest
        assert int(reply.headers["content-length"]) == len(reply.body)
        assert len(reply.json[many]) == (nodes + 1 if many == "nodes" else 8 * nodes + 4)
        assert cluster.ask("HEAD", path).body == b""
    assert max(stalls.values()) < 0.1, stalls
