"""Tasks over HTTP: submitted, listed, explained, changed, ended."""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from gpuyard.core.domain.commands import ReportEnded, ReportStarted
from gpuyard.core.domain.values import Outcome, TaskId
from tests.acceptance.rest_cluster import RestCluster
from tests.acceptance.waiting import until

TASKS, BATCH = "/api/v1/tasks", "/api/v1/tasks:batch"


@pytest.fixture(scope="module")
def quiet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RestCluster]:
    """For tests that change nothing."""
    with RestCluster(tmp_path_factory.mktemp("quiet")) as cluster:
        yield cluster


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[RestCluster]:
    with RestCluster(tmp_path) as cluster:
        yield cluster


def end(cluster: RestCluster, task: int, outcome: Outcome = Outcome.SUCCEEDED, exit_code: int = 0) -> None:
    cluster.tell(ReportStarted(TaskId(task), 1))
    cluster.tell(ReportEnded(TaskId(task), 1, outcome, exit_code))


def test_a_task_is_accepted_placed_and_shown_in_both_spellings(cluster: RestCluster) -> None:
    reply = cluster.ask("POST", TASKS, {"priority": "high", "gpu_count": 2, "command": "python train.py"})
    assert reply.status == 201
    task = reply.json
    assert task["task_id"] == task["id"] == "task-1"
    assert (task["priority"], task["class"], task["command"]) == ("high", "online", "python train.py")
    assert task["allocated_gpus"] == task["assigned_gpus"] == ["n1/0", "n1/1"]
    assert cluster.get(f"{TASKS}/task-1") == cluster.get(f"{TASKS}/1") == task
    assert int(reply.headers["content-length"]) == len(reply.body)


def test_a_priority_is_returned_as_it_was_sent(cluster: RestCluster) -> None:
    for sent, more in ((20, {}), (80, {"class": "online"}), ("low", {}), ("high", {})):
        assert cluster.submit(priority=sent, **more)["priority"] == sent
    task = cluster.submit(priority="high")["id"]
    assert cluster.ask("PATCH", f"{TASKS}/{task}", {"priority": 70}).json["priority"] == 70


def test_a_gpu_model_is_found_by_a_part_of_its_name(cluster: RestCluster) -> None:
    assert cluster.submit(gpu_model="rtx4090")["gpu_model"] == "RTX4090"
    assert cluster.submit(gpu_model=["4090"], gpu_speeds={"rtx 4090": 2.0})["gpu_speeds"] == {"RTX4090": 2.0}
    wrong = cluster.submit(gpu_model="rtx4080")["id"]
    assert cluster.get(f"{TASKS}/{wrong}/explain")["reason"].endswith("Did you mean RTX4090?")


def test_an_array_creates_many_tasks_and_the_answer_lists_them(cluster: RestCluster) -> None:
    answer = cluster.submit(array={"count": 3})
    assert answer["id"] == "task-1"
    assert [(task["id"], task["array_index"]) for task in answer["tasks"]] == [
        ("task-1", 0),
        ("task-2", 1),
        ("task-3", 2),
    ]


def test_a_batch_is_accepted_as_a_whole_in_the_order_sent(cluster: RestCluster) -> None:
    sent = [{"gpu_count": 1, "command": "true", "name": f"t{number}"} for number in range(500)]
    reply = cluster.ask("POST", BATCH, {"tasks": sent})
    assert reply.status == 201
    assert [task["name"] for task in reply.json["tasks"]] == [task["name"] for task in sent]
    assert cluster.get(TASKS)["total"] == 500


def test_tasks_of_a_batch_can_depend_on_each_other_by_index(cluster: RestCluster) -> None:
    cluster.submit(gpu_count=1)
    sent = [
        {"gpu_count": 1, "command": "true", "depends_on": ["tasks[1]", "task-1"]},
        {"gpu_count": 1, "command": "true", "array": {"count": 2}},
        {"gpu_count": 1, "command": "true", "after_any": ["tasks[0]"]},
    ]
    told = cluster.ask("POST", BATCH, {"tasks": sent}).json["tasks"]
    assert [task["depends_on"] for task in told] == [["task-1", "task-3", "task-4"], [], [], []]
    assert [task["after_any"] for task in told] == [[], [], [], ["task-2"]]


@pytest.mark.parametrize(
    ("path", "body", "sentence"),
    [
        (TASKS, {"depends_on": ["tasks[0]"]}, "tasks[0] is only valid in a batch"),
        (BATCH, {"tasks": [{"depends_on": ["tasks[1]"]}]}, "A dependency names tasks[1], but the batch has"),
        (BATCH, {"tasks": [{"after_any": ["tasks[0]"]}]}, "depend on each other"),
    ],
)
def test_indices_out_of_range_or_of_the_task_itself_are_refused(
    quiet: RestCluster, path: str, body: dict[str, Any], sentence: str
) -> None:
    reply = quiet.ask("POST", path, body)
    assert reply.status == 400
    assert sentence in reply.json["error"]["message"]


@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        ({"gpu_count": "two"}, "tasks[1].gpu_count"),
        ({"gpu_cuont": 2}, "tasks[1].gpu_cuont"),
        ({"gpu_count": 1, "command": " "}, "tasks[1].command"),
        ({"gpu_count": 1, "command": "true", "depends_on": ["task-99"]}, "tasks[1]"),
        ({"gpu_count": 64, "command": "true", "require_fit": True}, "tasks[1]"),
        ({"gpu_count": 3, "command": "true", "tenant_id": "small"}, "tasks[1]"),
    ],
)
def test_a_batch_with_one_invalid_task_is_refused_and_the_error_names_it(
    quiet: RestCluster, wrong: dict[str, Any], field: str
) -> None:
    quiet.ask("PUT", "/api/v1/tenants/small", {"max_gpus": 2})
    reply = quiet.ask("POST", BATCH, {"tasks": [{"gpu_count": 1, "command": "true"}, wrong]})
    assert reply.status in {400, 409}
    assert reply.error["field"] == field
    assert quiet.get(TASKS)["total"] == 0


def test_a_repeated_request_with_its_key_returns_the_same_task_even_after_it_ended(cluster: RestCluster) -> None:
    body = {"gpu_count": 1, "command": "true"}
    first = cluster.ask("POST", TASKS, body, Idempotency_Key="k1")
    again = cluster.ask("POST", TASKS, body, Idempotency_Key="k1")
    assert (first.status, again.status) == (201, 201)
    assert first.json["id"] == again.json["id"] == "task-1"
    end(cluster, 1)
    until(lambda: 1 not in cluster.scheduler.views.tasks)
    late = cluster.ask("POST", TASKS, body, Idempotency_Key="k1")
    assert (late.status, late.json["id"], late.json["status"]) == (201, "task-1", "success")
    other = cluster.ask("POST", TASKS, {**body, "name": "x"}, Idempotency_Key="k1")
    assert (other.status, other.error["code"]) == (409, "KeyUsedBefore")
    assert cluster.get(TASKS)["total"] == 1


def test_concurrent_requests_with_one_key_create_one_task(cluster: RestCluster) -> None:
    body = {"gpu_count": 1, "command": "true"}
    with ThreadPoolExecutor(8) as pool:
        replies = list(pool.map(lambda _: cluster.ask("POST", TASKS, body, Idempotency_Key="same"), range(16)))
    assert {(reply.status, reply.json["id"]) for reply in replies} == {(201, "task-1")}


@pytest.mark.parametrize("key", ["", "x" * 256, "a\tb"])
def test_an_invalid_key_is_refused(quiet: RestCluster, key: str) -> None:
    reply = quiet.ask("POST", TASKS, {"gpu_count": 1}, Idempotency_Key=key)
    assert (reply.status, reply.error["field"]) == (400, "Idempotency-Key")


def test_two_keys_in_one_request_are_refused(quiet: RestCluster) -> None:
    body = b'{"gpu_count": 1, "command": "true"}'
    with quiet.socket() as line:
        line.sendall(
            b"POST /api/v1/tasks HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nIdempotency-Key: a\r\n"
            b"Idempotency-Key: b\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)
        )
        answer = b"".join(iter(lambda: line.recv(1 << 16), b""))
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert b"Send one Idempotency-Key." in answer


def test_pages_run_from_the_newest_to_the_oldest_without_gaps_for_open_and_ended_tasks(cluster: RestCluster) -> None:
    cluster.ask("POST", BATCH, {"tasks": [{"gpu_count": 0, "cpu_count": 1, "command": "true"}] * 25})
    for task in range(1, 25, 2):
        end(cluster, task)
    until(lambda: 23 not in cluster.scheduler.views.tasks)
    seen: list[str] = []
    address = f"{TASKS}?limit=4"
    while address:
        page = cluster.get(address)
        assert page["total"] == 25
        seen += [task["id"] for task in page["tasks"]]
        address = f"{TASKS}?limit=4&cursor={page['next_cursor']}" if page["next_cursor"] else ""
    assert seen == [f"task-{number}" for number in range(25, 0, -1)]


def test_lists_can_be_filtered(cluster: RestCluster) -> None:
    cluster.submit(name="a", project="p", priority="high")
    cluster.submit(name="b", tenant_id="lab", priority=33)
    cluster.submit(name="c", gpu_count=0, cpu_count=1, priority="low")
    end(cluster, 1)

    def names(query: str) -> list[str]:
        return [task["name"] for task in cluster.get(f"{TASKS}?{query}")["tasks"]]

    assert names("status=completed") == names("status=success") == ["a"]
    assert names("status=pending,success") == names("status=pending&status=success") == ["c", "b", "a"]
    assert names("tenant=lab") == names("priority=33") == ["b"]
    assert names("priority=high") == names("project=p") == ["a"]
    assert names("priority=low") == names("name=c") == ["c"]
    assert names("since=2001-01-01T00:00:00Z") == names("since=0") == ["c", "b", "a"]
    assert names("since=2999-01-01T00:00:00%2B01:00") == []


@pytest.mark.parametrize(
    ("query", "says"),
    [
        ("stauts=pending", 'did you mean "status"?'),
        ("status=pendign", 'did you mean "pending"?'),
        ("status=", "status"),
        ("priority=101", "from 0 to 100"),
        ("limit=0", "from 1 to 1,000"),
        ("limit=5&limit=6", "more than once"),
        ("cursor=abc", "next_cursor"),
        ("since=yesterday", "2026-01-31T12:00:00Z"),
        ("since=nan", "1970"),
        ("name=a%00b", "NUL"),
        ("&".join(f"a{number}=1" for number in range(101)), "more than 100"),
    ],
)
def test_an_unknown_or_invalid_filter_is_an_error_that_says_so(quiet: RestCluster, query: str, says: str) -> None:
    reply = quiet.ask("GET", f"{TASKS}?{query}")
    assert reply.status == 400
    assert says in reply.error["message"]


def test_a_waiting_task_shows_why_it_waits(cluster: RestCluster) -> None:
    cluster.submit(gpu_count=4, priority="high")
    cluster.submit(gpu_count=99)
    told = cluster.get(f"{TASKS}/2/explain")
    assert told["reason_code"] == cluster.get(f"{TASKS}/2")["reason_code"] == "NodeTooSmall"
    assert "99 GPUs" in told["reason"]


def test_cancelling_ends_waiting_tasks_stops_running_ones_and_leaves_ended_ones(cluster: RestCluster) -> None:
    cluster.submit(priority="high")
    cluster.submit(gpu_count=99)
    running = cluster.ask("DELETE", f"{TASKS}/task-1")
    assert (running.status, running.json["message"]) == (200, "task-1 is being stopped.")
    waiting = cluster.ask("DELETE", f"{TASKS}/task-2")
    assert (waiting.json["status"], waiting.json["message"]) == ("cancelled", "task-2 was cancelled.")
    until(lambda: 2 not in cluster.scheduler.views.tasks)
    again = cluster.ask("DELETE", f"{TASKS}/task-2")
    assert (again.status, again.json["status"]) == (200, "cancelled")
    assert "had already ended" in again.json["message"]


def test_a_task_can_be_held_released_reprioritized_and_extended(cluster: RestCluster) -> None:
    cluster.submit(gpu_count=99, timeout=100)
    assert cluster.ask("POST", f"{TASKS}/1/hold").json["reason_code"] == "OnHold"
    assert cluster.ask("POST", f"{TASKS}/1/release").json["reason_code"] == "NodeTooSmall"
    changed = cluster.ask("PATCH", f"{TASKS}/1", {"priority": 77, "timeout": 200}).json
    assert (changed["priority"], changed["timeout"]) == (77, 200)
    shorter = cluster.ask("PATCH", f"{TASKS}/1", {"timeout": 50})
    assert (shorter.status, shorter.error["field"]) == (409, "timeout")
    assert cluster.ask("PATCH", f"{TASKS}/1", {}).status == 400
    assert cluster.ask("POST", f"{TASKS}/1/resume").error["code"] == "WrongPhase"
    assert cluster.ask("POST", f"{TASKS}/1/suspend").error["code"] == "NotSuspendable"


def test_secrets_are_never_returned(cluster: RestCluster, tmp_path: Path) -> None:
    reply = cluster.ask("POST", TASKS, {"gpu_count": 99, "command": "true", "secrets": {"KEY": "s3cr3t-value"}})
    assert reply.json["secrets"] == ["KEY"]
    for path in (f"{TASKS}/1", TASKS, "/api/tasks", f"{TASKS}/1/explain"):
        assert b"s3cr3t-value" not in cluster.ask("GET", path).body
    journal = b"".join(file.read_bytes() for file in (tmp_path / "journal").rglob("*") if file.is_file())
    assert b"KEY" in journal
    assert b"s3cr3t-value" not in journal


@pytest.mark.parametrize(
    ("body", "status", "says"),
    [
        (b"", 400, "empty"),
        (b"{", 400, "not JSON"),
        (b"\xff\xfe", 400, "UTF-16"),
        (b"[]", 400, "list"),
        (b'{"gpu_count": NaN}', 400, "NaN"),
        (b'{"gpu_count": 1e999}', 400, "gpu_count"),
        (b'{"gpu_count": -1}', 400, "gpu_count"),
        (b'{"gpu_cont": 1}', 400, 'did you mean "gpu_count"?'),
        (b'{"command": "a\\u0000b"}', 400, "NUL"),
        (b'{"command": ' + b"[" * 5000 + b"]" * 5000 + b"}", 400, ""),
        (b'{"env": {"CUDA_VISIBLE_DEVICES": "0"}, "command": "x"}', 400, "CUDA_VISIBLE_DEVICES"),
        (b'{"tenant_id": "a/b"}', 400, "tenant_id"),
    ],
)
def test_wrong_input_is_reported_in_one_sentence_and_changes_nothing(
    quiet: RestCluster, body: bytes, status: int, says: str
) -> None:
    reply = quiet.ask("POST", TASKS, body)
    assert reply.status == status
    assert says in reply.error["message"]
    assert reply.error["message"].endswith((".", "?"))
    assert quiet.get(TASKS)["total"] == 0


@pytest.mark.parametrize("name", ["task-99", "99", "task-", "task-0", "x", "task-1%2F2", "9" * 30, "%00", "%ff"])
def test_an_unknown_task_is_404_for_every_request(quiet: RestCluster, name: str) -> None:
    for method, verb in (("GET", ""), ("DELETE", ""), ("GET", "/logs"), ("GET", "/explain"), ("POST", "/hold")):
        assert quiet.ask(method, f"{TASKS}/{name}{verb}").status == 404


def test_json_sent_by_curl_as_a_form_is_read_as_json(quiet: RestCluster) -> None:
    sent = json.dumps({"gpu_count": -1}).encode()
    reply = quiet.ask("POST", TASKS, sent, Content_Type="application/x-www-form-urlencoded")
    assert reply.error["field"] == "gpu_count"


def test_the_answer_to_a_submission_shows_why_the_task_waits(cluster: RestCluster) -> None:
    task = cluster.submit(gpu_count=8)
    assert (task["reason_code"], task["reason"][:16]) == ("NodeTooSmall", "The task needs 8")


def test_a_placed_task_that_is_not_reported_to_run_yet_is_starting(cluster: RestCluster) -> None:
    task = cluster.submit(gpu_count=1)
    assert (task["status"], task["reason"], task["reason_code"]) == ("pending", None, "Starting")
    assert task["allocated_gpus"] == ["n1/0"]
    cluster.tell(ReportStarted(TaskId(1), 1))
    assert cluster.get("/api/v1/tasks/task-1")["reason_code"] is None


@pytest.mark.parametrize("ended", [False, True])
def test_a_request_with_another_submission_time_shows_and_changes_nothing(cluster: RestCluster, ended: bool) -> None:
    task = cluster.submit()
    lease = cluster.ask("POST", "/api/v1/leases", {"gpu_count": 1}).json
    if ended:
        end(cluster, 1)
        cluster.ask("DELETE", f"/api/v1/leases/{lease['id']}")
    before = [cluster.get(f"{TASKS}/{number}")["status"] for number in (1, 2)]
    of_task, of_lease = f"{TASKS}/{task['id']}", f"/api/v1/leases/{lease['id']}"
    calls = [
        ("GET", of_task, None),
        ("GET", f"{of_task}/logs", None),
        ("GET", f"{of_task}/explain", None),
        ("PATCH", of_task, {"priority": 90}),
        ("POST", f"{of_task}/suspend", None),
        ("POST", f"{of_task}/hold", None),
        ("DELETE", of_task, None),
        ("GET", of_lease, None),
        ("DELETE", of_lease, None),
    ]
    for method, path, body in calls:
        reply = cluster.ask(method, f"{path}?created_at=2026-01-01T00:00:00.000001Z", body)
        assert (reply.status, reply.error["code"]) == (404, "AnotherTask"), (method, path)
    assert [cluster.get(f"{TASKS}/{number}")["status"] for number in (1, 2)] == before
    assert cluster.get(f"{of_task}?created_at={task['created_at']}")["id"] == task["id"]
    assert cluster.ask("DELETE", f"{of_lease}?created_at={lease['created_at']}").status == 200
