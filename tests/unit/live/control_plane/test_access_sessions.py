"""Sessions in the store of users and tokens, and their cookie."""

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest
from argon2 import PasswordHasher

from gpuyard.core.domain.values import TenantId
from gpuyard.live.control_plane.access.principal import Denied, Principal, Role
from gpuyard.live.control_plane.access.session_cookie import check_use, cookie_name, read_cookie, set_cookie
from gpuyard.live.control_plane.access.store import MOST_SESSIONS, AccessStore, NewToken

QUICK = PasswordHasher(time_cost=1, memory_cost=64, parallelism=1)
IDLE, LIFE = 600.0, 3600.0


class SessionStore:
    """A store whose time the test sets."""

    def __init__(self, path: Path) -> None:
        self.now = 1000.0
        self.path = path
        self.store = AccessStore.open(path, clock=lambda: self.now, hasher=QUICK)
        self.store.add_user("ann", "open sesame", TenantId("lab"), Role.MEMBER)

    def begins(self, uid: int | None = None) -> str:
        made = self.store.begin_session("ann", LIFE, uid)
        assert isinstance(made, NewToken)
        return made.secret

    def uses(self, secret: str, uid: int | None = None) -> str:
        """Return the username, or the code of the denial."""
        found = self.store.find_session(secret, "10.0.0.7", uid, IDLE)
        return found.username if isinstance(found, Principal) else found.code


@pytest.fixture
def sessions(tmp_path: Path) -> Iterator[SessionStore]:
    sessions = SessionStore(tmp_path / "access.sqlite")
    yield sessions
    sessions.store.close()


def test_a_session_that_is_not_used_ends(sessions: SessionStore) -> None:
    secret = sessions.begins()
    for _ in range(3):
        sessions.now += IDLE - 1
        assert sessions.uses(secret) == "ann"
    sessions.now += IDLE
    assert sessions.uses(secret) == "SessionExpired"


def test_a_session_ends_however_often_it_is_used(sessions: SessionStore) -> None:
    secret = sessions.begins()
    for _ in range(int(LIFE / 60) - 1):
        sessions.now += 60
        assert sessions.uses(secret) == "ann"
    sessions.now += 60
    assert sessions.uses(secret) == "SessionExpired"


def test_a_session_begun_over_loopback_is_bound_to_its_system_user(sessions: SessionStore) -> None:
    local, remote = sessions.begins(uid=1000), sessions.begins()
    assert sessions.uses(local, uid=1000) == "ann"
    assert sessions.uses(local, uid=1001) == sessions.uses(local) == "SessionEnded"
    assert sessions.uses(remote, uid=1000) == "SessionEnded"
    sessions.store.close()
    sessions.store = AccessStore.open(sessions.path, clock=lambda: sessions.now, hasher=QUICK)
    assert sessions.uses(local, uid=1001) == "SessionEnded"
    assert sessions.uses(local, uid=1000) == "ann"


def test_the_oldest_session_ends_when_a_user_has_too_many(sessions: SessionStore) -> None:
    secrets = []
    for _ in range(MOST_SESSIONS + 1):
        sessions.now += 0.1
        secrets.append(sessions.begins())
    assert [sessions.uses(secret) for secret in secrets[:2]] == ["SessionEnded", "ann"]
    assert sessions.uses(secrets[-1]) == "ann"


def test_the_file_does_not_contain_the_session(sessions: SessionStore) -> None:
    secret = sessions.begins()
    sessions.store.close()
    assert secret.encode() not in sessions.path.read_bytes()
    sessions.store = AccessStore.open(sessions.path, clock=lambda: sessions.now, hasher=QUICK)
    assert sessions.uses(secret) == "ann"


def test_a_file_of_the_previous_version_is_upgraded(sessions: SessionStore) -> None:
    made = sessions.store.make_token("ann", "laptop")
    assert isinstance(made, NewToken)
    sessions.store.close()
    database = sqlite3.connect(sessions.path)
    database.executescript("ALTER TABLE tokens DROP COLUMN uid; PRAGMA user_version = 1")
    database.close()
    sessions.store = AccessStore.open(sessions.path, clock=lambda: sessions.now, hasher=QUICK)
    assert isinstance(sessions.store.find(made.secret, "10.0.0.7"), Principal)
    assert sessions.uses(sessions.begins(uid=5), uid=5) == "ann"


def test_a_password_hash_of_the_settings_file_ends_sessions(sessions: SessionStore) -> None:
    secret = sessions.begins()
    sessions.store.ensure_user("ann", QUICK.hash("another one"), TenantId("lab"), Role.MEMBER)
    assert sessions.uses(secret) == "SessionEnded"


@pytest.mark.parametrize(
    ("host", "tls", "name"),
    [
        ("localhost:8080", False, "gpuyard-session-8080"),
        ("[::1]:8080", False, "gpuyard-session-8080"),
        ("[::1]", False, "gpuyard-session-80"),
        ("box", False, "gpuyard-session-80"),
        ("box", True, "__Host-gpuyard-session-443"),
        ("box:8443", True, "__Host-gpuyard-session-8443"),
    ],
)
def test_the_cookie_is_named_with_the_port_that_the_browser_addresses(host: str, tls: bool, name: str) -> None:
    assert cookie_name(host, tls) == name
    headers = [(b"host", host.encode()), (b"cookie", f"a=b; {name}=secret; c".encode())]
    assert read_cookie(headers, tls) == "secret"
    assert read_cookie(headers, not tls) is None


def test_over_tls_the_cookie_is_secure() -> None:
    made = set_cookie(cookie_name("box", tls=True), "x", tls=True)
    assert made == "__Host-gpuyard-session-443=x; Path=/; HttpOnly; SameSite=Strict; Secure"


def test_a_cookie_header_of_any_bytes_is_read_without_an_error() -> None:
    host = (b"host", b"box:1")
    for value in (b"", b";;;", b"=", b"\xff\x00=\xfe", b"gpuyard-session-1", b"gpuyard-session-1x=y"):
        assert read_cookie([host, (b"cookie", value)], tls=False) is None
    assert read_cookie([host, (b"cookie", b"gpuyard-session-1=\xff\xfe")], tls=False) == "\xff\xfe"
    assert isinstance(
        read_cookie([host, (b"cookie", b"gpuyard-session-1=a"), (b"cookie", b"gpuyard-session-1=b")], tls=False), Denied
    )


def test_a_chunked_body_needs_the_json_type_too() -> None:
    denied = check_use("POST", [(b"origin", b"http://box"), (b"transfer-encoding", b"chunked")])
    assert denied is not None
    assert denied.code == "JsonRequired"
