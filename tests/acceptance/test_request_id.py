"""A request id is found in the header, the journal and the log of the agent that ran the task."""

import json
from pathlib import Path
from urllib.request import Request, urlopen

import pytest

from gpuyard.core.domain.events import TaskPlaced, TaskSubmitted
from gpuyard.live.control_plane.stores.recovery import open_journal
from tests.acceptance.live import running_cluster
from tests.acceptance.rest_cluster import RestCluster
from tests.acceptance.waiting import until


def test_a_request_id_is_found_in_the_header_the_journal_and_the_log_of_the_agent(tmp_path: Path) -> None:
    with running_cluster(
        tmp_path, gpus=1, logging={"format": "json", "output": str(tmp_path / "server.log")}
    ) as cluster:
        body = json.dumps({"command": "true", "gpu_count": 1}).encode()
        address = f"http://127.0.0.1:{cluster.http}/api/v1/tasks"
        request = Request(address, body, {"X-Request-ID": "order-66", "Content-Type": "application/json"})
        with urlopen(request, timeout=20) as response:
            assert response.headers["X-Request-ID"] == "order-66"
            assert json.load(response)["request_id"] == "order-66"
        client = cluster.client()
        ended = client.wait("task-1")
        assert ended.request_id == "order-66"
        by_client = client.submit("true", gpu_count=1)
        assert by_client.request_id
        until(lambda: "task_submitted" in (tmp_path / "server.log").read_text(), what="the scheduler logs it")
        agent_log = (tmp_path / "node-1.log").read_text()
        assert "attempt_launched" in agent_log
        assert "request_id=order-66" in agent_log
        cluster.stop_server()

    lines = [json.loads(line) for line in (tmp_path / "server.log").read_text().splitlines()]
    submitted = {line["task_id"]: line["request_id"] for line in lines if line["event"] == "task_submitted"}
    assert submitted == {"task-1": "order-66", "task-2": by_client.request_id}
    journal = open_journal(tmp_path / "data" / "journal")
    records = list(journal.read())
    journal.close()
    assert [it.request_id for it in records if isinstance(it.event, TaskSubmitted)] == [
        "order-66",
        by_client.request_id,
    ]
    assert {it.request_id for it in records if isinstance(it.event, TaskPlaced)} == {""}  # the engine decided it


def test_every_response_carries_an_id_and_only_a_short_printable_token_is_accepted(tmp_path: Path) -> None:
    with RestCluster(tmp_path) as cluster:
        for path in ("/healthz", "/nothing", "/api/nothing", "/api/v1/gpus", "/docs", "/api/v1/tasks/task-9/logs"):
            assert cluster.ask("GET", path, X_Request_ID="mine").headers["x-request-id"] == "mine"
            assert cluster.ask("GET", path, Host="evil.example", X_Request_ID="mine").headers["x-request-id"] == "mine"
        drawn = {cluster.ask("GET", "/healthz").headers["x-request-id"] for _ in range(3)}
        assert len(drawn) == 3
        assert all(len(it) == 16 for it in drawn)
        for wrong in ("", "two words", "é", "x" * 65):
            assert cluster.ask("GET", "/healthz", X_Request_ID=wrong).headers["x-request-id"] not in {wrong, ""}


def test_each_command_carries_the_id_of_its_own_request(tmp_path: Path) -> None:
    with RestCluster(tmp_path, gpus=0) as cluster:
        cluster.ask("POST", "/api/v1/tasks", {"command": "true"}, X_Request_ID="first")
        cluster.ask("DELETE", "/api/v1/tasks/task-1", X_Request_ID="second")
        caused = {type(it.event): it.request_id for it in cluster.scheduler.stores.journal.read() if it.request_id}
        assert caused[TaskSubmitted] == "first"
        assert "second" in caused.values()
        assert cluster.get("/api/v1/tasks/task-1")["request_id"] == "first"


def test_a_failure_of_the_server_names_the_request_in_message_and_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with RestCluster(tmp_path) as cluster:
        monkeypatch.setattr(cluster.scheduler.queries, "page", None)
        reply = cluster.ask("GET", "/api/v1/tasks", X_Request_ID="look-for-me")
        assert reply.status == 500
        assert "request id look-for-me" in reply.error["message"]
