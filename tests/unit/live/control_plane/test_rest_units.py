"""Parts of the REST API that need no server."""

from collections.abc import Iterable

import pytest
import starlette.routing
from starlette.datastructures import QueryParams

from gpuyard.live.control_plane.access.allowed_hosts import AllowedHosts
from gpuyard.live.control_plane.access.authenticator import Authenticator
from gpuyard.live.control_plane.access.principal import ROLE_SCOPES, Scope
from gpuyard.live.control_plane.access.store import AccessStore
from gpuyard.live.control_plane.rest.legacy.history import History
from gpuyard.live.control_plane.rest.legacy.messages import SystemMetrics
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
        if route.method != "GET" and not route.path.endswith("/login"):
            assert route.action is not None, route.path
            assert Scope.NONE in ROLE_SCOPES[route.action].values() or route.action == "own_access", route.path


def test_a_connection_is_identified_by_object_and_not_by_address(tmp_path_factory: pytest.TempPathFactory) -> None:
    store = AccessStore.open(tmp_path_factory.mktemp("access") / "access.sqlite")
    guard = RequestGuard(Authenticator(store), AllowedHosts("127.0.0.1"))
    clients = [("127.0.0.1", int(text)) for text in ("5000", "5000")]
    first, second = ({"client": client, "server": ("127.0.0.1", 80)} for client in clients)
    assert guard.connection(first) is guard.connection(first)
    assert guard.connection(first) is not guard.connection(second)
    kept = guard.connection(first)
    for port in range(MAX_CONNECTIONS + 1):
        guard.connection({"client": ("127.0.0.1", port), "server": ("127.0.0.1", 80)})
    assert guard.connection(first) is not kept
    store.close()


def sample(number: int, gpus: int) -> SystemMetrics:
    devices: Iterable[None] = [None] * gpus
    return SystemMetrics(
        timestamp=str(number),
        total_gpus=gpus,
        allocated_gpus=0,
        avg_utilization=0,
        avg_memory_usage=0,
        avg_temperature=0,
        avg_power_usage=0,
        device_metrics=list(devices),  # type: ignore[arg-type]
        active_tenants=0,
        active_tasks=0,
        tenant_utilization={},
    )


def test_the_history_of_a_large_cluster_is_shorter_than_that_of_a_small_one() -> None:
    for gpus, kept in ((0, 10), (1, 10), (4, 5), (100, 1)):
        history = History(most_samples=10, most_gpu_samples=20)
        for number_ in range(30):
            history.add(sample(number_, gpus), number_)
        assert [it.timestamp for it in history.newest(99)] == [str(number_) for number_ in range(30 - kept, 30)]
        assert len(list(history.newest(1))) == 1


def test_samples_older_than_the_retention_are_dropped() -> None:
    history = History(keep_seconds=10.0)
    for at in range(0, 60, 5):
        history.add(sample(at, 1), float(at))
    assert [it.timestamp for it in history.newest(99)] == ["45", "50", "55"]


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
