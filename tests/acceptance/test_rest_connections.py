"""HTTP connections: requests that are too large, too slow or not HTTP, and their isolation from other clients."""

import json
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from gpuyard.core.domain.errors import StorageFull, StorageUnreachable
from gpuyard.live.control_plane.rest.serving import Limits
from tests.acceptance.rest_cluster import RestCluster
from tests.acceptance.waiting import until

TASKS = "/api/v1/tasks"
IDLE_SECONDS = 0.6


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RestCluster]:
    with RestCluster(tmp_path_factory.mktemp("line"), idle_seconds=IDLE_SECONDS) as cluster:
        yield cluster


def read_all(line: socket.socket) -> bytes:
    found = b""
    while chunk := line.recv(65536):
        found += chunk
    return found


def test_a_body_above_one_mebibyte_is_413_with_and_without_a_length(cluster: RestCluster) -> None:
    large = b'{"command": "' + b"x" * (2 << 20) + b'"}'
    reply = cluster.ask("POST", TASKS, large)
    assert (reply.status, reply.error["code"], reply.headers["connection"]) == (413, "TooLarge", "close")
    with cluster.socket() as line:
        line.sendall(b"POST /api/v1/tasks HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n")
        for _ in range(3):
            line.sendall(b"%x\r\n" % (1 << 19) + b"x" * (1 << 19) + b"\r\n")
        line.sendall(b"0\r\n\r\n")
        assert read_all(line).startswith(b"HTTP/1.1 413 ")


def test_a_batch_may_be_larger_but_is_limited(cluster: RestCluster) -> None:
    tasks = [{"gpu_count": 99, "command": "x" * 20_000}] * 100
    reply = cluster.ask("POST", f"{TASKS}:batch", {"tasks": tasks})
    assert reply.status == 201
    with cluster.socket() as line:
        length = f"Content-Length: {65 << 20}\r\nExpect: 100-continue"
        line.sendall(f"POST {TASKS}:batch HTTP/1.1\r\nHost: localhost\r\n{length}\r\n\r\n".encode())
        assert read_all(line).startswith(b"HTTP/1.1 413 ")


def test_a_client_that_stalls_in_the_middle_of_a_request_gets_408(cluster: RestCluster) -> None:
    beginnings = (
        b"",
        b"POST /api/v1/tasks HTTP/1.1\r\nHost: local",
        b"POST /api/v1/tasks HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{",
    )
    for beginning in beginnings:
        with cluster.socket() as line:
            line.sendall(beginning)
            answer = read_all(line)
        assert answer.startswith(b"HTTP/1.1 408 ")
        assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["code"] == "TooSlow"


def test_headers_sent_byte_by_byte_do_not_hold_a_connection_forever(cluster: RestCluster) -> None:
    with cluster.socket() as line:
        line.sendall(b"GET /health HTTP/1.1\r\nX: ")
        begun = time.monotonic()
        line.settimeout(0.05)
        answer = b""
        while not answer and time.monotonic() < begun + 10:
            try:
                line.sendall(b"x")
                answer = line.recv(1000)
            except TimeoutError:
                continue
        assert answer.startswith(b"HTTP/1.1 408 ")


def test_endless_headers_are_431(cluster: RestCluster) -> None:
    with cluster.socket() as line:
        line.sendall(b"GET /health HTTP/1.1\r\nX: " + b"x" * (80 << 10))
        assert line.recv(1000).startswith(b"HTTP/1.1 431 ")


@pytest.mark.parametrize(
    "longer", ["/api/v1/tasks/task-1/console?x=" + "a" * 9000, "/health HTTP/1.1" + "\r\nX: y" * 150]
)
def test_a_request_for_a_websocket_that_its_parser_refuses_is_answered(cluster: RestCluster, longer: str) -> None:
    with cluster.socket() as client:
        client.sendall(
            f"GET {longer}{'' if 'HTTP' in longer else ' HTTP/1.1'}\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
            "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n".encode()
        )
        answer = read_all(client)
    assert answer.startswith(b"HTTP/1.1 431 ")
    assert b"lines of at most 8 KiB" in answer


@pytest.mark.parametrize("nonsense", [b"\x16\x03\x01\x02\x00\x01\x00", b"HELLO\r\n\r\n", b"GET \xff HTTP/1.1\r\n\r\n"])
def test_input_that_is_not_http_is_answered_with_the_usual_error_object(cluster: RestCluster, nonsense: bytes) -> None:
    with cluster.socket() as line:
        line.sendall(nonsense)
        answer = read_all(line)
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["code"] == "MalformedHttp"


def test_a_compressed_body_is_415(cluster: RestCluster) -> None:
    assert cluster.ask("POST", TASKS, b"\x1f\x8b", Content_Encoding="gzip").status == 415


def test_stalled_clients_and_garbage_uploads_do_not_affect_others(cluster: RestCluster) -> None:
    lines = [socket.create_connection(("127.0.0.1", cluster.port)) for _ in range(40)]
    try:
        for line in lines:
            line.sendall(
                b"POST /api/v1/tasks HTTP/1.1\r\nHost: localhost\r\nContent-Length: 999999\r\n\r\n" + b"x" * 99
            )
        for _ in range(20):
            begun = time.monotonic()
            assert cluster.ask("GET", "/readyz").status == 200
            assert time.monotonic() - begun < 10
    finally:
        for line in lines:
            line.close()


def test_many_requests_use_one_connection_even_after_errors(cluster: RestCluster) -> None:
    with cluster.socket() as line:
        reader = line.makefile("rb")
        for path, status in (("/health", b"200"), ("/nowhere", b"404"), (f"{TASKS}?x=1", b"400"), ("/readyz", b"200")):
            line.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
            assert reader.readline().split()[1] == status
            length = 0
            while (header := reader.readline().strip()) != b"":
                if header.startswith(b"content-length:"):
                    length = int(header.split(b":")[1])
            json.loads(reader.read(length))


def test_an_unknown_address_names_the_nearest_one_and_a_wrong_method_names_the_allowed_ones(
    cluster: RestCluster,
) -> None:
    reply = cluster.ask("GET", "/api/v1/task")
    assert reply.status == 404
    assert "Did you mean /api/v1/tasks?" in reply.error["message"]
    reply = cluster.ask("PUT", TASKS)
    assert (reply.status, reply.headers["allow"]) == (405, "GET, HEAD, POST")
    assert cluster.ask("OPTIONS", TASKS, Origin=f"http://127.0.0.1:{cluster.port}").status == 405
    assert "access-control-allow-origin" not in cluster.ask("GET", TASKS).headers
    for path in ("//", "/api//v1/tasks", f"{TASKS}/", "/" + "x" * 5000, "/..%2f..%2fetc%2fpasswd"):
        assert cluster.ask("GET", path).status == 404


def test_head_is_get_without_the_body(cluster: RestCluster) -> None:
    reply = cluster.ask("HEAD", "/health")
    assert (reply.status, reply.body) == (200, b"")
    assert int(reply.headers["content-length"]) > 10


def test_a_scheduler_without_space_or_not_ready_says_so_and_refuses_work(tmp_path: Path) -> None:
    with RestCluster(tmp_path) as cluster:
        loop = cluster.scheduler.loop  # as a commit that finds no space leaves it
        loop.unwritable = StorageFull("No space is left for the journal.")
        ready = cluster.ask("GET", "/readyz")
        assert (ready.status, ready.error["code"]) == (503, "StorageFull")
        assert cluster.get("/health")["status"] == "storage_full"
        refused = cluster.ask("POST", TASKS, {"gpu_count": 1, "command": "true"})
        assert (refused.status, refused.error["message"], refused.headers["retry-after"]) == (
            503,
            "No space is left for the journal.",
            "5",
        )
        loop.unwritable = StorageUnreachable("The database of the scheduler does not answer.")
        ready = cluster.ask("GET", "/readyz")
        assert (ready.status, ready.error["code"]) == (503, "StorageUnreachable")
        assert cluster.get("/health")["status"] == "storage_unreachable"
        refused = cluster.ask("POST", TASKS, {"gpu_count": 1, "command": "true"})
        assert (refused.status, refused.error["code"]) == (503, "StorageUnreachable")
        loop.unwritable = None
        cluster.scheduler.ready = False
        assert cluster.ask("GET", "/readyz").error["code"] == "NotReady"
        assert cluster.ask("POST", TASKS, {"gpu_count": 1}).error["code"] == "NotReady"
        cluster.scheduler.ready = True
        assert cluster.submit()["id"] == "task-1"


def test_a_body_sent_byte_by_byte_does_not_hold_a_connection_forever(cluster: RestCluster) -> None:
    with cluster.socket() as line:
        line.sendall(b"POST /api/login HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\n{")
        begun = time.monotonic()
        line.settimeout(0.05)
        answer = b""
        while not answer and time.monotonic() < begun + 10:
            try:
                line.sendall(b" ")
                answer = line.recv(1000)
            except TimeoutError:
                continue
        assert answer.startswith(b"HTTP/1.1 408 ")


# --- how many connections


def health(cluster: RestCluster) -> int:
    return cluster.ask("GET", "/health").status


def test_idle_connections_do_not_keep_others_out(tmp_path: Path) -> None:
    limits = Limits(most=20, most_of_one=10)
    with RestCluster(tmp_path, limits=limits) as cluster, ExitStack() as held:
        lines = [held.enter_context(cluster.socket()) for _ in range(30)]
        assert [health(cluster) for _ in range(5)] == [200] * 5
        assert read_all(lines[0]) == b""  # the one that was idle for longest made room
        lines[-1].sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        assert read_all(lines[-1]).startswith(b"HTTP/1.1 200 ")


def test_when_all_connections_are_in_use_a_new_one_gets_503(tmp_path: Path) -> None:
    limits = Limits(most=20, most_of_one=3)
    with RestCluster(tmp_path, limits=limits) as cluster, ExitStack() as held:
        for _ in range(3):
            line = held.enter_context(cluster.socket())
            line.sendall(b"GET /api/v1/events HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert line.recv(12) == b"HTTP/1.1 200"
        with cluster.socket() as line:
            answer = read_all(line)
        assert answer.startswith(b"HTTP/1.1 503 ")
        assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["code"] == "TooManyConnections"
        held.close()
        until(lambda: health(cluster) == 200, what="there is room again")


def test_connection_limits_follow_the_number_of_descriptors() -> None:
    assert Limits.within(1 << 16, 4096, 1024) == (4096, 1024, (1 << 16) - 128)
    assert Limits.within(256, 4096, 1024) == (96, 48, 192)


def test_a_client_that_ends_its_side_after_a_complete_request_gets_the_whole_answer(cluster: RestCluster) -> None:
    """As `nc -N` does; it is admitted as the same user as before."""
    body = b'{"gpu_count": 99, "command": "true"}'
    asked = (
        (b"GET /api/v1/tasks HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n", b"200"),
        (b"POST /api/v1/tasks HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
         b"Content-Length: %d\r\n\r\n%b" % (len(body), body), b"201"),
    )  # fmt: skip
    for request, status in asked * 5:
        with cluster.socket() as line:
            line.sendall(request)
            line.shutdown(socket.SHUT_WR)
            head, _, rest = read_all(line).partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 " + status)
        assert json.loads(rest)


@pytest.mark.parametrize("path", ["/healthz", "/readyz", TASKS, f"{TASKS}/1", f"{TASKS}/task-1", "/api/v1/nodes"])
def test_a_line_break_after_a_path_is_part_of_the_path(cluster: RestCluster, path: str) -> None:
    reply = cluster.ask("GET", f"{path}%0A")
    assert (reply.status, "code" in reply.error) == (404, True)
