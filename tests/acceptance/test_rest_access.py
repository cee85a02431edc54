"""Permissions over HTTP: tokens, roles, tenants, Host and Origin, users."""

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpuyard.core.domain.commands import ReportEnded, ReportStarted
from gpuyard.core.domain.errors import StorageFull
from gpuyard.core.domain.events import AccessChanged
from gpuyard.core.domain.values import Outcome, TaskId
from gpuyard.live.control_plane.access.principal import Role
from gpuyard.live.control_plane.rest.routes import ROUTES
from gpuyard.live.control_plane.worker_threads import WorkerPoolFull
from tests.acceptance.rest_cluster import RestCluster
from tests.acceptance.waiting import until

TASKS = "/api/v1/tasks"
ONE = {"gpu_count": 1, "command": "true"}


class Lab:
    """A cluster with required login and two tenants."""

    def __init__(self, cluster: RestCluster) -> None:
        self.cluster = cluster
        self.admin = cluster.token_of("root-of-all", Role.ADMIN)
        self.operator = cluster.token_of("olga", Role.OPERATOR)
        self.alice = cluster.token_of("alice", Role.MEMBER, "lab")
        self.bob = cluster.token_of("bob", Role.MEMBER, "shop")
        self.viewer = cluster.token_of("vera", Role.VIEWER, "lab")


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    with RestCluster(tmp_path, local=False) as cluster:
        yield Lab(cluster)


def test_only_health_documentation_and_login_are_open_to_everyone(lab: Lab) -> None:
    is_open = set()
    for route in ROUTES:
        path = route.path.replace("{", "").replace("}", "")
        reply = lab.cluster.ask(route.method, path)
        if reply.status == 401 and not route.path.endswith(("/login", "/session")):
            assert reply.error["code"] == "LoginRequired"
            assert reply.headers["www-authenticate"].startswith("Bearer")
        else:
            is_open.add(route.path)
    documented = {"/health", "/healthz", "/readyz", "/docs", "/openapi.json"}
    assert is_open == {*documented, "/api/login", "/api/v1/login", "/api/v1/session"}


def test_on_loopback_the_servers_own_user_is_admin_but_not_with_a_wrong_token_or_through_a_proxy(
    tmp_path: Path,
) -> None:
    with RestCluster(tmp_path) as cluster:
        assert cluster.get("/api/user")["role"] == "admin"
        wrong = cluster.ask("GET", "/api/user", token="gy_wrong")
        assert (wrong.status, wrong.error["code"]) == (401, "UnknownToken")
        assert cluster.ask("GET", "/api/user", X_Forwarded_For="10.0.0.1").status == 401
        assert cluster.ask("GET", "/api/user", Authorization="Basic abc").error["code"] == "BadAuthorization"


def test_a_revoked_token_and_a_disabled_user_are_rejected_at_once(lab: Lab) -> None:
    made = lab.cluster.ask("POST", "/api/v1/tokens", {"name": "laptop"}, token=lab.alice).json
    assert lab.cluster.ask("GET", TASKS, token=made["token"]).status == 200
    assert lab.cluster.ask("DELETE", f"/api/v1/tokens/{made['id']}", token=lab.alice).status == 200
    assert lab.cluster.ask("GET", TASKS, token=made["token"]).error["code"] == "TokenRevoked"
    lab.cluster.ask("PATCH", "/api/v1/users/bob", {"disabled": True}, token=lab.admin)
    assert lab.cluster.ask("GET", TASKS, token=lab.bob).error["code"] == "UserDisabled"


def test_another_tenants_task_is_not_found(lab: Lab) -> None:
    mine = lab.cluster.ask("POST", TASKS, ONE, token=lab.alice).json
    assert (mine["tenant_id"], mine["user"]) == ("lab", "alice")
    not_there = lab.cluster.ask("GET", f"{TASKS}/task-7", token=lab.bob).json
    for method, verb in (("GET", ""), ("DELETE", ""), ("GET", "/logs"), ("GET", "/explain"), ("POST", "/hold")):
        reply = lab.cluster.ask(method, f"{TASKS}/task-1{verb}", token=lab.bob)
        assert reply.status == 404
        assert reply.json == {"error": {**not_there["error"], "message": "Task task-1 does not exist."}}
    assert lab.cluster.ask("DELETE", "/api/tasks/task-1", token=lab.bob).status == 404
    assert lab.cluster.ask("GET", TASKS, token=lab.bob).json["total"] == 0
    assert lab.cluster.ask("GET", f"{TASKS}?tenant=lab", token=lab.bob).status == 403
    assert lab.cluster.ask("GET", TASKS, token=lab.viewer).json["total"] == 1
    assert lab.cluster.ask("GET", TASKS, token=lab.operator).json["total"] == 1


def test_another_tenants_ended_task_is_not_found(lab: Lab) -> None:
    lab.cluster.ask("POST", TASKS, ONE, token=lab.alice)
    lab.cluster.tell(ReportStarted(TaskId(1), 1))
    lab.cluster.tell(ReportEnded(TaskId(1), 1, Outcome.SUCCEEDED, 0))
    until(lambda: 1 not in lab.cluster.scheduler.views.tasks)
    assert lab.cluster.ask("GET", f"{TASKS}/1", token=lab.alice).json["status"] == "success"
    assert lab.cluster.ask("GET", f"{TASKS}/1", token=lab.bob).status == 404
    assert lab.cluster.ask("DELETE", f"{TASKS}/1", token=lab.bob).status == 404


def test_a_task_cannot_depend_on_a_task_its_owner_cannot_see(lab: Lab) -> None:
    lab.cluster.ask("POST", TASKS, ONE, token=lab.alice)
    reply = lab.cluster.ask("POST", TASKS, {**ONE, "depends_on": ["task-1"]}, token=lab.bob)
    unknown = lab.cluster.ask("POST", TASKS, {**ONE, "depends_on": ["task-9"]}, token=lab.bob)
    assert (reply.status, reply.error["code"]) == (unknown.status, unknown.error["code"]) == (400, "UnknownDependency")
    assert lab.cluster.ask("POST", TASKS, {**ONE, "depends_on": ["task-1"]}, token=lab.alice).status == 201


def test_a_member_submits_only_for_its_own_tenant_and_a_viewer_for_none(lab: Lab) -> None:
    other = lab.cluster.ask("POST", TASKS, {**ONE, "tenant_id": "shop"}, token=lab.alice)
    assert (other.status, other.error["message"]) == (403, "alice may do this only for tenant lab.")
    assert lab.cluster.ask("POST", TASKS, ONE, token=lab.viewer).status == 403
    assert lab.cluster.ask("POST", "/api/v1/leases", {}, token=lab.viewer).status == 403
    assert lab.cluster.ask("POST", TASKS, {**ONE, "tenant_id": "shop"}, token=lab.operator).json["tenant_id"] == "shop"
    assert lab.cluster.ask("POST", TASKS, ONE, token=lab.operator).json["tenant_id"] == "default"


def test_idempotency_keys_of_two_tenants_are_separate(lab: Lab) -> None:
    mine = lab.cluster.ask("POST", TASKS, ONE, token=lab.alice, Idempotency_Key="k")
    theirs = lab.cluster.ask("POST", TASKS, ONE, token=lab.bob, Idempotency_Key="k")
    assert mine.json["id"] != theirs.json["id"]


def test_only_operators_and_admins_manage_the_cluster_and_only_admins_see_users(lab: Lab) -> None:
    quota = {"online_percent": 0.5}
    for token, status in ((lab.alice, 403), (lab.viewer, 403), (lab.operator, 200), (lab.admin, 200)):
        assert lab.cluster.ask("PUT", "/api/v1/quota", quota, token=token).status == status
        assert lab.cluster.ask("POST", "/api/v1/nodes/n1/cordon", token=token).status == status
        assert lab.cluster.ask("PUT", "/api/v1/tenants/lab", {"max_gpus": 3}, token=token).status == status
        assert lab.cluster.ask("GET", "/api/v1/quota", token=token).status == 200
    for token, status in ((lab.alice, 403), (lab.operator, 403), (lab.admin, 200)):
        assert lab.cluster.ask("GET", "/api/v1/users", token=token).status == status


def test_tenants_see_their_own_limits_and_which_gpus_are_busy_but_not_for_whom(lab: Lab) -> None:
    lab.cluster.ask("POST", TASKS, ONE, token=lab.alice)
    lab.cluster.ask("POST", TASKS, ONE, token=lab.bob)
    assert [it["id"] for it in lab.cluster.ask("GET", "/api/v1/tenants", token=lab.alice).json["tenants"]] == ["lab"]
    assert lab.cluster.ask("GET", "/api/v1/tenants/shop", token=lab.alice).status == 404
    assert set(lab.cluster.ask("GET", "/api/stats", token=lab.alice).json["tenants"]) == {"lab"}
    assert lab.cluster.ask("GET", "/api/tenant", token=lab.alice).json["tenant_id"] == "lab"
    assert lab.cluster.ask("GET", "/api/tenants/shop", token=lab.alice).status == 404
    metrics = lab.cluster.ask("GET", "/api/monitor/metrics", token=lab.alice).json
    assert {it["tenant_id"] for it in metrics["device_metrics"]} == {"lab", ""}
    assert set(metrics["tenant_utilization"]) == {"lab"}


def test_a_login_returns_a_token_and_a_new_password_revokes_it(lab: Lab) -> None:
    reply = lab.cluster.ask("POST", "/api/login", {"username": "alice", "password": "correct horse"})
    assert reply.status == 200
    assert (reply.json["user_id"], reply.json["tenant_id"], reply.json["role"]) == ("alice", "lab", "user")
    own = lab.cluster.ask("POST", "/api/v1/login", {"username": "alice", "password": "correct horse"}).json
    assert (own["role"], own["expires_at"][-1]) == ("member", "Z")
    token = reply.json["token"]
    assert lab.cluster.ask("GET", "/api/user", token=token).json["username"] == "alice"
    short = lab.cluster.ask("PATCH", "/api/v1/users/alice", {"password": "short"}, token=token)
    assert (short.status, short.error["field"]) == (400, "password")
    another = {"password": "battery staple", "old_password": "correct horse"}
    assert lab.cluster.ask("PATCH", "/api/v1/users/alice", another, token=token).status == 200
    assert lab.cluster.ask("GET", "/api/user", token=token).status == 401
    old = lab.cluster.ask("POST", "/api/login", {"username": "alice", "password": "correct horse"})
    assert (old.status, old.error["code"]) == (401, "WrongLogin")


def _login(lab: Lab) -> str:
    login = {"username": "alice", "password": "correct horse"}
    return str(lab.cluster.ask("POST", "/api/login", login).json["token"])


def test_a_stolen_login_cannot_change_the_password(lab: Lab) -> None:
    login, another = _login(lab), {"password": "battery staple"}
    missing = lab.cluster.ask("PATCH", "/api/v1/users/alice", another, token=login)
    assert (missing.status, missing.error["field"]) == (400, "old_password")
    wrong = lab.cluster.ask("PATCH", "/api/v1/users/alice", {**another, "old_password": "guess"}, token=login)
    assert (wrong.status, wrong.error["code"]) == (401, "WrongLogin")
    assert lab.cluster.ask("PATCH", "/api/v1/users/alice", another, token=lab.admin).status == 200


def test_a_token_made_with_a_login_ends_with_it_unless_the_password_is_given_again(lab: Lab) -> None:
    login = _login(lab)
    ends = {it.username: it.expires_at for it in lab.cluster.access.tokens("alice") if it.name == "login"}["alice"]
    assert ends is not None
    made = lab.cluster.ask("POST", "/api/v1/tokens", {}, token=login).json
    token = lab.cluster.access.token(made["id"])
    assert token is not None
    assert token.expires_at == ends
    again = lab.cluster.ask("POST", "/api/v1/tokens", {}, token=made["token"]).json
    further = lab.cluster.access.token(again["id"])
    assert further is not None
    assert further.expires_at == ends
    for known in (login, made["token"]):
        longer = lab.cluster.ask("POST", "/api/v1/tokens", {"lifetime": 10 * 365 * 86400}, token=known)
        assert (longer.status, longer.error["code"], longer.error["field"]) == (400, "LifetimeTooLong", "lifetime")
        assert "--password" in longer.error["message"]
    short = lab.cluster.ask("POST", "/api/v1/tokens", {"lifetime": 60}, token=login).json
    token = lab.cluster.access.token(short["id"])
    assert token is not None
    assert token.expires_at is not None
    assert token.expires_at < ends
    wrong = lab.cluster.ask("POST", "/api/v1/tokens", {"password": "guess"}, token=login)
    assert (wrong.status, wrong.error["code"]) == (401, "WrongLogin")
    own = lab.cluster.ask("POST", "/api/v1/tokens", {"password": "correct horse"}, token=login)
    assert (own.status, own.json["expires_at"]) == (201, None)


def test_a_new_password_can_revoke_all_tokens_too(lab: Lab) -> None:
    made = lab.cluster.ask("POST", "/api/v1/tokens", {}, token=lab.alice).json["token"]
    lab.cluster.ask("PATCH", "/api/v1/users/alice", {"password": "battery staple"}, token=lab.admin)
    assert lab.cluster.ask("GET", TASKS, token=made).status == 200
    change = {"password": "battery staples", "revoke_tokens": True}
    assert lab.cluster.ask("PATCH", "/api/v1/users/alice", change, token=lab.admin).status == 200
    for token in (made, lab.alice):
        assert lab.cluster.ask("GET", TASKS, token=token).error["code"] == "TokenRevoked"
    assert lab.cluster.ask("GET", TASKS, token=lab.bob).status == 200


def test_more_logins_than_can_be_checked_are_refused_at_once(lab: Lab) -> None:
    """The hasher of this test is quick, so the two threads are held up by the test."""
    worker_pools = lab.cluster.scheduler.worker_pools.logins
    go_on = threading.Event()
    held = [
        asyncio.run_coroutine_threadsafe(worker_pools.run_for("10.0.0.7", go_on.wait, 20.0), lab.cluster.loop)
        for _ in range(18)
    ]
    until(lambda: worker_pools.waiting("10.0.0.7") == 18, what="the lane is full for one address")
    with pytest.raises(WorkerPoolFull):
        asyncio.run_coroutine_threadsafe(worker_pools.run_for("10.0.0.7", go_on.wait), lab.cluster.loop).result(5)
    held += [
        asyncio.run_coroutine_threadsafe(worker_pools.run_for("10.0.0.8", go_on.wait, 20.0), lab.cluster.loop)
        for _ in range(16)
    ]
    until(lambda: worker_pools.waiting("10.0.0.8") == 16, what="the lane is full")
    refused = lab.cluster.ask("POST", "/api/login", {"username": "alice", "password": "correct horse"})
    assert (refused.status, refused.error["code"], refused.headers["retry-after"]) == (429, "TooManyLogins", "2")
    assert lab.cluster.ask("GET", f"{TASKS}?status=success", token=lab.alice).status == 200
    assert lab.cluster.ask("POST", "/api/v1/tokens", {}, token=lab.alice).status == 201
    go_on.set()
    for one in held:
        one.result(20)
    assert _login(lab)


def test_guessing_passwords_is_slowed_down(lab: Lab) -> None:
    guess = {"username": "alice", "password": "guess"}
    statuses = [lab.cluster.ask("POST", "/api/login", guess).status for _ in range(6)]
    assert statuses == [401] * 5 + [429]
    assert int(lab.cluster.ask("POST", "/api/login", guess).headers["retry-after"]) >= 1


def test_users_change_only_their_own_password(lab: Lab) -> None:
    assert lab.cluster.ask("GET", "/api/v1/users/alice", token=lab.alice).json["role"] == "member"
    assert lab.cluster.ask("PATCH", "/api/v1/users/alice", {"role": "admin"}, token=lab.alice).status == 403
    assert lab.cluster.ask("GET", "/api/v1/users/bob", token=lab.alice).status == 404
    assert lab.cluster.ask("PATCH", "/api/v1/users/bob", {"password": "battery staple"}, token=lab.alice).status == 404
    assert lab.cluster.ask("POST", "/api/v1/tokens", {"username": "bob"}, token=lab.alice).status == 403
    bobs = lab.cluster.ask("GET", "/api/v1/tokens?username=bob", token=lab.admin).json["tokens"]
    assert lab.cluster.ask("DELETE", f"/api/v1/tokens/{bobs[0]['id']}", token=lab.alice).status == 404
    assert lab.cluster.ask("GET", "/api/v1/tokens?username=bob", token=lab.alice).status == 403
    assert {it["username"] for it in lab.cluster.ask("GET", "/api/v1/tokens", token=lab.alice).json["tokens"]} == {
        "alice"
    }


def test_an_admin_adds_changes_and_removes_users(lab: Lab) -> None:
    new = {"username": "carol", "password": "correct horse", "tenant_id": "shop"}
    assert lab.cluster.ask("POST", "/api/v1/users", new, token=lab.admin).status == 201
    assert lab.cluster.ask("POST", "/api/v1/users", new, token=lab.admin).status == 409
    assert lab.cluster.ask("POST", "/api/v1/users", {"username": "dan"}, token=lab.admin).error["field"] == "password"
    changed = lab.cluster.ask("PATCH", "/api/v1/users/carol", {"role": "viewer"}, token=lab.admin).json
    assert (changed["role"], changed["tenant_id"]) == ("viewer", "shop")
    made = lab.cluster.ask("POST", "/api/v1/tokens", {"username": "carol", "lifetime": 60}, token=lab.admin)
    assert made.status == 201
    listed = lab.cluster.ask("GET", "/api/v1/tokens?username=carol", token=lab.admin)
    assert made.json["token"].encode() not in listed.body
    assert lab.cluster.ask("DELETE", "/api/v1/users/carol", token=lab.admin).status == 200
    assert lab.cluster.ask("GET", "/api/user", token=made.json["token"]).status == 401
    assert lab.cluster.ask("DELETE", "/api/v1/users/carol", token=lab.admin).status == 404


def test_every_change_of_users_and_tokens_is_an_event_with_who_and_from_where(lab: Lab) -> None:
    new = {"username": "carol", "password": "correct horse", "tenant_id": "shop"}
    lab.cluster.ask("POST", "/api/v1/users", new, token=lab.admin)
    made = lab.cluster.ask("POST", "/api/v1/tokens", {"username": "carol"}, token=lab.admin).json
    lab.cluster.ask("DELETE", f"/api/v1/tokens/{made['id']}", token=lab.admin)
    lab.cluster.ask("DELETE", "/api/v1/users/carol", token=lab.admin)
    noted = [
        (it.event.what, it.by)
        for it in lab.cluster.scheduler.stores.journal.read()
        if isinstance(it.event, AccessChanged)
    ]
    said = ("user_added", "token_made", "token_revoked", "user_removed")
    assert noted == [(what, "root-of-all@127.0.0.1") for what in said]


@pytest.mark.parametrize("path", ["/health", TASKS, "/nowhere", "/api/login"])
def test_host_and_origin_are_checked_before_everything_else(lab: Lab, path: str) -> None:
    assert lab.cluster.ask("GET", path, Host="evil.example").error["code"] == "WrongHost"
    assert lab.cluster.ask("GET", path, Origin="http://evil.example").error["code"] == "WrongOrigin"
    own = lab.cluster.ask("GET", "/health", Origin=f"http://127.0.0.1:{lab.cluster.port}")
    assert own.status == 200


def test_two_host_headers_are_refused(lab: Lab) -> None:
    with lab.cluster.socket() as line:
        line.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\n\r\n")
        assert line.recv(1000).startswith(b"HTTP/1.1 400")


def test_health_shows_no_paths_without_a_login(lab: Lab) -> None:
    lab.cluster.scheduler.loop.unwritable = StorageFull("There is no space left in /srv/secret-place/journal.")
    try:
        for path, status in (("/health", 200), ("/healthz", 200), ("/readyz", 503)):
            reply = lab.cluster.ask("GET", path)
            assert reply.status == status
            assert b"secret-place" not in reply.body
            assert b"no disk space" in reply.body
    finally:
        lab.cluster.scheduler.loop.unwritable = None
