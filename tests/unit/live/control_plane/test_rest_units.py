"""Parts of the REST API that need no server."""

import pytest
import starlette.routing
from starlette.datastructures import QueryParams

from gpuyard.live.control_plane.access.allowed_hosts import AllowedHosts
from gpuyard.live.control_plane.access.authenticator import Authenticator
from gpuyard.live.control_plane.access.principal import ROLE_SCOPES, Scope
from gpuyard.live.control_plane.access.store import AccessStore
from gpuyard.live.control_plane.rest.query import instant, number, read_query, yes_or_no
from gpuyard.live.control_plane.rest.request_guard import MAX_CONNECTIONS, RequestGuard
from gpuyard.live.control_plane.rest.routes import ROUTES


def test_every_route_is_found_under_its_own_path() -> None:
    for route in ROUTES:
        path = route.path.replace("{", "a-").replace("}", "")
        matching = [it.path for it in ROUTES if starlette.routing.compile_path(it.path)[0].match(path)]
        assert set(matching) == {route.path}


def test_every_route_that_changes_something_checks_the_caller() -> None:
    for route in ROUTES:
        if route.method != "GET" and not route.path.endswith(("/login", "/session")):
            assert route.action is not None, route.path
            assert Scope.NONE in ROLE_SCOPES[route.action].values() or route.action == "own_access", route.path


def test_a_connection_is_identified_by_object_and_not_by_address(tmp_path_factory: pytest.TempPathFactory) -> None:
    store = AccessStore.open(tmp_path_factory.mktemp("access") / "access.sqlite")
    guard = RequestGuard(Authenticator(store), AllowedHosts("127.0.0.1"), store, 60.0)
    clients = [("127.0.0.1", int(text)) for text in ("5000", "5000")]
    first, second = ({"client": client, "server": ("127.0.0.1", 80)} for client in clients)
    assert guard.connection(first) is guard.connection(first)
    assert guard.connection(first) is not guard.connection(second)
    kept = guard.connection(first)
    for port in range(MAX_CONNECTIONS + 1):
        guard.connection({"client": ("127.0.0.1", port), "server": ("127.0.0.1", 80)})
    assert guard.connection(first) is not kept
    store.close()


def test_query_parameters_are_read_strictly() -> None:
    assert read_query((), QueryParams(b"")) == {}
    assert (yes_or_no(""), yes_or_no("true"), yes_or_no("0")) == (True, True, False)
    assert instant("1970-01-01T01:00:00+01:00") == instant("1970-01-01") == instant("0") == 0
    assert number(-5, 5)("-5") == -5
    for read, wrong in (
        (number(0, 9), "1_0"),
        (number(0, 9), "٣"),
        (number(0, 9), " 1"),
        (number(0, 9), "--1"),
        (yes_or_no, "maybe"),
        (instant, "inf"),
        (instant, "-1"),
        (instant, "0001-01-01"),
        (instant, "10000-01-01"),
    ):
        with pytest.raises(ValueError, match="must"):
            read(wrong)
