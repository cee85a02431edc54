"""The Python client: calls become API requests, answers become values."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

import gpuyard
from gpuyard.core.domain.errors import WrongInput
from gpuyard.core.domain.values import TaskStatus
from gpuyard.live.sdk import Client, NotFound, TaskFailed, TookTooLong
from gpuyard.live.sdk.client import Command, LeaseFields, NewTaskFields, TenantLimits, connect
from gpuyard.live.sdk.tokens import store_token, stored_token, tokens_file
from gpuyard.live.sdk.values import Task, TaskRef
from gpuyard.live.wire.answers import LeaseRequest, TenantRequest
from gpuyard.live.wire.tasks import TaskRequest
from tests.unit.live.sdk.fake_server import Answering, another_cluster, fake_server, refusal, task

SUCCESS = TaskStatus.SUCCESS


@pytest.fixture(autouse=True)
def _nothing_from_outside(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("GPUYARD_SERVER", "GPUYARD_TOKEN", "GPUYARD_CA"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))


def encoded_names(request: Any) -> set[str]:
    return set(request.__struct_encode_fields__)


def api_names(fields: Any) -> set[str]:
    return {"class" if name == "task_class" else name for name in fields.__annotations__}


def test_every_field_of_the_api_can_be_set() -> None:
    own = {"gpus", "memory", "gpu_memory", "max_running"}
    assert api_names(NewTaskFields) - own == encoded_names(TaskRequest)
    assert api_names(LeaseFields) - {"gpu_memory"} | {"gpu_count", "timeout"} == encoded_names(LeaseRequest)
    assert api_names(TenantLimits) == encoded_names(TenantRequest)


def test_limits_on_running_tasks_of_arrays_sweeps_and_batches() -> None:
    def answer(line: Answering) -> None:
        line.say({"tasks": [task(), task(8)]}, 201)

    with fake_server(answer) as server:
        cluster = gpuyard.connect(server.url)
        cluster.submit_all("true", max_running=2, array=4)
        cluster.sweep("train {lr}", {"lr": [1, 2]}, max_running=1)
        cluster.submit_together([{"command": "true"}] * 2, limits=[{"first": 0, "count": 2, "max_running": 1}])
        cluster.submit_together([{"command": "true"}])
        with pytest.raises(WrongInput, match="give array=N, or use sweep"):
            cluster.submit("true", max_running=2)

    array, sweep, batch, plain = (asked.body for asked in server.asked)
    assert array == {"command": "true", "array": {"count": 4, "max_running": 2}}
    assert sweep["limits"] == batch["limits"] == [{"first": 0, "count": 2, "max_running": 1}]
    assert [one["command"] for one in sweep["tasks"]] == ["train 1", "train 2"]
    assert not any("max_running" in one for one in sweep["tasks"])
    assert plain == {"tasks": [{"command": "true"}]}


def test_a_single_dependency_needs_no_list() -> None:
    with fake_server(lambda line: line.say(task(), 201)) as server:
        gpuyard.connect(server.url).submit("make", depends_on="task-3", after_any=4)
    assert (server.asked[0].body["depends_on"], server.asked[0].body["after_any"]) == (["task-3"], ["task-4"])


def test_python_values_become_api_values(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with fake_server(lambda line: line.say(task(), 201)) as server:
        cluster = gpuyard.connect(server.url)
        first = cluster.submit(["python", "a.py"], gpu_count=2, task_class="online", name=None)
        cluster.submit("make", depends_on=[first, "task-3", 4], work_dir=Path("here"))

    assert server.asked[0].body == {"command": ["python", "a.py"], "gpu_count": 2, "class": "online"}
    assert server.asked[1].body == {
        "command": "make",
        "depends_on": ["task-7", "task-3", "task-4"],
        "work_dir": str(tmp_path / "here"),
    }


def test_an_array_is_all_its_tasks() -> None:
    with fake_server(lambda line: line.say({"tasks": [task(7), task(8)]}, 201)) as server:
        made = connect(server.url).submit_all("true", array=2)

    assert [one.number for one in made] == [7, 8]
    assert server.asked[0].body["array"] == {"count": 2}


def test_many_tasks_are_sent_in_parts_and_returned_in_order() -> None:
    given = [0]

    def accepts(line: Answering) -> None:
        made = []
        for one in line.asked.body["tasks"]:
            for _ in range(one.get("array", {"count": 1})["count"]):
                given[0] += 1
                made.append(task(given[0], name=one["name"]))
        line.say({"tasks": made}, 201)

    wanted: list[NewTaskFields] = [{"command": "true", "name": f"t{number}"} for number in range(5002)]
    wanted[1]["tenant_id"] = "other"
    wanted[2]["array"] = 3
    with fake_server(accepts) as server:
        made = connect(server.url).submit_many(wanted)

    assert [len(asked.body["tasks"]) for asked in server.asked] == [5000, 1, 1]
    assert len({asked.headers["Idempotency-Key"] for asked in server.asked}) == 3
    assert [one.name for one in made[:6]] == ["t0", "t1", "t2", "t2", "t2", "t3"]
    assert len(made) == 5004


def test_tasks_sent_in_parts_can_depend_on_each_other_and_be_repeated() -> None:
    given = [0]

    def accepts(line: Answering) -> None:
        given[0] += len(line.asked.body["tasks"])
        count = len(line.asked.body["tasks"])
        line.say({"tasks": [task(given[0] - count + place + 1) for place in range(count)]}, 201)

    wanted: list[NewTaskFields] = [{"command": "true"} for _ in range(5002)]
    wanted[5000]["depends_on"] = ["tasks[7]", "task-1"]
    wanted[5001]["depends_on"] = ["tasks[5000]"]
    with fake_server(accepts) as server:
        connect(server.url).submit_many(wanted, idempotency_key="plan")
        with pytest.raises(WrongInput, match=r"tasks\[5001\] is not in the list before"):
            connect(server.url).submit_many([{"depends_on": ["tasks[5001]"]}, *wanted[1:]])

    first, last = server.asked[:2]
    assert [asked.headers["Idempotency-Key"] for asked in (first, last)] == ["plan", "plan-5000"]
    assert [one["depends_on"] for one in last.body["tasks"]] == [["task-8", "task-1"], ["tasks[0]"]]


def test_units_paths_and_numbers_are_converted() -> None:
    with fake_server(lambda line: line.say(task(), 201)) as server:
        cluster = connect(server.url)
        command: Command = ["python", Path("train.py"), "--lr", 0.1]
        cluster.submit(command, gpus="A100:2", gpu_memory="24G", memory="8G", timeout="2h", grace="90s", env={"A": 1})
        cluster.submit(Path("run.sh"), gpus=2, gpu_memory="24G", gpu_fraction=0.5, estimated_seconds="1h30m")
        for wrong in (
            {"gpus": 1, "gpu_count": 1},
            {"timeout": "2:00"},
            {"gpu_memory": "big"},
            {"gpus": "A:1", "gpu_model": "B"},
        ):
            with pytest.raises(WrongInput):
                cluster.submit("true", **wrong)

    first, second = (asked.body for asked in server.asked)
    assert first == {
        "command": ["python", "train.py", "--lr", "0.1"], "gpu_count": 2, "gpu_model": "A100", "gpu_memory_mb": 22856,
        "memory_mb": 8192, "timeout": 7200, "grace": 90, "env": {"A": "1"},
    }  # fmt: skip
    assert second == {
        "command": ["run.sh"], "gpu_count": 2, "gpu_memory_mb": 24576, "gpu_fraction": 0.5, "estimated_seconds": 5400,
    }  # fmt: skip


def test_a_list_is_read_page_by_page() -> None:
    pages = {"": ([task(3), task(2)], "next"), "next": ([task(1)], None)}

    def lists(line: Answering) -> None:
        tasks, cursor = pages["next" if "cursor=next" in line.asked.path else ""]
        line.say({"tasks": tasks, "total": 3, "next_cursor": cursor})

    with fake_server(lists) as server:
        found = connect(server.url).tasks(status=["pending", "running"], tenant="a&b")
        assert [one.number for one in found] == [3, 2, 1]

    assert server.asked[0].path == "/api/v1/tasks?status=pending%2Crunning&tenant=a%26b&limit=1000"


def test_odd_names_cannot_escape_their_place_in_the_path() -> None:
    with fake_server(lambda line: line.say({})) as server:
        connect(server.url).remove_node("../tasks/7?x#y")

    assert server.asked[0].path == "/api/v1/nodes/..%2Ftasks%2F7%3Fx%23y"


class Story:
    """A scheduler in which task 7 runs until it was queried so often, with or without events."""

    def __init__(self, *, asked_before_end: int, events: bool, status: TaskStatus = SUCCESS) -> None:
        self.left = asked_before_end
        self.events = events
        self.status = status

    def __call__(self, line: Answering) -> None:
        if line.asked.path.startswith("/api/v1/events"):
            if not self.events:
                line.say({"error": {"code": "NotFound", "message": "no"}}, 404)
                return
            line.begin_stream()
            line.wfile.write(b"retry: 2000\n\n: still here\n\ndata: not json\n\n")
            for kind, number in (("AttemptStarted", 7), ("TaskEnded", 9), ("TaskEnded", 7)):
                line.wfile.write(
                    b'id: 1\ndata: {"seq":1,"type":"%s","task_id":"task-%d"}\n\n' % (kind.encode(), number)
                )
            return
        self.left -= 1
        line.say(task(7, self.status if self.left < 0 else TaskStatus.RUNNING))


@pytest.mark.parametrize("events", [True, False])
def test_waiting_ends_when_the_task_does(events: bool) -> None:
    with fake_server(Story(asked_before_end=2, events=events)) as server:
        assert connect(server.url).wait("task-7", timeout=20).status is SUCCESS


def test_a_failed_task_raises_only_when_checked() -> None:
    with fake_server(Story(asked_before_end=0, events=True, status=TaskStatus.FAILED)) as server:
        cluster = connect(server.url)
        assert not cluster.wait(7).succeeded
        with pytest.raises(TaskFailed, match="task-7 ended as failed") as caught:
            cluster.wait([7], check=True)
        assert caught.value.task.number == 7


def test_waiting_ends_at_its_timeout() -> None:
    too_long = pytest.raises(TookTooLong, match=r"task-7 has not ended within 0\.3 s")
    with fake_server(Story(asked_before_end=10**6, events=False)) as server, too_long:
        connect(server.url).wait(7, timeout=0.3)


def test_a_disconnect_while_waiting_is_tolerated() -> None:
    story = Story(asked_before_end=3, events=True)

    def moody(line: Answering) -> None:
        if line.number % 3 == 1:
            line.hang_up()
        else:
            story(line)

    with fake_server(moody) as server:
        assert connect(server.url).wait(7, timeout=30).status is SUCCESS


def test_many_tasks_are_polled_in_the_list() -> None:
    tasks = [task(number, SUCCESS) for number in range(300, 0, -1)]

    def lists(line: Answering) -> None:
        line.say({"tasks": tasks, "total": 300, "next_cursor": None})

    with fake_server(lists) as server:
        ended = connect(server.url).wait(range(50, 201), timeout=20)

    assert [one.number for one in ended] == list(range(50, 201))
    assert [asked.path.split("?")[0] for asked in server.asked] == ["/api/v1/events", "/api/v1/tasks"]


def replaced_after_the_first_look(line: Answering) -> None:
    looks = [asked for asked in line.fake_server.asked if not asked.path.startswith("/api/v1/events")]
    if len(looks) == 1:
        line.say(task(7, TaskStatus.PENDING))
    else:
        another_cluster(line)


@pytest.mark.parametrize("given", ["task-7", task(7)])
@pytest.mark.parametrize(
    "wait",
    [
        lambda cluster, one: list(cluster.changes(one, idle_seconds=0.01)),
        lambda cluster, one: list(cluster.ends([one])),
        lambda cluster, one: cluster.granted(one),
    ],
)
def test_a_waiting_client_is_told_when_the_number_belongs_to_another_task(
    wait: Callable[[Client, TaskRef], object], given: Any
) -> None:
    ref = given if isinstance(given, str) else msgspec.convert(msgspec.to_builtins(given), Task)
    with fake_server(replaced_after_the_first_look) as server, pytest.raises(NotFound) as caught:
        wait(connect(server.url), ref)
    assert caught.value.code == "AnotherTask"


@pytest.mark.parametrize(
    "listed", [[task(number, SUCCESS, created_at="2026-01-01T00:00:00Z") for number in range(200, 0, -1)], []]
)
def test_tasks_replaced_or_missing_in_the_list_are_not_waited_for(listed: list[Any]) -> None:
    def lists(line: Answering) -> None:
        if line.asked.path.startswith("/api/v1/tasks?"):
            line.say({"tasks": listed, "total": len(listed), "next_cursor": None})
        else:
            line.say(refusal("AnotherTask", "It is another task here."), 404)

    tasks = [msgspec.convert(msgspec.to_builtins(task(number)), Task) for number in range(1, 151)]
    with fake_server(lists) as server, pytest.raises(NotFound):
        connect(server.url).wait(tasks, timeout=20)


@pytest.mark.parametrize(
    "act",
    [
        Client.cancel,
        Client.explain,
        Client.suspend,
        Client.release_lease,
        lambda cluster, one: b"".join(cluster.logs(one)),
    ],
)
def test_requests_for_a_replaced_task_are_not_found(act: Callable[[Client, Task], object]) -> None:
    one = msgspec.convert(msgspec.to_builtins(task(7)), Task)
    with fake_server(another_cluster) as server, pytest.raises(NotFound) as caught:
        act(connect(server.url), one)
    assert caught.value.code == "AnotherTask"


def test_a_token_is_stored_per_server_in_a_private_file() -> None:
    path = store_token("http://yard-1:8080/", "gy_one")
    store_token("http://yard-2:8080", "gy_two")

    assert stored_token("yard-1:8080") == "gy_one"
    assert stored_token("http://yard-3:8080") is None
    assert path.stat().st_mode & 0o777 == 0o600
    store_token("http://yard-1:8080", None)
    assert stored_token("http://yard-1:8080") is None
    tokens_file().write_text("no json")
    assert stored_token("http://yard-2:8080") is None


def test_the_client_is_imported_lazily() -> None:
    look = "import sys, gpuyard; print(*sys.modules); gpuyard.connect; gpuyard.Task; print(*sys.modules)"
    before, after = subprocess.run(
        [sys.executable, "-c", look], capture_output=True, text=True, check=True, timeout=60
    ).stdout.splitlines()

    assert not {"msgspec", "http.client", "gpuyard.live.sdk"} & set(before.split())
    assert "gpuyard.live.sdk.client" in after.split()
    assert not {"rich", "typer", "gpuyard.core.engine", "gpuyard.live.control_plane"} & set(after.split())
    with pytest.raises(AttributeError):
        _ = gpuyard.yard  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("word", "meant"),
    [
        ("gpu", "gpus"),
        ("num_gpus", "gpus"),
        ("ngpus", "gpus"),
        ("num_cpus", "cpu_count"),
        ("mem", "memory"),
        ("time", "timeout"),
        ("cwd", "work_dir"),
        ("after", "depends_on"),
    ],
)
def test_a_word_of_another_library_is_answered_with_ours_before_anything_is_sent(word: str, meant: str) -> None:
    fields: dict[str, Any] = {word: 1}
    with fake_server(lambda line: line.say(task(), 201)) as server:
        cluster = connect(server.url)
        for refused in (
            lambda: cluster.submit("true", **fields),
            lambda: cluster.submit_many([{"command": "true", **fields}]),  # type: ignore[typeddict-item]
            lambda: cluster.sweep("run {lr}", {"lr": [1, 2]}, **fields),
        ):
            with pytest.raises(WrongInput, match=f"'{word}'; did you mean '{meant}'\\?"):
                refused()
    assert server.asked == []


def test_a_field_that_only_a_later_scheduler_knows_is_sent() -> None:
    later: dict[str, Any] = {"field_of_later": 1}
    with fake_server(lambda line: line.say(task(), 201)) as server:
        connect(server.url).submit("true", **later)
    assert server.asked[0].body["field_of_later"] == 1
