"""The timeline of GPUs, from open and ended tasks."""

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from gpuyard.core.domain.commands import JoinNode, ReportEnded, ReportStarted, SetSplit
from gpuyard.core.domain.tenant import QuotaMode, Split
from gpuyard.core.domain.values import Outcome, TaskClass, TaskId, TaskStatus, TenantId
from gpuyard.live.control_plane import time_slices
from gpuyard.live.control_plane.access.principal import Role
from gpuyard.live.control_plane.stores.archive import ArchiveRow
from gpuyard.live.control_plane.timelines import MOST_BARS
from tests.acceptance.rest_cluster import RestCluster
from tests.acceptance.waiting import until

TIMELINE = "/api/v1/timeline"


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[RestCluster]:
    with RestCluster(tmp_path) as cluster:
        cluster.tell(SetSplit(Split(0.5, 0.5, QuotaMode.BORROW)))
        yield cluster


def bars(answer: dict[str, Any]) -> dict[str, list[dict[str, Any]]]:
    return {lane["gpu_id"]: lane["bars"] for lane in answer["lanes"]}


def archived(cluster: RestCluster, *runs: tuple[int, str, float, float], tenant: str = "lab") -> None:
    """Put tasks into the archive: number, GPU, start and end."""
    rows = [
        ArchiveRow(TaskId(task), TenantId(tenant), TaskStatus.SUCCESS, TaskClass.BATCH, 50, "", "", f"x{task}", 0.0, end,
                   b"{}", start, "", b"", ((0, gpu, start, end, 1.0),))
        for task, gpu, start, end in runs
    ]  # fmt: skip
    cluster.scheduler.stores.archive.add(rows, 1)


def test_open_and_ended_tasks_are_bars_on_their_gpus(cluster: RestCluster) -> None:
    cluster.submit(name="first", gpu_count=2, tenant_id="lab")
    cluster.submit(name="second", gpu_fraction=0.5, gpu_count=0, tenant_id="shop")
    cluster.tell(ReportStarted(TaskId(1), 1))
    cluster.tell(ReportEnded(TaskId(1), 1, Outcome.SUCCEEDED, 0))
    until(lambda: 1 not in cluster.scheduler.views.tasks)
    now = time.time()
    answer = cluster.get(f"{TIMELINE}?from={now - 60}&to={now + 60}&width=4000")
    lanes = bars(answer)
    assert list(lanes) == ["n1/0", "n1/1", "n1/2", "n1/3"]
    assert [(lane["node_id"], lane["device_index"]) for lane in answer["lanes"]] == [
        ("n1", place) for place in range(4)
    ]
    shown = [bar for lane in lanes.values() for bar in lane]
    ended = [bar for bar in shown if bar["task_id"] == "task-1" or bar["task_id"] is None]
    assert len(ended) == 2  # as short as they were, they may be merged
    (second,) = [bar for bar in shown if bar["task_id"] == "task-2"]
    assert (second["end"], second["name"], second["tenant_id"], second["share"]) == (None, "second", "shop", 0.5)
    assert now - 60 < second["start"] <= now
    whole = cluster.get(f"{TIMELINE}?from={now - 0.5}&to={now + 0.001}&width=4000")
    assert {bar["task_id"] for lane in bars(whole).values() for bar in lane} <= {"task-1", "task-2", None}


def test_short_runs_are_merged_and_counted(cluster: RestCluster) -> None:
    short = [(number, "n1/0", 1000.0 + number, 1000.5 + number) for number in range(1, 101)]
    archived(cluster, *short, (200, "n1/0", 2000.0, 2600.0))
    answer = cluster.get(f"{TIMELINE}?from=1000&to=3000&width=20")
    merged, (long,) = bars(answer)["n1/0"][:-1], bars(answer)["n1/0"][-1:]
    assert (long["task_id"], long["start"], long["end"]) == ("task-200", 2000.0, 2600.0)
    assert [(bar["task_id"], bar["count"]) for bar in merged] == [(None, 99), (None, 1)]
    assert answer["merged"] == 100
    fine = cluster.get(f"{TIMELINE}?from=1000&to=1102&width=1200")
    assert (fine["merged"], len(bars(fine)["n1/0"])) == (0, 100)
    assert bars(cluster.get(f"{TIMELINE}?from=2100&to=2200"))["n1/0"] == [long]
    assert bars(cluster.get(f"{TIMELINE}?from=2600&to=2700"))["n1/0"] == []


def test_a_timeline_of_very_many_runs_stays_small(cluster: RestCluster) -> None:
    archived(cluster, *((number, f"n1/{number % 4}", number * 2.0, number * 2.0 + 1.9) for number in range(1, 25001)))
    answer = cluster.get(f"{TIMELINE}?from=0&to=51000&width=4000")
    count = sum(len(lane) for lane in bars(answer).values())
    assert count <= 2 * MOST_BARS
    assert answer["merged"] + sum(1 for lane in bars(answer).values() for bar in lane if bar["task_id"]) == 25000


def test_nodes_and_tenants_can_be_chosen(cluster: RestCluster) -> None:
    cluster.tell(JoinNode(replace(cluster.node("n10", 1), labels=())))
    archived(cluster, (1, "n1/0", 100.0, 200.0), (2, "n10/0", 100.0, 200.0), (3, "gone/5", 100.0, 200.0))
    archived(cluster, (4, "n1/1", 100.0, 200.0), tenant="shop")
    lanes = bars(cluster.get(f"{TIMELINE}?from=0&to=300"))
    assert list(lanes) == ["gone/5", "n1/0", "n1/1", "n1/2", "n1/3", "n10/0"]
    assert list(bars(cluster.get(f"{TIMELINE}?from=0&to=300&node=n1"))) == ["n1/0", "n1/1", "n1/2", "n1/3"]
    only = bars(cluster.get(f"{TIMELINE}?from=0&to=300&tenant=shop"))
    assert [bar["task_id"] for lane in only.values() for bar in lane] == ["task-4"]
    token = cluster.token_of("mia", Role.MEMBER, "shop")
    mine = bars(cluster.get(f"{TIMELINE}?from=0&to=300", token=token))
    assert [bar["task_id"] for lane in mine.values() for bar in lane] == ["task-4"]
    merged = cluster.get(f"{TIMELINE}?from=0&to=300000&width=10", token=token)
    assert merged["merged"] == 1
    assert cluster.ask("GET", f"{TIMELINE}?tenant=lab", token=token).status == 403


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ("from=10&to=5", "from"),
        ("from=5&to=5", "from"),
        ("width=0", "width"),
        ("width=4001", "width"),
        ("from=yesterday", "from"),
        ("node=nowhere", "node"),
    ],
)
def test_a_wrong_parameter_gets_one_sentence(cluster: RestCluster, query: str, field: str) -> None:
    reply = cluster.ask("GET", f"{TIMELINE}?{query}")
    assert reply.status in {400, 404}
    assert reply.error["field"] == field


def test_runs_of_other_tenants_do_not_take_the_names_from_mine(cluster: RestCluster) -> None:
    archived(cluster, *((number, f"n1/{number % 4}", number * 2.0, number * 2.0 + 1.9) for number in range(1, 10_101)))
    archived(cluster, (20_000, "n1/0", 5000.0, 5012.0), tenant="shop")
    alice = cluster.token_of("alice", Role.MEMBER, "shop")
    answer = cluster.get(f"{TIMELINE}?from=0&to=40000&width=4000", token=alice)
    (bar,) = bars(answer)["n1/0"]
    assert (bar["task_id"], answer["merged"]) == ("task-20000", 0)


def test_a_run_that_is_archived_while_the_request_waits_is_drawn_once(cluster: RestCluster) -> None:
    cluster.submit(gpu_count=1)
    cluster.tell(ReportStarted(TaskId(1), 1))
    gate, views = threading.Event(), cluster.scheduler.views
    pool = cluster.scheduler.worker_pools.archive

    async def occupy() -> list["asyncio.Future[bool]"]:
        return [asyncio.ensure_future(pool.run(gate.wait, 60)) for _ in range(4)]

    with ThreadPoolExecutor(1) as client:
        cluster.inside(occupy)
        now = time.time()
        asked = client.submit(cluster.get, f"{TIMELINE}?from={now - 60}&to={now + 60}&width=4000")
        until(lambda: pool._pool._work_queue.qsize() > 0, 20, "the request waits for a thread")
        cluster.tell(ReportEnded(TaskId(1), 1, Outcome.SUCCEEDED, 0))
        until(lambda: 1 not in views.tasks, 20, "the task is archived")
        gate.set()
        answer = asked.result()
    assert [len(lane) for lane in bars(answer).values()] == [1, 0, 0, 0]


def test_a_timeline_of_many_open_tasks_yields_to_other_work(
    cluster: RestCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time_slices, "SLICE_SECONDS", -1.0)  # every turn is due
    for _ in range(50):
        cluster.submit(gpu_count=4)
    turns = list[int]()

    async def measured() -> None:
        async def other() -> None:
            while True:
                turns.append(1)
                await asyncio.sleep(0)

        beside = asyncio.create_task(other())
        await cluster.scheduler.timelines.between(0.0, time.time() + 60, 1200)
        beside.cancel()

    monkeypatch.setattr(cluster.scheduler.worker_pools.archive, "run", _at_once)
    cluster.inside(measured)
    assert len(turns) >= 50


async def _at_once(work: Callable[..., Any], *arguments: object) -> Any:
    return work(*arguments)
