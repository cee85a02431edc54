"""A member of one tenant learns nothing of a task of another one, and changes nothing of it, by any route."""

import re
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpuyard.core.domain.commands import ReportEnded, ReportStarted
from gpuyard.core.domain.values import Outcome, TaskId
from gpuyard.live.control_plane.access.principal import Role
from gpuyard.live.control_plane.rest.route import Route
from gpuyard.live.control_plane.rest.routes import ROUTES
from tests.acceptance.rest_cluster import Reply, RestCluster
from tests.acceptance.test_rest_connections import read_all
from tests.acceptance.test_rest_streams import Agent, listening
from tests.acceptance.waiting import until

TASKS = "/api/v1/tasks"
MARK = b"xyzzy"
"""Part of everything that alice gives to her tasks."""
TASK = {
    "gpu_count": 1, "command": "echo xyzzy-command", "name": "xyzzy-name", "description": "xyzzy-description",
    "project": "xyzzy-project", "env": {"XYZZY": "xyzzy-env"}, "secrets": {"KEY": "xyzzy-secret"}, "work_dir": "/xyzzy",
    "priority": "high",
}  # fmt: skip
OUTPUT = b"xyzzy-output\n"
RUNS, WAITS, LEASE, ENDED = 1, 2, 3, 4


class TwoTenants:
    """Alice's tasks, in every phase, and bob, who is a member of another tenant."""

    def __init__(self, cluster: RestCluster) -> None:
        self.cluster = cluster
        self.alice = cluster.token_of("alice", Role.MEMBER, "lab")
        self.bob = cluster.token_of("bob", Role.MEMBER, "shop")
        self.agent = Agent(cluster, "n1", {(RUNS, 1): OUTPUT, (ENDED, 1): OUTPUT})
        cluster.inside(self.agent.start)
        until(lambda: any(session.connected for session in cluster.scheduler.agents.sessions.values()))
        for body in (
            TASK,
            {**TASK, "gpu_count": 99},
            {"gpu_count": 98, "name": "xyzzy-lease"},
            {**TASK, "gpu_count": 0, "cpu_count": 1},
        ):
            path = TASKS if "command" in body else "/api/v1/leases"
            made = cluster.ask("POST", path, body, token=self.alice)
            assert made.status == 201, made.body
        for task in (RUNS, ENDED):
            cluster.tell(ReportStarted(TaskId(task), 1))
        cluster.tell(ReportEnded(TaskId(ENDED), 1, Outcome.SUCCEEDED, 0))
        until(lambda: ENDED not in cluster.scheduler.views.tasks)

    def state(self) -> dict[int, dict[str, Any]]:
        """What alice sees of her tasks."""
        seen = {}
        for task in (RUNS, WAITS, LEASE, ENDED):
            answer = self.cluster.ask("GET", f"{TASKS}/{task}", token=self.alice).json
            seen[task] = {name: answer[name] for name in ("status", "priority", "finished_at", "attempts")}
        return seen

    def asks(self, token: str, route: Route, task: int, query: str = "", method: str = "") -> Reply:
        """Ask for a route with the names of alice's things in its path."""
        names = {
            "username": "alice",
            "task": str(task),
            "attempt": "1",
            "node": "n1",
            "index": "0",
            "port": "80",
            "sha256": "0" * 64,
        }
        if "/nodes/" in route.path:
            names["id"] = "n1"
        elif "/tenants/" in route.path:
            names["id"] = "lab"
        elif "/tokens/" in route.path:
            names["id"] = self.cluster.ask("GET", "/api/v1/tokens", token=self.alice).json["tokens"][0]["id"]
        elif "/monitor/" in route.path:
            names["id"] = "0"
        else:
            names["id"] = str(task)
        path = re.sub(r"\{(\w+)\}", lambda found: str(names[found[1]]), route.path)
        body = dict(route.example or {}) if route.request is not None else None
        return self.cluster.ask(method or route.method, path + query, body, token=token)


@pytest.fixture
def tenants(tmp_path: Path) -> Iterator[TwoTenants]:
    with RestCluster(tmp_path, local=False, gpus=0) as cluster:
        two = TwoTenants(cluster)
        yield two
        cluster.inside(two.agent.stop)


IS_STREAM = "text/event-stream"


@pytest.mark.parametrize("task", [RUNS, WAITS, LEASE, ENDED], ids=["runs", "waits", "lease", "ended"])
def test_no_route_shows_or_changes_anything_of_a_task_of_another_tenant(tenants: TwoTenants, task: int) -> None:
    before = tenants.state()
    created_at = tenants.cluster.ask("GET", f"{TASKS}/{task}", token=tenants.alice).json["created_at"]
    tried = 0
    for route in ROUTES:
        if route.media == IS_STREAM or route.path.endswith("/login"):
            continue
        of_task = re.search(r"/(tasks|leases)/\{id\}", route.path) is not None
        queries = ["", f"?created_at={created_at}"] if any(it.name == "created_at" for it in route.query) else [""]
        if route.path.endswith("/logs"):
            queries += ["?follow=true", "?attempt=1", "?node=n1", "?tail=5", "?tail=0&follow=true"]
        if any(it.name == "tenant" for it in route.query):
            queries += ["?tenant=lab"]
        for query in queries:
            for method in (route.method, *(["HEAD"] if route.method == "GET" else [])):
                reply = tenants.asks(tenants.bob, route, task, query, method)
                where = f"{method} {route.path}{query}: {reply.status} {reply.body[:300]!r}"
                assert MARK not in reply.body.lower(), where
                assert not any(MARK in value.lower().encode() for value in reply.headers.values()), where
                assert not of_task or reply.status == 404, where
                tried += of_task
    assert tried > 30
    assert tenants.state() == before
    assert tenants.agent.readers == 0
    assert tenants.agent.sent == 0


def test_who_owns_the_tasks_is_shown_them_by_the_same_routes(tenants: TwoTenants) -> None:
    """Otherwise the test above would prove nothing."""
    shown = set()
    for route in ROUTES:
        if route.method == "GET" and route.media != IS_STREAM:
            reply = tenants.asks(tenants.alice, route, RUNS)
            assert b"xyzzy-secret" not in reply.body
            if MARK in reply.body.lower():
                shown.add(route.path)
    assert shown >= {TASKS, f"{TASKS}/{{id}}", f"{TASKS}/{{id}}/logs", "/api/tasks", "/api/tasks/{id}"}


def test_no_event_of_a_task_of_another_tenant_is_told(tenants: TwoTenants) -> None:
    bearer = {"Authorization": f"Bearer {tenants.bob}"}
    own = {"gpu_count": 97, "command": "true"}
    mine = tenants.cluster.ask("POST", TASKS, own, token=tenants.bob).json["id"]
    with listening(tenants.cluster, "?after=0", **bearer) as events:
        told = events.next()
        assert told["task_id"] == mine, told
    for task in (RUNS, WAITS, LEASE, ENDED):
        with tenants.cluster.socket() as line:
            asked = f"GET /api/v1/events?after=0&task=task-{task} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {tenants.bob}\r\n\r\n"
            line.sendall(asked.encode())
            tenants.cluster.ask("POST", TASKS, own, token=tenants.bob)
            line.shutdown(socket.SHUT_WR)
            answer = read_all(line)
            assert MARK not in answer
            assert b"TaskSubmitted" not in answer


def test_completions_name_only_what_a_member_may_see(tenants: TwoTenants) -> None:
    def words(token: str, query: str) -> list[str]:
        answer = tenants.cluster.ask("GET", f"/api/v1/completions?{query}", token=token).json
        return [one["word"] for one in answer["words"]]

    assert words(tenants.alice, "kind=task&prefix=xyzzy") == ["xyzzy-lease", "xyzzy-name"]
    assert words(tenants.alice, "kind=task&prefix=task-&limit=2") == ["task-3", "task-2"]
    assert words(tenants.bob, "kind=task") == []
    assert words(tenants.alice, "kind=tenant") == ["lab"]
    assert "lab" not in words(tenants.bob, "kind=tenant")
    assert words(tenants.bob, "kind=node&prefix=N") == ["n1"]
    wrong = tenants.cluster.ask("GET", "/api/v1/completions?kind=taks", token=tenants.bob)
    assert (wrong.status, "did you mean" in str(wrong.json)) == (400, True)
    assert tenants.cluster.ask("GET", "/api/v1/completions?limit=201", token=tenants.bob).status == 400
