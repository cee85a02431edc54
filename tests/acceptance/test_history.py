"""The history of the cluster, of GPUs, nodes and tasks, over HTTP."""

import json
import urllib.request
from base64 import b64decode
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from gpuyard.core.domain.commands import JoinNode, RemoveNode, ReportEnded, ReportStarted
from gpuyard.core.domain.values import NodeId, Outcome, TaskId
from gpuyard.live.control_plane.access.principal import Role
from gpuyard.live.control_plane.settings import MonitorSection, ServerSettings
from gpuyard.live.wire import agents_pb2 as pb
from gpuyard.live.wire.config import Duration, DurationGivenInHours
from tests.acceptance.cli_cluster import running_cluster
from tests.acceptance.rest_cluster import Reply, RestCluster
from tests.acceptance.waiting import until

HISTORY, GPU, NODE = "/api/v1/history", "/api/v1/gpus/n1/0/history", "/api/v1/nodes/n1/history"


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RestCluster]:
    """A cluster for questions that change nothing."""
    with RestCluster(tmp_path_factory.mktemp("history")) as cluster:
        until(lambda: known(cluster.get(HISTORY)["series"]["gpus_total"]))
        yield cluster


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[RestCluster]:
    with RestCluster(tmp_path) as cluster:
        yield cluster


def known(values: list[float | None]) -> list[float]:
    """The values that are not null."""
    return [value for value in values if value is not None]


def reports(cluster: RestCluster, node: str, beat: pb.Heartbeat, latency_seconds: float) -> None:
    """Have a node without an agent send a heartbeat."""

    async def hear() -> None:
        cluster.scheduler.agents.telemetry[NodeId(node)] = beat
        cluster.scheduler.agents.latencies[NodeId(node)] = latency_seconds

    cluster.inside(hear)


def test_what_a_node_reports_is_in_the_history_of_its_gpus_of_itself_and_of_the_cluster(cluster: RestCluster) -> None:
    use = pb.GpuUse(index=0, utilization_percent=80.0, memory_used_mib=12288, temperature_c=61.0, power_watts=250.5)
    host = pb.Host(cpu_percent=12.5, memory_used_mib=16384, memory_mib=65536)
    reports(cluster, "n1", pb.Heartbeat(at=1.0, host=host, gpus=[use]), 0.0014)
    cluster.submit(priority="high")
    until(lambda: 100 in cluster.get(f"{GPU}?step=1")["series"]["allocated"])
    of_gpu = cluster.get(f"{GPU}?step=1")
    newest = {name: known(values)[-1] for name, values in of_gpu["series"].items()}
    assert newest == {
        "utilization": 80, "memory_mb": pytest.approx(12288, abs=1), "temperature": 61, "power_watts": 250.5,
        "allocated": 100,
    }  # fmt: skip
    assert of_gpu["times"] == [of_gpu["from"] + second for second in range(int(of_gpu["to"] - of_gpu["from"]))]
    of_node = cluster.get(NODE)
    assert {name: known(values)[-1] for name, values in of_node["series"].items() if "max" not in name} == {
        "cpu_percent": 12.5, "memory_percent": 25, "network_latency_ms": 1.4
    }  # fmt: skip
    until(lambda: known(cluster.get(f"{HISTORY}?step=1")["series"]["energy_joules"]))
    whole = {name: known(values)[-1] for name, values in cluster.get(f"{HISTORY}?step=1")["series"].items()}
    assert 0 < whole.pop("energy_joules") <= 2 * 251, "a delayed sample counts for two seconds at most"
    assert whole == {
        "gpus_total": 4, "gpus_busy": 1, "gpus_idle": 3, "gpus_offline": 0, "gpus_external": 0, "tasks_pending": 1,
        "tasks_running": 0, "tasks_suspended": 0, "utilization": 80, "power_watts": 250.5,
    }  # fmt: skip
    assert known(cluster.get("/api/v1/gpus/n1/1/history")["series"]["utilization"]) == []


def test_the_history_of_a_task_is_that_of_its_gpus_from_start_to_end(cluster: RestCluster) -> None:
    cluster.submit(priority="high", gpu_count=2)
    path = "/api/v1/tasks/task-1/history"
    assert cluster.get(path) == {"from": None, "to": None, "step": 1, "times": [], "gpus": [], "gpus_total": 2}
    cluster.tell(ReportStarted(TaskId(1), 1))
    uses = [pb.GpuUse(index=index, utilization_percent=90.0) for index in range(2)]
    reports(cluster, "n1", pb.Heartbeat(at=1.0, gpus=uses), 0.001)
    until(lambda: known(cluster.get(path)["gpus"][1]["series"]["utilization"]))
    cluster.tell(ReportEnded(TaskId(1), 1, Outcome.SUCCEEDED, 0))
    told, task = cluster.get(path), cluster.get("/api/v1/tasks/task-1")
    assert [gpu["gpu_id"] for gpu in told["gpus"]] == task["allocated_gpus"] == ["n1/0", "n1/1"]
    assert known(told["gpus"][0]["series"]["utilization"])[-1] == 90
    assert 0 < told["to"] - told["from"] < 60
    bob = cluster.token_of("bob", Role.MEMBER, "shop")
    assert cluster.ask("GET", path, token=bob).status == 404


def test_members_see_the_history_of_the_cluster_and_no_tasks_of_others(cluster: RestCluster) -> None:
    cluster.submit(priority="high", tenant_id="lab")
    bob = cluster.token_of("bob", Role.MEMBER, "shop")
    until(lambda: 100 in cluster.get(f"{GPU}?step=1", token=bob)["series"]["allocated"])
    assert cluster.get(HISTORY, token=bob)["series"]["gpus_busy"]
    until(lambda: any(it["allocated"] for it in cluster.get("/api/monitor/history/0")))
    mine, others = cluster.get("/api/monitor/history/0")[-1], cluster.get("/api/monitor/history/0", token=bob)[-1]
    assert (mine["allocated"], mine["task_id"], mine["tenant_id"]) == (True, "task-1", "lab")
    assert (others["allocated"], others["task_id"], others["tenant_id"]) == (True, "", "")


def test_a_gpu_that_has_left_keeps_its_history_also_after_a_restart(tmp_path: Path) -> None:
    path = "/api/v1/gpus/n2/0/history?step=1&series=allocated"
    with RestCluster(tmp_path) as cluster:
        assert cluster.ask("GET", path).status == 404
        cluster.tell(JoinNode(cluster.node("n2", 1)))
        until(lambda: known(cluster.get(path)["series"]["allocated"]))
        cluster.tell(RemoveNode(NodeId("n2")))
        before = until(lambda: known(cluster.get(path)["series"]["allocated"]))
    with RestCluster(tmp_path) as cluster:
        assert len(known(cluster.get(path)["series"]["allocated"])) >= len(before)


WRONG = [
    ("from=20&to=10", "EmptyRange", "from must be before to."),
    ("from=10&to=10", "EmptyRange", "from must be before to."),
    ("from=253402300000", "EmptyRange", "from must be before to."),
    ("to=0", "EmptyRange", "to is at the beginning of time; give a later one."),
    ("from=NaN", "WrongParameter", 'from is "NaN"; it must be between the years 1970 and 9999.'),
    ("to=inf", "WrongParameter", 'to is "inf"; it must be between the years 1970 and 9999.'),
    ("from=yesterday", "WrongParameter", 'from is "yesterday"; it must be a time such as'),
    ("step=0", "WrongParameter", 'step is "0"; it must be a whole number from 1 to 31,622,400.'),
    ("step=-1", "WrongParameter", 'step is "-1"; it must be a whole number'),
    ("step=1.5", "WrongParameter", 'step is "1.5"; it must be a whole number'),
    ("series=utilisation", "WrongParameter", 'series is "utilisation"; did you mean "utilization"?'),
    ("series=utilization,", "WrongParameter", 'series is "";'),
    ("stpe=1", "UnknownParameter", 'Unknown query parameter "stpe"; did you mean "step"?'),
]


@pytest.mark.parametrize(("query", "code", "sentence"), WRONG, ids=[it[0] for it in WRONG])
def test_a_wrong_question_gets_one_sentence(shared: RestCluster, query: str, code: str, sentence: str) -> None:
    for path in (HISTORY, GPU):
        reply: Reply = shared.ask("GET", f"{path}?{query}")
        assert (reply.status, reply.error["code"]) == (400, code)
        assert reply.error["message"].startswith(sentence)


def test_things_that_do_not_exist_have_no_history(shared: RestCluster) -> None:
    for path in ("gpus/n1/4", "gpus/n1/x", "gpus/n9/0", "gpus/n1/00", "nodes/n9", "tasks/task-9"):
        reply = shared.ask("GET", f"/api/v1/{path}/history")
        assert (reply.status, reply.error["message"].endswith(".")) == (404, True), path
    assert shared.ask("GET", "/api/v1/gpus/n1%2F0/history").status == 200, "an id may be encoded as a whole"


@pytest.mark.parametrize(
    ("query", "step", "points"),
    [
        ("", 10, 361),
        ("from=0", 86_400, 367),
        ("from=0&to=253402300799", 86_400, 367),
        ("from=0&step=1", 3600, 8762),
        ("from=0&to=100", 1, 0),
    ],
)
def test_any_range_is_answered_with_a_bounded_number_of_values(
    shared: RestCluster, query: str, step: int, points: int
) -> None:
    told = shared.get(f"{HISTORY}?{query}")
    assert told["step"] == step
    assert points - 2 <= len(told["times"]) <= points
    assert all(len(values) == len(told["times"]) for values in told["series"].values())


def test_a_step_that_gives_too_many_values_is_refused_with_one_that_does(tmp_path: Path) -> None:
    ten_years = MonitorSection(retention=DurationGivenInHours(10 * 365 * 86_400))
    with RestCluster(tmp_path, settings=ServerSettings(monitor=ten_years)) as cluster:
        reply = cluster.ask("GET", f"{HISTORY}?from=0&step=3600")
        assert (reply.status, reply.error["code"]) == (400, "TooManyValues")
        step = reply.error["message"].split("at least ")[1].split(" ")[0]
        assert len(cluster.get(f"{HISTORY}?from=0&step={step}")["times"]) <= 11_000


def test_the_interval_of_samples_is_a_setting(tmp_path: Path) -> None:
    for seconds, gap in ((1, {1}), (2, {2})):
        monitor = MonitorSection(interval=Duration(seconds))
        with RestCluster(tmp_path / str(seconds), settings=ServerSettings(monitor=monitor)) as cluster:

            def times(cluster: RestCluster = cluster) -> list[float]:
                told = cluster.get(f"{HISTORY}?step=1&series=gpus_total")
                pairs = zip(told["times"], told["series"]["gpus_total"], strict=True)
                return [at for at, value in pairs if value is not None]

            found = until(lambda: found if len(found := times()) >= 3 else None)
            between = {int(later - earlier) for earlier, later in pairwise(found)}
            assert gap <= between, "a busy machine may leave out a sample"
            assert min(between) == min(gap)


def test_the_retention_is_a_setting(tmp_path: Path) -> None:
    short = ServerSettings(monitor=MonitorSection(retention=DurationGivenInHours(120)))
    with RestCluster(tmp_path, settings=short) as cluster:
        told = cluster.get(f"{HISTORY}?from=0&step=1")
        assert 119 <= len(told["times"]) <= 123


def test_a_monitor_that_is_off_has_no_history_and_no_file(tmp_path: Path) -> None:
    with RestCluster(tmp_path, settings=ServerSettings(monitor=MonitorSection(enabled=False))) as cluster:
        for path in (HISTORY, GPU, NODE, "/api/monitor/history", "/api/monitor/history/0"):
            reply = cluster.ask("GET", path)
            assert (reply.status, reply.error["code"]) == (404, "MonitorOff")
            assert "monitor.enabled" in reply.error["message"]
        assert cluster.get("/api/v1/overview")["gpus"]["total"] == 4
    assert not list(tmp_path.glob("history*"))


def test_a_damaged_file_does_not_keep_the_scheduler_from_starting(tmp_path: Path) -> None:
    (tmp_path / "history.sqlite").write_bytes(b"x" * 10_000)
    with RestCluster(tmp_path) as cluster:
        until(lambda: known(cluster.get(HISTORY)["series"]["gpus_total"]))


def test_up_shows_the_use_of_its_gpus_live_and_in_the_history_also_after_a_restart(tmp_path: Path) -> None:
    with running_cluster(tmp_path) as cluster:
        node = cluster.client().nodes().nodes[0].id

        def get(path: str) -> Any:
            with urllib.request.urlopen(f"{cluster.url}/api/v1{path}", timeout=20) as answer:
                return json.load(answer)

        def use(gpu: str) -> list[float]:
            return known(get(f"/gpus/{gpu}/history?step=1&series=utilization")["series"]["utilization"])

        task = cluster.client().submit("sleep 600", gpu_count=1, priority="high")
        gpu = until(lambda: get(f"/tasks/{task.id}")["allocated_gpus"])[0]
        place, other = int(gpu.rpartition("/")[2]), f"{node}/{(int(gpu.rpartition('/')[2]) + 1) % 4}"
        with urllib.request.urlopen(f"{cluster.url}/api/v1/live", timeout=20) as stream:
            for line in stream:
                if line.startswith(b"data: "):
                    data = json.loads(line[6:])
                    state, utilization, memory, *_ = b64decode(data["samples"])[6 * place :]
                    if (state, utilization) == (1, 100):
                        break  # the node has reported it
        assert memory == 0, "a virtual GPU uses what its tasks declare, here nothing"
        assert data["gpus"] == {"total": 4, "idle": 3, "busy": 1, "external": 0, "offline": 0}
        until(lambda: 100 in use(gpu), what="use of the GPU in the history")
        assert set(until(lambda: use(other))) == {0}
        of_task = until(lambda: told if (told := get(f"/tasks/{task.id}/history"))["gpus"] else None)
        assert of_task["gpus"][0]["gpu_id"] == gpu
        assert 100 in of_task["gpus"][0]["series"]["utilization"]
        latency = until(lambda: known(get(f"/nodes/{node}/history")["series"]["network_latency_ms"]))
        assert 0 < latency[-1] < 1300
        host = get(f"/nodes/{node}/history")["series"]
        assert 0 < known(host["memory_percent"])[-1] < 100
        assert known(host["cpu_percent"])
        before = use(gpu)
        assert cluster.interrupt() == 0
        cluster.up()
        assert len(use(gpu)) >= len(before)
        cluster.client().cancel(task.id)
        until(lambda: use(gpu)[-1] == 0, what="the end of the use in the history")
        ended = [change for change in get("/overview")["changes"] if change["event"] == "TaskEnded"]
        assert ended[0]["task_id"] == task.id
