"""The user at the other end of a connection, with real sockets."""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from ipaddress import ip_address

import pytest

from gpuyard.live.wire.loopback_peer import (
    ConnectionEnds,
    LoopbackConnection,
    is_loopback,
    trusted_uids,
    uid_by_proc_tables,
    uid_by_sock_diag,
    uid_of_peer,
)

NOBODY = 65534
ANSWERS = (os.getuid(), None)
CLIENT = """
import os, socket, sys
host, port, uid = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
if os.getuid() != uid:
    os.setgroups([]); os.setgid(uid); os.setuid(uid)
family = socket.AF_INET6 if ":" in host else socket.AF_INET
peer = socket.socket(family)
peer.connect((host, port))
print(flush=True)
sys.stdin.read()
"""


def has_ipv6() -> bool:
    try:
        with socket.create_server(("::1", 0), family=socket.AF_INET6):
            return True
    except OSError:
        return False


needs_ipv6 = pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6 loopback")


@contextmanager
def accepted(listen: str, dial: str) -> Iterator[tuple[socket.socket, socket.socket]]:
    """The client's and the server's end of a connection."""
    family = socket.AF_INET6 if ":" in listen else socket.AF_INET
    with ExitStack() as stack:
        both = listen == "::"
        server = stack.enter_context(socket.create_server((listen, 0), family=family, dualstack_ipv6=both))
        client = stack.enter_context(socket.socket(socket.AF_INET6 if ":" in dial else socket.AF_INET))
        client.connect((dial, server.getsockname()[1]))
        ours, _ = server.accept()
        stack.enter_context(ours)
        yield client, ours


def connection_of(ours: socket.socket) -> LoopbackConnection:
    return LoopbackConnection(ours.getpeername()[:2], ours.getsockname()[:2])


WAYS = [
    pytest.param("127.0.0.1", "127.0.0.1", id="IPv4"),
    pytest.param("0.0.0.0", "127.0.0.3", id="another address of loopback"),
    pytest.param("::1", "::1", id="IPv6", marks=needs_ipv6),
    pytest.param("::", "127.0.0.1", id="an IPv4 client at an IPv6 server", marks=needs_ipv6),
    pytest.param("::", "::1", id="an IPv6 client at a server for both", marks=needs_ipv6),
    pytest.param("127.0.0.1", "::ffff:127.0.0.1", id="an IPv6 client at an IPv4 server", marks=needs_ipv6),
]


def ends_of(ours: socket.socket) -> ConnectionEnds:
    peer, here = (
        (ip_address(host.removeprefix("::ffff:")), port)
        for host, port in (ours.getpeername()[:2], ours.getsockname()[:2])
    )
    return ConnectionEnds(*peer, *here)


@pytest.mark.parametrize(("listen", "dial"), WAYS)
def test_ones_own_connection_is_recognized(listen: str, dial: str) -> None:
    with accepted(listen, dial) as (_, ours):
        assert connection_of(ours).peer_uid == os.getuid()
        assert uid_by_proc_tables(ends_of(ours)) == os.getuid()
        assert uid_by_sock_diag(ends_of(ours)) in ANSWERS, "the kernel says the same, or nothing"


@pytest.mark.parametrize(("listen", "dial"), WAYS)
@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
def test_another_users_connection_is_recognized_as_theirs(listen: str, dial: str) -> None:
    family = socket.AF_INET6 if ":" in listen else socket.AF_INET
    with socket.create_server((listen, 0), family=family, dualstack_ipv6=listen == "::") as server:
        server.settimeout(30)
        command = [sys.executable, "-c", CLIENT, dial, str(server.getsockname()[1]), str(NOBODY)]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as client:
            ours, _ = server.accept()
            with ours:
                assert connection_of(ours).peer_uid == NOBODY
                assert uid_by_proc_tables(ends_of(ours)) == NOBODY
            client.kill()


def test_the_kernel_is_asked_once_per_connection() -> None:
    with accepted("127.0.0.1", "127.0.0.1") as (client, ours):
        connection = connection_of(ours)
        assert connection.peer_uid == os.getuid()
        client.close()
        assert connection.peer_uid == os.getuid()


def test_a_connection_closed_by_its_client_is_not_local() -> None:
    """The kernel shows such a socket as root's, since it has no owner: this must not grant access."""
    with accepted("127.0.0.1", "127.0.0.1") as (client, ours):
        connection = connection_of(ours)
        client.close()
        assert ours.recv(1) == b""
        assert connection.peer_uid is None
        assert uid_by_proc_tables(ends_of(ours)) is None
        assert uid_by_sock_diag(ends_of(ours)) is None


@pytest.mark.parametrize(("listen", "dial"), WAYS)
def test_a_connection_whose_client_has_ended_its_side_only_is_still_the_clients(listen: str, dial: str) -> None:
    """As `nc -N` does after a complete request: its process still holds the socket and waits for the answer."""
    with accepted(listen, dial) as (client, ours):
        client.shutdown(socket.SHUT_WR)
        assert ours.recv(1) == b""
        assert connection_of(ours).peer_uid == os.getuid()
        assert uid_by_proc_tables(ends_of(ours)) == os.getuid()
        assert uid_by_sock_diag(ends_of(ours)) in ANSWERS


def test_a_connection_that_the_server_has_ended_on_its_side_is_still_the_clients() -> None:
    with accepted("127.0.0.1", "127.0.0.1") as (client, ours):
        ours.shutdown(socket.SHUT_WR)
        assert client.recv(1) == b""
        assert connection_of(ours).peer_uid == os.getuid()
        assert uid_by_proc_tables(ends_of(ours)) == os.getuid()


def test_a_connection_closed_on_both_sides_is_not_local() -> None:
    with accepted("127.0.0.1", "127.0.0.1") as (client, ours):
        connection = connection_of(ours)
        ours.close()
        client.close()
        assert connection.peer_uid is None


def test_a_listening_server_is_not_taken_for_a_client() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        ends = ConnectionEnds(ip_address("127.0.0.1"), port, ip_address("127.0.0.1"), port ^ 1)
        assert uid_by_proc_tables(ends) is None
        assert uid_by_sock_diag(ends) is None


def test_the_two_ends_are_not_confused() -> None:
    with accepted("127.0.0.1", "127.0.0.1") as (client, ours):
        peer, here = ours.getpeername(), ours.getsockname()
        assert uid_of_peer(peer, (here[0], here[1] ^ 1)) is None
        assert uid_of_peer((peer[0], peer[1] ^ 1), here) is None
        assert uid_of_peer(("127.0.0.2", peer[1]), here) is None
        assert client.getsockname() == peer


@pytest.mark.parametrize(
    "host", ["10.0.0.1", "192.168.1.1", "::", "fe80::1%lo", "0.0.0.0", "localhost", "", "testclient"]
)
def test_other_addresses_than_loopback_are_never_local(host: str) -> None:
    assert not is_loopback(host)
    assert uid_of_peer((host, 1), ("127.0.0.1", 2)) is None
    assert uid_of_peer(("127.0.0.1", 1), (host, 2)) is None


@pytest.mark.parametrize("host", ["127.0.0.1", "127.255.255.254", "::1", "::ffff:127.0.0.1"])
def test_loopback_addresses_are_recognized(host: str) -> None:
    assert is_loopback(host)


def test_root_and_the_owner_of_the_process_are_trusted() -> None:
    assert trusted_uids() == {0, os.getuid()}


def test_a_lookup_among_many_connections_takes_milliseconds_at_most() -> None:
    with ExitStack() as stack:
        server = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=300))
        for _ in range(200):
            stack.enter_context(socket.create_connection(server.getsockname()))
            stack.enter_context(server.accept()[0])
        with accepted("127.0.0.1", "127.0.0.1") as (_, ours):
            took = []
            for _ in range(5):
                began = time.perf_counter()
                assert connection_of(ours).peer_uid == os.getuid()
                took.append(time.perf_counter() - began)
    assert min(took) < 0.05
