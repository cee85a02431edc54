"""Authentication over real connections."""

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from argon2 import PasswordHasher

from gpuyard.core.domain.values import TenantId
from gpuyard.live.control_plane.access.authenticator import Authenticator
from gpuyard.live.control_plane.access.principal import AuthMethod, Denied, Principal, Role
from gpuyard.live.control_plane.access.store import AccessStore, NewToken
from gpuyard.live.control_plane.server import admitted_without_login
from gpuyard.live.control_plane.settings import AuthSection, ServerSettings
from gpuyard.live.wire.loopback_peer import LoopbackConnection

REMOTE = LoopbackConnection(("10.0.0.7", 40000), ("10.0.0.1", 8080))


@pytest.fixture
def store(tmp_path: Path) -> Iterator[AccessStore]:
    quick = PasswordHasher(time_cost=1, memory_cost=64, parallelism=1)
    store = AccessStore.open(tmp_path / "access.sqlite", hasher=quick)
    store.add_user("ann", "open sesame", TenantId("lab"), Role.MEMBER)
    yield store
    store.close()


@pytest.fixture
def local() -> Iterator[LoopbackConnection]:
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()),
        server.accept()[0] as ours,
    ):
        yield LoopbackConnection(ours.getpeername(), ours.getsockname())


def made_token(store: AccessStore) -> NewToken:
    made = store.make_token("ann")
    assert isinstance(made, NewToken)
    return made


def bearer(secret: str) -> list[tuple[bytes, bytes]]:
    return [(b"accept", b"*/*"), (b"authorization", b"Bearer " + secret.encode())]


def refused(answer: Principal | Denied, code: str) -> None:
    assert isinstance(answer, Denied), answer
    assert (answer.status, answer.code) == (401, code)
    assert answer.sentence.endswith(".")
    assert dict(answer.headers)["www-authenticate"].startswith("Bearer")


def test_the_owner_of_the_server_is_admin_on_loopback_without_a_token(
    store: AccessStore, local: LoopbackConnection
) -> None:
    who = Authenticator(store).authenticate([(b"accept", b"*/*")], local)
    assert isinstance(who, Principal)
    assert (who.role, who.via, who.tenant, who.address, who.token) == (
        Role.ADMIN,
        AuthMethod.LOCAL,
        None,
        "127.0.0.1",
        None,
    )
    assert who.username


def test_another_user_on_loopback_needs_a_token(store: AccessStore, local: LoopbackConnection) -> None:
    gate = Authenticator(store, local_uids=frozenset({os.getuid() + 1}))
    refused(gate.authenticate([], local), "LoginRequired")
    assert isinstance(gate.authenticate(bearer(made_token(store).secret), local), Principal)


def test_no_other_client_is_accepted_without_a_token(store: AccessStore) -> None:
    refused(Authenticator(store).authenticate([], REMOTE), "LoginRequired")


def test_a_token_is_accepted_everywhere_and_before_the_local_rule(
    store: AccessStore, local: LoopbackConnection
) -> None:
    made = made_token(store)
    for connection in (local, REMOTE):
        who = Authenticator(store).authenticate(bearer(made.secret), connection)
        assert who == Principal(
            "ann", TenantId("lab"), Role.MEMBER, AuthMethod.TOKEN, connection.peer[0], made.token.id
        )


def test_a_wrong_token_never_becomes_the_implicit_admin(store: AccessStore, local: LoopbackConnection) -> None:
    gate = Authenticator(store)
    made = made_token(store)
    refused(gate.authenticate(bearer("gy_wrong"), local), "UnknownToken")
    store.revoke_token(made.token.id)
    refused(gate.authenticate(bearer(made.secret), local), "TokenRevoked")


@pytest.mark.parametrize("value", [b"", b"Bearer", b"Bearer ", b"Basic YTpi", b"Token x", b"bearer\tx", b"\xff\xfe"])
def test_an_authorization_that_is_no_bearer_token_is_refused_on_loopback_too(
    store: AccessStore, local: LoopbackConnection, value: bytes
) -> None:
    refused(Authenticator(store).authenticate([(b"authorization", value)], local), "BadAuthorization")


def test_two_authorization_headers_are_refused(store: AccessStore, local: LoopbackConnection) -> None:
    refused(Authenticator(store).authenticate(bearer(made_token(store).secret) * 2, local), "BadAuthorization")


def test_the_scheme_may_be_in_lowercase(store: AccessStore) -> None:
    header = (b"authorization", b"bearer  " + made_token(store).secret.encode())
    assert isinstance(Authenticator(store).authenticate([header], REMOTE), Principal)


@pytest.mark.parametrize("header", [b"x-forwarded-for", b"forwarded", b"via", b"x-real-ip", b"x-forwarded-host"])
def test_a_request_forwarded_by_a_local_proxy_is_not_local(
    store: AccessStore, local: LoopbackConnection, header: bytes
) -> None:
    refused(Authenticator(store).authenticate([(header, b"10.0.0.7")], local), "LoginRequired")


def test_with_login_on_there_is_no_implicit_admin_unless_a_setting_allows_it() -> None:
    trusted = frozenset({0, os.getuid()})
    assert admitted_without_login(ServerSettings()) == trusted
    assert admitted_without_login(ServerSettings(auth=AuthSection(enabled=True))) == frozenset()
    assert admitted_without_login(ServerSettings(auth=AuthSection(enabled=True, local_admin=True))) == trusted


def test_with_login_on_the_owner_of_the_server_needs_a_token_too(store: AccessStore, local: LoopbackConnection) -> None:
    gate = Authenticator(store, admitted_without_login(ServerSettings(auth=AuthSection(enabled=True))))
    refused(gate.authenticate([], local), "LoginRequired")
    assert isinstance(gate.authenticate(bearer(made_token(store).secret), local), Principal)
