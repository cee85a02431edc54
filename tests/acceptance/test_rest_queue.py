"""GET /api/v1/queue: what runs, then what waits in queue order, arrays on one row, and only what the caller may see."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpuyard.core.domain.commands import HoldTask, ReportEnded, ReportStarted, SetSplit
from gpuyard.core.domain.tenant import QuotaMode, Split
from gpuyard.core.domain.values import Outcome, TaskId
from gpuyard.live.control_plane.access.principal import Role
from tests.acceptance.rest_cluster import RestCluster

QUEUE = "/api/v1/queue"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RestCluster]:
    """Four GPUs: 1 to 4 have them, of which 4 has not started; 5 to 8 are an array, 9 is first, 10 is on hold."""
    with RestCluster(tmp_path_factory.mktemp("queue")) as cluster:
        cluster.tell(SetSplit(Split(0.5, 0.5, QuotaMode.BORROW)))
        for number in range(1, 5):
            cluster.submit(name=f"run-{number}", tenant_id="lab", estimated_seconds=600, gpu_count=1)
        for number in (1, 2, 3):
            cluster.tell(ReportStarted(TaskId(number), 1))
        cluster.submit(name="array", array={"count": 4}, priority=40, tenant_id="shop", estimated_seconds=60)
        cluster.submit(name="first", priority=90, tenant_id="lab", estimated_seconds=60)
        cluster.submit(name="held", tenant_id="lab")
        cluster.tell(HoldTask(TaskId(10)))
        yield cluster


def rows(cluster: RestCluster, query: str = "", **more: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = cluster.get(f"{QUEUE}?{query}", **more)["rows"]
    return found


def ids(cluster: RestCluster, query: str = "", **more: Any) -> list[int]:
    return [int(row["id"].removeprefix("task-")) for row in rows(cluster, query, **more)]


def test_what_has_gpus_comes_first_then_the_queue_then_the_rest(cluster: RestCluster) -> None:
    found = rows(cluster)
    assert [int(row["id"][5:]) for row in found] == [4, 3, 2, 1, 9, 5, 6, 7, 8, 10]
    assert [row["place"] for row in found] == [None] * 4 + [1, 2, 3, 4, 5, None]
    assert found[0]["reason_code"] == "Starting"
    assert found[-1]["reason_code"] == "OnHold"
    assert all(row["reason"] for row in found[4:])


def test_the_first_tasks_of_the_queue_have_the_start_that_explain_gives(cluster: RestCluster) -> None:
    by_id = {row["id"]: row["expected_start"] for row in rows(cluster)}
    assert by_id["task-10"] is None
    for task in ("task-9", "task-5"):
        told = cluster.get(f"/api/v1/tasks/{task}/explain")
        assert by_id[task][:17] == told["starts_at"][:17]


def test_an_array_is_one_row_with_its_first_and_last_task(cluster: RestCluster) -> None:
    answer = cluster.get(f"{QUEUE}?fold=true")
    assert (answer["total"], answer["tasks"]) == (7, 10)
    assert (answer["running"], answer["pending"], answer["suspended"]) == (3, 7, 0)
    [array] = [row for row in answer["rows"] if row["count"] > 1]
    assert (array["id"], array["count"], array["first_id"], array["last_id"]) == ("task-5", 4, "task-5", "task-8")
    assert array["place"] == 2
    assert array["reason_code"]


def test_the_list_follows_every_change(cluster: RestCluster) -> None:
    assert "task-11" not in [row["id"] for row in rows(cluster)]
    cluster.submit(name="late", priority=100)
    assert ids(cluster, "status=pending")[:3] == [4, 11, 9], "task 4 has a GPU and is about to start"
    assert cluster.ask("DELETE", "/api/v1/tasks/task-11").status == 200
    assert ids(cluster, "status=pending")[:3] == [4, 9, 5]


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("status=running", [3, 2, 1]),
        ("status=pending&limit=2", [4, 9]),
        ("status=pending&limit=2&offset=1", [9, 5]),
        ("q=arr&sort=-created_at", [8, 7, 6, 5]),
        ("name=first", [9]),
        ("priority=90", [9]),
        ("tenant=shop&sort=created_at", [5, 6, 7, 8]),
        ("sort=-priority&limit=1", [9]),
        ("sort=name&limit=3&status=pending", [5, 6, 7]),
    ],
)
def test_filters_orders_and_pages(cluster: RestCluster, query: str, expected: list[int]) -> None:
    assert ids(cluster, query) == expected


def test_a_member_sees_the_tasks_of_the_own_tenant_but_real_places(cluster: RestCluster) -> None:
    token = cluster.token_of("shopper", Role.MEMBER, "shop")
    answer = cluster.get(f"{QUEUE}?fold=true", token=token)
    assert [row["id"] for row in answer["rows"]] == ["task-5"]
    assert answer["rows"][0]["place"] == 2, "the place in the whole queue"
    assert (answer["running"], answer["pending"]) == (0, 4)
    assert cluster.ask("GET", f"{QUEUE}?tenant=lab", token=token).status == 403


def test_ended_tasks_are_rows_too_with_arrays_folded_and_only_for_those_who_may_see_them(
    tmp_path: Path,
) -> None:
    with RestCluster(tmp_path) as cluster:
        cluster.submit(name="shop", tenant_id="shop", array={"count": 3}, gpu_count=1)
        for name in ("f-1", "f-2", "f-1"):
            cluster.submit(name="f[x=1]", group=name, tenant_id="lab")
        cluster.ask("DELETE", "/api/v1/tasks/task-5")
        cluster.ask("DELETE", "/api/v1/tasks/task-6")
        outcomes = [Outcome.SUCCEEDED, Outcome.FAILED, Outcome.SUCCEEDED, Outcome.SUCCEEDED]
        for number, outcome in enumerate(outcomes, 1):
            cluster.tell(ReportStarted(TaskId(number), 1))
            cluster.tell(ReportEnded(TaskId(number), 1, outcome, 1 if outcome is Outcome.FAILED else 0))

        def look(query: str = "", **more: Any) -> tuple[list[tuple[str, int, dict[str, int]]], int, bool]:
            told = cluster.get(f"{QUEUE}/ended?{query}", **more)
            return [(row["id"], row["count"], row["counts"]) for row in told["rows"]], told["tasks"], told["has_more"]

        group = ("task-4", 2, {"success": 1, "cancelled": 1})
        array = ("task-3", 3, {"success": 2, "failed": 1})
        for _ in range(2):  # from memory, then from the archive
            assert look() == ([group, array, ("task-5", 1, {})], 6, False)
            assert look("limit=2") == ([group, array], 6, True)
            assert look("status=failed") == ([("task-2", 1, {})], 1, False)
            assert look("q=SHOP") == ([array], 3, False)
            assert look("tenant=lab") == ([group, ("task-5", 1, {})], 3, False)
            cluster.inside(cluster.scheduler.archiver.archive_now)
        token = cluster.token_of("shopper", Role.MEMBER, "shop")
        assert look(token=token) == ([array], 3, False)
        assert cluster.ask("GET", f"{QUEUE}/ended?tenant=lab", token=token).status == 403
        assert look("status=running") == ([], 0, False)
        assert 'did you mean "failed"' in cluster.ask("GET", f"{QUEUE}/ended?status=faild").error["message"]


def test_open_tasks_with_one_group_are_one_row_whenever_they_were_submitted(tmp_path: Path) -> None:
    with RestCluster(tmp_path) as cluster:
        for group in ("f-1", "f-1", "f-2", "f-1"):
            cluster.submit(name="f[x=1]", group=group, gpu_count=64)
        found = rows(cluster, "fold=true")
        assert [(row["id"], row["count"], row["last_id"], row["group"]) for row in found] == [
            ("task-1", 3, "task-4", "f-1"),
            ("task-3", 1, None, "f-2"),
        ]
        assert cluster.get("/api/v1/tasks/task-1")["group"] == "f-1"


@pytest.mark.parametrize(("query", "words"), [("sort=nmae", "name"), ("status=failed", "status"), ("limit=0", "limit")])
def test_wrong_parameters_are_refused(cluster: RestCluster, query: str, words: str) -> None:
    reply = cluster.ask("GET", f"{QUEUE}?{query}")
    assert reply.status == 400
    assert words in reply.error["message"]
