"""Search, order and offset of task lists over open and ended tasks, and the story of a task."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpuyard.core.domain.commands import ReportEnded, ReportStarted, SetSplit
from gpuyard.core.domain.tenant import QuotaMode, Split
from gpuyard.core.domain.values import Outcome, TaskId
from gpuyard.live.control_plane.access.principal import Role
from gpuyard.live.sdk import connect
from tests.acceptance.rest_cluster import RestCluster
from tests.acceptance.waiting import until

TASKS = "/api/v1/tasks"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RestCluster]:
    """Twelve tasks on four GPUs: 1 to 4 ran and ended, 5 to 8 have GPUs, 9 to 12 wait."""
    with RestCluster(tmp_path_factory.mktemp("lists")) as cluster:
        cluster.tell(SetSplit(Split(0.5, 0.5, QuotaMode.BORROW)))
        for number in range(1, 13):
            cluster.submit(
                name=f"{'Train' if number % 2 else 'eval'}-{number % 5}",
                command=f"python run.py --seed {number}",
                tenant_id="lab" if number % 3 else "shop",
                priority=(number * 37) % 100,
            )
        for number in (4, 2, 1, 3):
            end(cluster, number, Outcome.FAILED if number == 2 else Outcome.SUCCEEDED)
        until(lambda: not any(number in cluster.scheduler.views.tasks for number in range(1, 5)))
        yield cluster


def end(cluster: RestCluster, number: int, outcome: Outcome = Outcome.SUCCEEDED) -> None:
    cluster.tell(ReportStarted(TaskId(number), 1))
    cluster.tell(ReportEnded(TaskId(number), 1, outcome, 1 if outcome is Outcome.FAILED else 0))


def rows(cluster: RestCluster, query: str = "", **more: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = cluster.get(f"{TASKS}?limit=1000&{query}", **more)["tasks"]
    return found


def ids(cluster: RestCluster, query: str = "", **more: Any) -> list[int]:
    return [int(row["id"].removeprefix("task-")) for row in rows(cluster, query, **more)]


def _key(row: dict[str, Any], name: str) -> tuple[bool, Any, int]:
    value = row[name]
    return (value is not None, value if value is not None else 0, int(row["id"].removeprefix("task-")))


@pytest.mark.parametrize("name", ["created_at", "started_at", "finished_at", "name", "status", "priority"])
@pytest.mark.parametrize("way", ["", "-"])
def test_every_order_is_that_of_its_values_over_open_and_ended_tasks(cluster: RestCluster, name: str, way: str) -> None:
    everything = rows(cluster)
    assert len(everything) == 12
    wanted = [row["id"] for row in sorted(everything, key=lambda row: _key(row, name), reverse=way == "-")]
    assert [row["id"] for row in rows(cluster, f"sort={way}{name}")] == wanted
    for offset in range(0, 14, 3):
        page = cluster.get(f"{TASKS}?sort={way}{name}&offset={offset}&limit=4")
        assert [row["id"] for row in page["tasks"]] == wanted[offset : offset + 4]
        assert page["total"] == 12


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("q=TRAIN", [11, 9, 7, 5, 3, 1]),
        ("q=seed%201", [12, 11, 10, 1]),
        ("q=task-1", [12, 11, 10, 1]),
        ("q=train&status=success", [3, 1]),
        ("q=train&tenant=shop", [9, 3]),
        ("q=train&tenant=shop&status=pending", [9]),
        ("q=python&status=failed,timeout", [2]),
        ("q=nothing+like+this", []),
        ("q=%25", []),
        ("q=_", []),
        ("q=%E8%AE%AD%E7%BB%83", []),
        ("q=train&sort=created_at", [1, 3, 5, 7, 9, 11]),
        ("q=train&offset=2", [7, 5, 3, 1]),
        ("q=train&name=Train-1", [11, 1]),
    ],
)
def test_a_search_finds_parts_of_name_command_and_id(cluster: RestCluster, query: str, found: list[int]) -> None:
    assert ids(cluster, query) == found
    total = cluster.get(f"{TASKS}?{query}&limit=1")["total"]
    assert total == len(found) + (2 if "offset=2" in query else 0)


def test_a_search_can_be_paged_by_cursor_and_by_offset(cluster: RestCluster) -> None:
    seen, cursor = [], ""
    while True:
        page = cluster.get(f"{TASKS}?q=run.py&limit=5{cursor}")
        seen += [row["id"] for row in page["tasks"]]
        assert page["total"] == 12
        if page["next_cursor"] is None:
            break
        cursor = f"&cursor={page['next_cursor']}"
    assert seen == [f"task-{number}" for number in range(12, 0, -1)]
    jumped = cluster.get(f"{TASKS}?offset=3&limit=2")
    assert [row["id"] for row in jumped["tasks"]] == ["task-9", "task-8"]
    after = cluster.get(f"{TASKS}?limit=2&cursor={jumped['next_cursor']}")
    assert [row["id"] for row in after["tasks"]] == ["task-7", "task-6"]


def test_a_summary_has_the_fields_of_a_table(cluster: RestCluster) -> None:
    fields = "id name status tenant_id user project class priority gpu_count gpu_model node_id created_at started_at"
    wanted = {*fields.split(), "finished_at", "exit_code", "reason", "reason_code", "expected_start"}
    whole = {row["id"]: row for row in rows(cluster)}
    for row in rows(cluster, "fields=summary"):
        assert set(row) == wanted
        assert {name: row[name] for name in wanted - {"expected_start"}} == {
            name: whole[row["id"]][name] for name in wanted - {"expected_start"}
        }


@pytest.mark.parametrize(
    ("query", "field", "words"),
    [
        ("sort=nmae", "sort", 'did you mean "name"'),
        ("sort=--name", "sort", "sort"),
        ("sort=", "sort", "known values"),
        ("offset=-1", "offset", "from 0 to 1,000,000"),
        ("offset=1000001", "offset", "from 0 to 1,000,000"),
        ("fields=all", "fields", "summary"),
        ("q=", "q", "give it a value"),
        ("q=a%00b", "q", "NUL"),
        (f"q={'x' * 201}", "q", "at most 200 characters"),
        ("cursor=YmVmb3JlIDU%3D&offset=2", "offset", "cursor"),
        ("cursor=YmVmb3JlIDU%3D&sort=name", "sort", "cursor"),
    ],
)
def test_a_wrong_parameter_gets_one_sentence(cluster: RestCluster, query: str, field: str, words: str) -> None:
    reply = cluster.ask("GET", f"{TASKS}?{query}")
    assert reply.status == 400
    assert reply.error["field"] == field
    assert words in reply.error["message"]


def test_a_member_finds_and_counts_only_tasks_of_its_tenant(cluster: RestCluster) -> None:
    token = cluster.token_of("mia", Role.MEMBER, "shop")
    assert ids(cluster, "q=python", token=token) == [12, 9, 6, 3]
    page = cluster.get(f"{TASKS}?sort=name&offset=1&limit=2", token=token)
    assert page["total"] == 4
    assert {row["tenant_id"] for row in page["tasks"]} == {"shop"}
    assert cluster.ask("GET", f"{TASKS}?q=x&tenant=lab", token=token).status == 403
    assert cluster.ask("GET", f"{TASKS}/1/events", token=token).status == 404
    assert cluster.ask("GET", f"{TASKS}/3/events", token=token).status == 200


# --- the story of a task ---------------------------------------------------------------------------------------------


def names(cluster: RestCluster, number: int) -> list[str]:
    return [event["event"] for event in cluster.get(f"{TASKS}/{number}/events")["events"]]


def test_the_story_of_an_ended_task_is_complete(cluster: RestCluster) -> None:
    told = cluster.get(f"{TASKS}/2/events")
    assert (told["next_cursor"], told["left_out"]) == (None, 0)
    events = told["events"]
    assert [event["event"] for event in events] == [
        "TaskSubmitted", "TaskPlaced", "AttemptStarted", "AttemptEnded", "TaskEnded"
    ]  # fmt: skip
    assert [event["text"] for event in events[1:]] == [
        "GPUs were assigned on node n1 for attempt 1.",
        "Attempt 1 started.",
        "Attempt 1 failed with exit code 1.",
        "The task ended: failed.",
    ]
    assert events[0]["by"].startswith("local:")
    assert events[1]["node_id"] == "n1"
    assert events[1]["cause"] == "This was decided when it joined the queue."
    assert events[1]["data"]["allocated_gpus"][0].startswith("n1/")
    assert events[4]["cause_code"] == "exit_code"
    assert [event["at"] for event in events] == sorted(event["at"] for event in events)


def test_the_story_of_an_open_task_grows(tmp_path: Path) -> None:
    with RestCluster(tmp_path, gpus=1) as cluster:
        cluster.submit()
        cluster.submit()
        assert names(cluster, 2)[0] == "TaskSubmitted"
        cluster.ask("POST", f"{TASKS}/2/hold")
        cluster.ask("PATCH", f"{TASKS}/2", {"priority": 90})
        cluster.ask("POST", f"{TASKS}/2/release")
        assert [name for name in names(cluster, 2) if not name.startswith("Reservation")] == [
            "TaskSubmitted", "TaskHeld", "PriorityChanged", "TaskReleased"
        ]  # fmt: skip
        first = cluster.get(f"{TASKS}/2/events?limit=2")
        rest = cluster.get(f"{TASKS}/2/events?cursor={first['next_cursor']}")
        assert first["events"] + rest["events"] == cluster.get(f"{TASKS}/2/events")["events"]
        assert rest["next_cursor"] is None
        assert cluster.ask("GET", f"{TASKS}/2/events?cursor=x").error["field"] == "cursor"
        assert cluster.ask("GET", f"{TASKS}/99/events").status == 404


def test_the_story_survives_restarts_before_and_after_the_end(tmp_path: Path) -> None:
    with RestCluster(tmp_path) as cluster:
        cluster.tell(SetSplit(Split(0.5, 0.5, QuotaMode.BORROW)))
        cluster.submit(name="long")
        cluster.submit(name="short")
        end(cluster, 2)
        before = cluster.get(f"{TASKS}/1/events")["events"]
        ended = cluster.get(f"{TASKS}/2/events")["events"]
    with RestCluster(tmp_path) as cluster:
        assert cluster.get(f"{TASKS}/1/events")["events"] == before
        assert cluster.get(f"{TASKS}/2/events")["events"] == ended
        end(cluster, 1)
        until(lambda: 1 not in cluster.scheduler.views.tasks)
        whole = cluster.get(f"{TASKS}/1/events")["events"]
        assert whole[: len(before)] == before
        assert [event["event"] for event in whole[len(before) :]] == ["AttemptStarted", "AttemptEnded", "TaskEnded"]
    with RestCluster(tmp_path) as cluster:
        assert cluster.get(f"{TASKS}/1/events")["events"] == whole


def test_the_python_client_searches_pages_and_tells_stories(cluster: RestCluster) -> None:
    with connect(f"http://127.0.0.1:{cluster.port}") as client:
        assert [task.id for task in client.tasks(query="Train", tenant="shop")] == ["task-9", "task-3"]
        page = client.page(sort="name", offset=2, limit=3, query="run.py")
        assert [task.id for task in page.tasks] == [row["id"] for row in rows(cluster, "sort=name")][2:5]
        assert [event.event for event in client.events("task-2")][-1] == "TaskEnded"
        seen = client.preview("true", gpu_count=9)
        assert (seen.would_start, seen.reason_code) == ("never", "NodeTooSmall")
        assert len(client.timeline(node="n1").lanes) == 4
