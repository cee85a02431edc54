"""Doors that must stay closed, tried with real processes: a member's task, a flood of logins, connections without limit."""

import http.client
import json
import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from tests.acceptance import live
from tests.acceptance.waiting import until

SERVICE_UID = 1234
USERS = [
    {"username": "boss", "password": "boss-password", "tenant_id": "staff", "role": "admin"},
    {"username": "alice", "password": "alice-password", "tenant_id": "students", "role": "member"},
]
needs_root = pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("setpriv") is None, reason="only root can start processes as another user"
)


class Door:
    """HTTP as a stranger without the SDK speaks it."""

    def __init__(self, port: int) -> None:
        self.port = port

    def ask(self, method: str, path: str, body: object = None, token: str = "") -> tuple[int, Any]:
        line = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        try:
            headers = {"Authorization": f"Bearer {token}"} if token else {}
            line.request(method, path, None if body is None else json.dumps(body), headers)
            answer = line.getresponse()
            content = answer.read()
            return answer.status, json.loads(content) if content.startswith(b"{") else content.decode()
        finally:
            line.close()

    def answers(self) -> bool:
        with suppress(OSError, http.client.HTTPException):
            return self.ask("GET", "/readyz")[0] == 200
        return False

    def login(self, username: str, password: str) -> str:
        status, told = self.ask("POST", "/api/login", {"username": username, "password": password})
        assert status == 200, told
        return str(told["token"])


@pytest.fixture
def one_service_user(monkeypatch: pytest.MonkeyPatch) -> Iterator[live.Cluster]:
    """Scheduler and agent run as one system user who is not root, and people log in."""
    capability = "dac_read_search"  # to read the interpreter, wherever the tests have it
    as_service_user = [
        "setpriv", f"--reuid={SERVICE_UID}", f"--regid={SERVICE_UID}", "--clear-groups", f"--inh-caps=+{capability}",
        f"--ambient-caps=+{capability}", f"--bounding-set=-all,+{capability}",
    ]  # fmt: skip
    monkeypatch.setattr(live, "GPUYARD", [*as_service_user, sys.executable, "-m", "gpuyard.cli"])
    with TemporaryDirectory(prefix="gpuyard-") as name:  # pytest's own folders can be entered by their owner only
        os.chown(name, SERVICE_UID, SERVICE_UID)
        yard = live.Cluster(Path(name), scheduler={"auth": {"enabled": True, "join_token": "join"}, "users": USERS})
        try:
            yield yard
        finally:
            yard.end()


def _ended(door: Door, task: str, token: str) -> dict[str, Any]:
    ended: list[dict[str, Any]] = []

    def over() -> bool:
        told = door.ask("GET", f"/api/v1/tasks/{task}", token=token)[1]
        ended.append(told)
        return told["status"] in {"success", "failed"}

    until(over, 40.0, "the task ends")
    return ended[-1]


@needs_root
def test_a_members_task_under_the_schedulers_uid_is_not_started_and_with_consent_it_is_no_admin(
    one_service_user: live.Cluster,
) -> None:
    yard, door = one_service_user, Door(one_service_user.http)
    yard.start_server()
    yard.start_agent("node-1", 1)
    until(door.answers, 40.0, "the scheduler answers")
    boss, alice = door.login("boss", "boss-password"), door.login("alice", "alice-password")
    asks = (
        "import urllib.request as r, json, sys\n"
        f"q = r.Request('http://127.0.0.1:{yard.http}/api/v1/tokens', json.dumps(dict(username='boss')).encode())\n"
        "try: print(r.urlopen(q).read().decode())\n"
        "except r.HTTPError as e: print('REFUSED', e.code)\n"
    )
    wanted = {"command": [sys.executable, "-c", asks], "gpu_count": 1, "work_dir": str(yard.folder)}
    refused = _ended(door, door.ask("POST", "/api/v1/tasks", wanted, alice)[1]["id"], alice)
    assert refused["status"] == "failed"
    assert "executor.shared_user: true" in refused["reason"]

    yard.kill(yard.agents["node-1"])
    yard.start_agent("node-1", 1, shared_user=True)
    ran = _ended(door, door.ask("POST", "/api/v1/tasks", wanted, alice)[1]["id"], alice)
    assert ran["status"] == "success"
    assert door.ask("GET", f"/api/v1/tasks/{ran['id']}/logs", token=alice)[1].strip() == "REFUSED 401"
    assert door.ask("GET", "/api/v1/users", token=boss)[0] == 200
