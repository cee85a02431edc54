"""The overview and the live stream of a scheduler, over HTTP."""

import base64
import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from gpuyard.core.domain.commands import CordonNode, JoinNode, LoseNode, ReportEnded, ReportStarted, SetGpuHealth
from gpuyard.core.domain.values import GpuHealth, NodeId, Outcome, TaskId
from gpuyard.live.control_plane.access.principal import Role
from gpuyard.live.control_plane.live_feed import MOST_CHANGED
from gpuyard.live.control_plane.rest import open_streams, overview
from gpuyard.live.wire import agents_pb2 as pb
from tests.acceptance.rest_cluster import RestCluster
from tests.acceptance.waiting import until

OVERVIEW, LIVE = "/api/v1/overview", "/api/v1/live"


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[RestCluster]:
    with RestCluster(tmp_path) as cluster:
        yield cluster


class Stream:
    """One viewer of the live stream."""

    def __init__(self, connection: socket.socket) -> None:
        self.file = connection.makefile("rb")
        while self.file.readline() not in {b"\r\n", b""}:
            pass

    def next(self) -> tuple[str, dict[str, Any]]:
        """The next message: its event and its data."""
        event = ""
        while True:
            line = self.file.readline()
            assert line, "the stream has ended"
            if line.startswith(b"event: "):
                event = line[7:].strip().decode()
            elif line.startswith(b"data: "):
                return event, json.loads(line[6:])

    def until(self, wanted: Any) -> tuple[str, dict[str, Any]]:
        """The next message for whose data `wanted` holds."""
        for _ in range(10):
            message = self.next()
            if wanted(message[1]):
                return message
        raise AssertionError("no such message in ten seconds")

    @property
    def has_ended(self) -> bool:
        """Whether the server has ended the stream."""
        try:
            while self.file.readline() not in {b"0\r\n", b""}:  # the last chunk, or a closed connection
                pass
        except ConnectionError:
            pass
        return True


@contextmanager
def watching(cluster: RestCluster, token: str | None = None) -> Iterator[Stream]:
    with cluster.socket() as connection:
        said = f"GET {LIVE} HTTP/1.1\r\nHost: 127.0.0.1:{cluster.port}\r\n"
        said += f"Authorization: Bearer {token}\r\n\r\n" if token else "\r\n"
        connection.sendall(said.encode())
        stream = Stream(connection)
        with stream.file:
            yield stream


def reports(cluster: RestCluster, node: str, *uses: pb.GpuUse) -> None:
    """Have a node without an agent report the use of its GPUs."""

    async def hear() -> None:
        cluster.scheduler.agents.telemetry[NodeId(node)] = pb.Heartbeat(at=1.0, gpus=uses)

    cluster.inside(hear)


def cards(data: dict[str, Any]) -> list[tuple[int, ...]]:
    """The samples: state, utilization, memory, temperature, power of each card."""
    raw = base64.b64decode(data["samples"])
    assert len(raw) % 6 == 0
    return [
        (*raw[place : place + 4], int.from_bytes(raw[place + 4 : place + 6], "little"))
        for place in range(0, len(raw), 6)
    ]


def test_one_request_tells_the_state_of_the_cluster(cluster: RestCluster) -> None:
    cluster.submit(priority="high", gpu_count=2, tenant_id="lab", name="train")
    cluster.submit(priority="low", gpu_count=1)
    cluster.submit(priority="low", gpu_count=4)
    cluster.tell(ReportStarted(TaskId(1), 1))
    cluster.tell(JoinNode(cluster.node("n2", 3)))
    cluster.tell(LoseNode(NodeId("n2")))
    cluster.tell(SetGpuHealth(NodeId("n1"), 3, GpuHealth.EXTERNAL))
    told = cluster.get(OVERVIEW)
    assert told["gpus"] == {"total": 7, "idle": 0, "busy": 3, "external": 1, "offline": 3}
    assert told["tasks"] == {"pending": 2, "running": 1, "suspended": 0}
    assert told["nodes"] == {"total": 2, "online": 1, "away": 0, "offline": 1}
    assert told["classes"] == [
        {"class": "online", "running": 1, "pending": 0, "gpus": 2},
        {"class": "batch", "running": 0, "pending": 2, "gpus": 1},
    ]
    assert told["tenants"] == [
        {"tenant_id": "default", "running": 0, "pending": 2, "gpus": 1},
        {"tenant_id": "lab", "running": 1, "pending": 0, "gpus": 2},
    ]
    assert told["quota"] == cluster.get("/api/v1/quota")
    assert told["longest_wait_seconds"] >= 0
    assert told["alerts"] == {"firing": 0, "pending": 0}
    assert told["changes"][0]["text"] == "Node n1 reports that GPU 3 is used by a program outside gpuyard."
    texts = [change["text"] for change in told["changes"]]
    assert "train (task-1) started." in texts
    assert "Node n2 was lost: its agent is silent." in texts
    assert "task-2 got 1 GPU on n1." in texts


def test_the_overview_tells_whether_plans_can_be_computed(
    cluster: RestCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert cluster.get(OVERVIEW)["can_plan"] is True
    monkeypatch.setattr(overview, "find_spec", lambda name: None if name == "numba" else name)
    overview.can_plan.cache_clear()
    assert not overview.can_plan()
    overview.can_plan.cache_clear()


def test_the_expected_wait_is_that_of_the_task_in_the_middle_of_the_queue(cluster: RestCluster) -> None:
    assert cluster.get(OVERVIEW)["longest_wait_seconds"] is None
    cluster.submit(priority="high", gpu_count=3, estimated_seconds=600)
    cluster.tell(ReportStarted(TaskId(1), 1))
    cluster.submit(priority="high", gpu_count=3, estimated_seconds=100)
    waits = until(lambda: cluster.get(OVERVIEW)["expected_wait_seconds"])
    assert 500 < waits <= 600


def test_held_tasks_do_not_count_and_the_middle_is_that_of_the_queue(cluster: RestCluster) -> None:
    for estimate, priority in ((600, "high"), (1000, "low"), (100, "high"), (100, "high")):
        cluster.submit(priority=priority, gpu_count=3, estimated_seconds=estimate)
    cluster.tell(ReportStarted(TaskId(1), 1))
    for number in range(5, 9):
        cluster.submit(priority="high", gpu_count=3)
        assert cluster.ask("POST", f"/api/v1/tasks/{number}/hold").status == 200
    cluster.submit(priority="high", gpu_count=3, depends_on=["task-1"])
    order = [(cluster.get(f"/api/v1/tasks/{number}/explain")["ahead"], number) for number in (2, 3, 4)]
    assert order == [(2, 2), (0, 3), (1, 4)]
    waits = until(lambda: cluster.get(OVERVIEW)["expected_wait_seconds"])
    assert 600 < waits <= 700, "that of task-4"


def test_the_longest_wait_begins_when_a_task_is_queued_again(cluster: RestCluster) -> None:
    cluster.submit(priority="high", retries=3)
    cluster.tell(ReportStarted(TaskId(1), 1))
    view, clock = cluster.scheduler.views.tasks[TaskId(1)], cluster.scheduler.clock
    until(lambda: clock() > view.submitted_at + 1, 20, "it has run for a while")
    cluster.tell(CordonNode(NodeId("n1")))
    cluster.tell(ReportEnded(TaskId(1), 1, Outcome.FAILED, 1))
    assert view.waits_since is not None
    assert view.waits_since > view.submitted_at + 1
    longest = cluster.get(OVERVIEW)["longest_wait_seconds"]
    assert 0 <= longest <= clock() - view.waits_since
    cluster.submit(priority="high", depends_on=["task-1"])
    assert cluster.ask("POST", "/api/v1/tasks/1/hold").status == 200
    until(lambda: cluster.get(OVERVIEW)["longest_wait_seconds"] is None, 20, "no task waits for GPUs")


def test_changes_are_shown_after_a_restart(tmp_path: Path) -> None:
    with RestCluster(tmp_path) as cluster:
        cluster.submit(name="train")
    with RestCluster(tmp_path) as cluster:
        texts = [change["text"] for change in cluster.get(OVERVIEW)["changes"]]
        assert "train (task-1) was submitted." in texts
        assert "Node n1 joined with 4 GPUs." in texts


def test_a_member_sees_the_tasks_of_its_own_tenant_only(cluster: RestCluster) -> None:
    cluster.submit(priority="high", tenant_id="lab", name="secret")
    cluster.submit(priority="high", tenant_id="shop")
    alice = cluster.token_of("alice", Role.MEMBER, "lab")
    bob = cluster.token_of("bob", Role.MEMBER, "shop")
    told = cluster.get(OVERVIEW, token=bob)
    assert told["gpus"]["busy"] == 2
    assert told["tasks"] == {"pending": 1, "running": 0, "suspended": 0}
    assert [tenant["tenant_id"] for tenant in told["tenants"]] == ["shop"]
    assert sum(each["gpus"] for each in told["classes"]) == 1
    assert "secret" not in str(told)
    assert {change["task_id"] for change in told["changes"]} == {"task-2", None}
    with watching(cluster, alice) as of_alice, watching(cluster, bob) as of_bob, watching(cluster) as of_all:
        assert of_alice.next()[1]["holders"] == ["task-1", None, None, None]
        assert of_bob.next()[1]["holders"] == [None, "task-2", None, None]
        assert of_all.next()[1]["holders"] == ["task-1", "task-2", None, None]
        cluster.submit(priority="high", tenant_id="lab")
        changed = of_alice.until(lambda data: "holders" in data)[1]
        assert (changed["holders"], changed["changed_tasks"]) == (["task-1", None, "task-3", None], ["task-3"])
        assert changed["tasks"]["pending"] == 2
        assert of_all.until(lambda data: "holders" in data)[1]["changed_tasks"] == ["task-3"]
        for _ in range(2):
            event, data = of_bob.next()
            assert (event, data["changed_tasks"], "holders" in data) == ("sample", [], False)
            assert data["tasks"]["pending"] == 1


def test_a_viewer_gets_a_snapshot_and_then_samples(cluster: RestCluster) -> None:
    cluster.submit(gpu_count=1)
    full = pb.GpuUse(index=0, utilization_percent=99.0, memory_used_mib=12288, temperature_c=65.4, power_watts=301.0)
    reports(cluster, "n1", full, pb.GpuUse(index=1, utilization_percent=0.0))
    with watching(cluster) as stream:
        event, first = stream.next()
        assert event == "snapshot"
        assert first["cards"][1] == {
            "gpu_id": "n1/1", "node_id": "n1", "device_index": 1, "model": "RTX4090", "memory_mb": 24576
        }  # fmt: skip
        assert cards(first) == [
            (1, 99, 50, 65, 301),
            (0, 0, 255, 255, 65535),
            (0, 255, 255, 255, 65535),
            (0, 255, 255, 255, 65535),
        ]
        assert first["holders"] == ["task-1", None, None, None]
        event, second = stream.next()
        assert event == "sample"
        assert set(second) == {
            "at", "build", "gpus", "tasks", "nodes", "alerts", "generation", "samples", "changed_tasks"
        }  # fmt: skip
        assert second["at"] > first["at"]
        cluster.tell(ReportStarted(TaskId(1), 1))
        cluster.tell(ReportEnded(TaskId(1), 1, Outcome.SUCCEEDED, 0))
        _, ended = stream.until(lambda data: "holders" in data)
        assert (ended["holders"], ended["gpus"]["busy"], cards(ended)[0][0]) == ([None] * 4, 0, 0)
        assert ended["changed_tasks"] == ["task-1"]


def test_a_change_of_the_cards_brings_a_new_snapshot(cluster: RestCluster) -> None:
    with watching(cluster) as stream:
        first = stream.next()[1]
        cluster.tell(JoinNode(cluster.node("n0", 2)))
        event, data = stream.until(lambda data: data["generation"] != first["generation"])
        assert event == "snapshot"
        assert [card["gpu_id"] for card in data["cards"]] == ["n0/0", "n0/1", "n1/0", "n1/1", "n1/2", "n1/3"]
        cluster.tell(CordonNode(NodeId("n0")))
        cluster.tell(LoseNode(NodeId("n0")))
        event, data = stream.until(lambda data: data["nodes"]["offline"])
        assert (event, [card[0] for card in cards(data)]) == ("sample", [3, 3, 0, 0, 0, 0])


def test_a_burst_of_changes_is_cut_and_says_so(cluster: RestCluster) -> None:
    with watching(cluster) as stream:
        stream.next()
        batch = {"tasks": [{"gpu_count": 1, "command": "true"}] * (MOST_CHANGED + 50)}
        assert cluster.ask("POST", "/api/v1/tasks:batch", batch).status == 201
        _, data = stream.until(lambda data: data["changed_tasks"])
        assert (len(data["changed_tasks"]), data["changed_more"]) == (MOST_CHANGED, True)


def test_nothing_is_made_while_nobody_watches(cluster: RestCluster) -> None:
    live = cluster.scheduler.live
    with watching(cluster) as one, watching(cluster) as other:
        one.next(), one.next(), other.next()
        assert live.viewers == 2
    until(lambda: live.viewers == 0)
    assert not live.ticking
    before = live.ticks
    with watching(cluster) as again:
        assert again.next()[0] == "snapshot"
        assert live.ticks == before


def test_the_stream_ends_with_the_scheduler_and_with_the_right_to_see_it(tmp_path: Path) -> None:
    with RestCluster(tmp_path) as cluster:
        token = cluster.token_of("alice", Role.MEMBER, "lab")
        with watching(cluster, token) as stream:
            stream.next()
            cluster.access.remove_user("alice")
            assert stream.has_ended
        with watching(cluster) as stream:
            stream.next()
            cluster.loop.call_soon_threadsafe(cluster.scheduler.live.close)
            assert stream.has_ended


def test_one_user_does_not_take_the_streams_of_others(cluster: RestCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(open_streams, "MOST_OF_ONE", 2)
    eve, bob = (cluster.token_of(name, Role.VIEWER, "lab") for name in ("eve", "bob"))
    with watching(cluster, eve) as first, watching(cluster, eve):
        first.next()
        refused = cluster.ask("GET", LIVE, token=eve)
        assert (refused.status, refused.error["code"]) == (429, "TooManyStreams")
        assert refused.error["message"].startswith("eve has 2 streams open, the maximum for one user.")
        assert cluster.ask("GET", "/api/v1/nodes", token=eve).status == 200
        with watching(cluster, bob) as other:
            assert other.next()[0] == "snapshot"
    until(lambda: cluster.scheduler.live.viewers == 0, 20, "they have left")
    with watching(cluster, eve) as again:
        assert again.next()[0] == "snapshot"
