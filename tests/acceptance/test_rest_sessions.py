"""Sessions of browsers over HTTP, and attacks on them."""

import json
import re
import ssl
from collections.abc import Iterator
from contextlib import suppress
from http.client import HTTPConnection, HTTPSConnection, IncompleteRead
from pathlib import Path
from typing import Any

import pytest

from gpuyard.core.domain.events import AccessChanged
from gpuyard.live.control_plane.access.principal import Role
from gpuyard.live.control_plane.settings import ServerSection, ServerSettings, ServerTlsSection
from tests.acceptance.rest_cluster import Reply, RestCluster
from tests.unit.certificates import certificate, needs_openssl

SESSION, TASKS = "/api/v1/session", "/api/v1/tasks"
ONE = {"gpu_count": 1, "command": "true"}
LOGIN = {"username": "alice", "password": "correct horse"}


class Browser:
    """Sends the cookie of its session and the headers of a page of the server."""

    def __init__(self, cluster: RestCluster, login: dict[str, str] | None = None) -> None:
        self.cluster = cluster
        self.origin = f"http://127.0.0.1:{cluster.port}"
        self.cookie = ""
        if login is not None:
            reply = self.ask("POST", SESSION, login)
            assert reply.status == 200, reply.body
            self.cookie = cookie_of(reply)

    def ask(self, method: str, path: str, body: object = None, **headers: str) -> Reply:
        sent = {"Content_Type": "application/json"} if body is not None else {}
        if method != "GET":
            sent["Origin"] = self.origin
        if self.cookie:
            sent["Cookie"] = self.cookie
        return self.cluster.ask(method, path, body, **{**sent, **headers})


def cookie_of(reply: Reply) -> str:
    return reply.headers["set-cookie"].partition(";")[0]


def code(reply: Reply) -> tuple[int, Any]:
    return reply.status, reply.error["code"]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[RestCluster]:
    with RestCluster(tmp_path, local=False) as cluster:
        cluster.token_of("alice", Role.MEMBER, "lab")
        cluster.token_of("root-of-all", Role.ADMIN)
        yield cluster


def test_a_login_sets_a_cookie_that_acts_for_its_user(cluster: RestCluster) -> None:
    before = cluster.get(SESSION)
    assert before == {
        "login_required": True, "username": None, "tenant_id": None, "role": None, "via": None, "actions": []
    }  # fmt: skip
    reply = cluster.ask("POST", SESSION, LOGIN)
    assert reply.json["actions"] == ["see", "submit", "stop", "see_cluster", "own_access"]
    name, rest = reply.headers["set-cookie"].split("=", 1)
    assert name == f"gpuyard-session-{cluster.port}"
    assert re.fullmatch(r"gys_[\w-]{43}; Path=/; HttpOnly; SameSite=Strict", rest)
    browser = Browser(cluster, LOGIN)
    assert browser.ask("POST", TASKS, ONE).json["user"] == "alice"
    assert browser.ask("GET", TASKS).json["total"] == 1
    who = browser.ask("GET", SESSION).json
    assert (who["login_required"], who["username"], who["tenant_id"], who["role"], who["via"]) == (
        False, "alice", "lab", "member", "session"
    )  # fmt: skip


def test_logging_out_ends_the_session_on_the_server(cluster: RestCluster) -> None:
    browser = Browser(cluster, LOGIN)
    reply = browser.ask("DELETE", SESSION)
    assert reply.json["message"] == "The session has ended."
    assert reply.headers["set-cookie"].startswith(f"gpuyard-session-{cluster.port}=; ")
    assert "Max-Age=0" in reply.headers["set-cookie"]
    again = browser.ask("GET", TASKS)
    assert code(again) == (401, "SessionEnded")
    assert "Max-Age=0" in again.headers["set-cookie"]
    assert browser.ask("DELETE", SESSION).json["message"] == "There was no session."
    events = [record.event for record in cluster.scheduler.stores.journal.read(after=0)]
    assert [e.what for e in events if isinstance(e, AccessChanged)][-2:] == ["logged_in", "logged_out"]


@pytest.mark.parametrize("origin", ["http://127.0.0.1:1", "http://localhost:{port}", "http://evil.example", "null"])
def test_a_page_of_another_port_cannot_use_the_session(cluster: RestCluster, origin: str) -> None:
    browser = Browser(cluster, LOGIN)
    forged = browser.ask("POST", TASKS, ONE, Origin=origin.format(port=cluster.port))
    assert code(forged) == (403, "WrongOrigin")
    assert code(browser.ask("GET", TASKS, Origin="http://127.0.0.1:1")) == (403, "WrongOrigin")
    assert code(browser.ask("GET", TASKS, Sec_Fetch_Site="same-site")) == (403, "WrongOrigin")
    assert code(browser.ask("GET", TASKS, Sec_Fetch_Site="cross-site")) == (403, "WrongOrigin")
    assert browser.ask("GET", SESSION, Sec_Fetch_Site="same-site").status == 403
    for site in ("same-origin", "none"):
        assert browser.ask("GET", TASKS, Sec_Fetch_Site=site).json["total"] == 0


def test_a_change_with_a_cookie_needs_an_origin_and_a_json_body(cluster: RestCluster) -> None:
    browser = Browser(cluster, LOGIN)
    for method, path, body in (("POST", TASKS, ONE), ("DELETE", SESSION, None), ("DELETE", f"{TASKS}/1", None)):
        reply = cluster.ask(method, path, body, Cookie=browser.cookie, Content_Type="application/json")
        assert code(reply) == (403, "OriginRequired")
    for media in ("text/plain", "application/x-www-form-urlencoded", "", "application/jsonp"):
        assert code(browser.ask("POST", TASKS, ONE, Content_Type=media)) == (415, "JsonRequired")
    accepted = browser.ask("POST", TASKS, ONE, Content_Type="Application/JSON; charset=utf-8")
    assert accepted.status == 201
    assert browser.ask("POST", f"{TASKS}/{accepted.json['id']}/hold").status in {200, 409}
    assert browser.ask("GET", TASKS).json["total"] == 1


def test_a_token_needs_no_origin_and_takes_precedence(cluster: RestCluster) -> None:
    browser = Browser(cluster, LOGIN)
    made = browser.ask("POST", "/api/v1/tokens", {"name": "laptop"})
    assert made.json["expires_at"] is not None  # it does not outlive the session it was made with
    reply = cluster.ask("POST", TASKS, ONE, token=made.json["token"], Cookie="gpuyard-session-1=x; a=b")
    assert reply.status == 201
    assert cluster.ask("GET", TASKS, token="gy_wrong", Cookie=browser.cookie).error["code"] == "UnknownToken"


def test_a_session_is_no_token_and_a_token_no_session(cluster: RestCluster) -> None:
    browser = Browser(cluster, LOGIN)
    name, secret = browser.cookie.split("=", 1)
    assert code(cluster.ask("GET", TASKS, token=secret)) == (401, "UnknownToken")
    token = cluster.ask("POST", "/api/v1/login", LOGIN).json["token"]
    assert code(cluster.ask("GET", TASKS, Cookie=f"{name}={token}")) == (401, "SessionEnded")


def test_a_session_that_the_attacker_chose_is_never_adopted(cluster: RestCluster) -> None:
    name = f"gpuyard-session-{cluster.port}"
    planted = f"{name}=gys_{'A' * 43}"
    browser = Browser(cluster)
    browser.cookie = planted
    made = cookie_of(browser.ask("POST", SESSION, LOGIN))
    assert made not in {planted, f"{name}="}
    assert code(cluster.ask("GET", TASKS, Cookie=planted)) == (401, "SessionEnded")
    assert cluster.ask("GET", TASKS, Cookie=made).status == 200
    browser.cookie = made
    renewed = cookie_of(browser.ask("POST", SESSION, LOGIN))
    assert renewed != made
    assert code(browser.ask("GET", TASKS)) == (401, "SessionEnded")
    both = cluster.ask("GET", TASKS, Cookie=f"{planted}; {renewed}")
    assert code(both) == (401, "SessionEnded")


def test_a_session_ends_with_the_password_the_user_and_the_right_to_log_in(cluster: RestCluster) -> None:
    admin = Browser(cluster, {"username": "root-of-all", "password": "correct horse"})
    browser = Browser(cluster, LOGIN)
    changed = {"password": "battery staple", "old_password": "correct horse"}
    assert browser.ask("PATCH", "/api/v1/users/alice", changed).status == 200
    assert code(browser.ask("GET", TASKS)) == (401, "SessionEnded")
    browser = Browser(cluster, {**LOGIN, "password": "battery staple"})
    assert admin.ask("PATCH", "/api/v1/users/alice", {"disabled": True}).status == 200
    assert code(browser.ask("GET", TASKS)) == (401, "UserDisabled")
    admin.ask("PATCH", "/api/v1/users/alice", {"disabled": False})
    assert browser.ask("GET", TASKS).status == 200
    assert admin.ask("DELETE", "/api/v1/users/alice").status == 200
    assert code(browser.ask("GET", TASKS)) == (401, "SessionEnded")


def test_sessions_are_listed_with_the_tokens_and_revoked_like_them(cluster: RestCluster) -> None:
    browser, other = Browser(cluster, LOGIN), Browser(cluster, LOGIN)
    listed = browser.ask("GET", "/api/v1/tokens").json["tokens"]
    sessions = [it for it in listed if it["name"] == "browser session"]
    assert len(sessions) == 2
    assert browser.ask("DELETE", f"/api/v1/tokens/{sessions[1]['id']}").status == 200
    assert sorted((browser.ask("GET", TASKS).status, other.ask("GET", TASKS).status)) == [200, 401]


def test_a_wrong_password_begins_no_session_and_is_throttled(cluster: RestCluster) -> None:
    wrong = {**LOGIN, "password": "wrong"}
    for _ in range(5):
        reply = cluster.ask("POST", SESSION, wrong)
        assert code(reply) == (401, "WrongLogin")
        assert "set-cookie" not in reply.headers
    limited = cluster.ask("POST", SESSION, wrong)
    assert code(limited) == (429, "TooManyLogins")
    assert int(limited.headers["retry-after"]) >= 1
    assert cluster.ask("POST", SESSION, {"username": "alice"}).error["field"] == "password"


def test_a_wrong_password_within_a_session_does_not_end_it(cluster: RestCluster) -> None:
    browser = Browser(cluster, LOGIN)
    reply = browser.ask("POST", "/api/v1/tokens", {"name": "ci", "password": "wrong"})
    assert code(reply) == (401, "WrongLogin")
    assert "set-cookie" not in reply.headers
    assert browser.ask("GET", TASKS).status == 200


def test_a_stale_cookie_does_not_become_the_implicit_admin(tmp_path: Path) -> None:
    with RestCluster(tmp_path) as cluster:
        assert cluster.get(SESSION)["role"] == "admin"
        assert cluster.get(SESSION)["via"] == "local"
        stale = f"gpuyard-session-{cluster.port}=gys_old"
        reply = cluster.ask("GET", TASKS, Cookie=stale)
        assert code(reply) == (401, "SessionEnded")
        assert "Max-Age=0" in reply.headers["set-cookie"]
        assert cluster.get(SESSION, Cookie=stale)["login_required"] is True
        assert cluster.get(TASKS, Cookie="gpuyard-session-1=gys_of_another_port")["total"] == 0


def test_a_session_survives_a_restart_of_the_scheduler(tmp_path: Path) -> None:
    with RestCluster(tmp_path, local=False) as cluster:
        cluster.token_of("alice", Role.MEMBER, "lab")
        secret = Browser(cluster, LOGIN).cookie.partition("=")[2]
    with RestCluster(tmp_path, local=False) as cluster:
        reply = cluster.ask("GET", TASKS, Cookie=f"gpuyard-session-{cluster.port}={secret}")
        assert reply.status == 200


@pytest.mark.parametrize("path", ["/health", TASKS, "/nowhere", "/docs", f"{TASKS}/1/logs"])
def test_every_answer_has_the_security_headers(cluster: RestCluster, path: str) -> None:
    headers = cluster.ask("GET", path).headers
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["cross-origin-resource-policy"] == "same-origin"
    assert headers["referrer-policy"] == "no-referrer"


def test_an_answer_to_what_is_not_http_has_the_security_headers(cluster: RestCluster) -> None:
    with cluster.socket() as connection:
        connection.sendall(b"nonsense\r\n\r\n")
        head = connection.recv(4096).lower()
    assert b"x-content-type-options: nosniff" in head
    assert b"cross-origin-resource-policy: same-origin" in head


def test_a_stream_of_a_session_ends_with_it(cluster: RestCluster) -> None:
    browser = Browser(cluster, LOGIN)
    with cluster.socket() as connection:
        head = f"GET /api/v1/events HTTP/1.1\r\nHost: 127.0.0.1:{cluster.port}\r\nCookie: {browser.cookie}\r\n\r\n"
        connection.sendall(head.encode())
        assert b"200 OK" in connection.recv(4096)
        assert browser.ask("DELETE", SESSION).status == 200
        try:
            while connection.recv(4096):
                continue  # until the server closes the connection; the socket has a timeout
        except ConnectionResetError:
            return


@needs_openssl
def test_over_tls_browsers_enforce_the_rules_of_the_cookie(tmp_path: Path) -> None:
    pair = certificate(tmp_path, "scheduler")
    settings = ServerSettings(server=ServerSection(tls=ServerTlsSection(cert=str(pair.cert), key=str(pair.key))))
    with RestCluster(tmp_path, settings=settings, local=False) as cluster:
        cluster.token_of("alice", Role.MEMBER, "lab")
        trusted = ssl.create_default_context(cafile=pair.cert)

        def ask(method: str, path: str, body: object = None, **headers: str) -> Reply:
            connection = HTTPSConnection("127.0.0.1", cluster.port, timeout=20, context=trusted)
            try:
                connection.request(method, path, None if body is None else json.dumps(body), headers)
                response = connection.getresponse()
                return Reply(response.status, dict(response.getheaders()), response.read())
            finally:
                connection.close()

        reply = ask("POST", SESSION, LOGIN)
        name, rest = reply.headers["set-cookie"].split("=", 1)
        assert name == f"__Host-gpuyard-session-{cluster.port}"
        secret, attributes = rest.split("; ", 1)
        assert attributes == "Path=/; HttpOnly; SameSite=Strict; Secure"
        assert ask("GET", TASKS, Cookie=f"{name}={secret}").status == 200
        plain = ask("GET", TASKS, Cookie=f"gpuyard-session-{cluster.port}={secret}")
        assert code(plain) == (401, "LoginRequired")  # a cookie that another page could have set is not looked at


def test_an_open_stream_is_not_a_use_of_its_session(cluster: RestCluster) -> None:
    browser = Browser(cluster, LOGIN)
    connection = HTTPConnection("127.0.0.1", cluster.port, timeout=30)
    connection.request("GET", "/api/v1/live", headers={"Cookie": browser.cookie})
    stream = connection.getresponse()
    assert stream.status == 200
    used = dict(cluster.access._used)
    assert len(used) == 1
    samples = 0
    while samples < 3:  # one a second, as often as the access of the stream is checked
        samples += stream.readline().startswith(b"event: sample")
    assert cluster.access._used == used
    (begun,) = used.values()
    cluster.access._clock = lambda: begun + 2 * 3600 + 1
    with suppress(IncompleteRead, ConnectionError):  # it is aborted
        while stream.readline():
            pass
    assert code(browser.ask("GET", TASKS)) == (401, "SessionExpired")
    connection.close()
