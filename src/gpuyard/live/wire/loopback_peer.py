"""Finds the user at the other end of a loopback connection in the kernel's /proc/net/tcp.

Both ends of such a connection are sockets of this machine, and the table has a row for each. The row whose local
address is the peer's belongs to the peer, and has the uid of the socket's owner.

    sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
     3: 0100007F:DD0C 0100007F:1F90 01 00000000:00000000 00:00000000 00000000  1000        0 90426 …
        the peer      us            established                                uid           whose socket it is

Only a row with an inode counts, of a connection that is established or half closed: after `shutdown`, by either side, the
process still holds its socket. The kernel shows 0, which is root, for sockets without an owner, as after `close` and in
TIME_WAIT; those have no inode. As long as our end is open, no other connection can have the same two ends. An IPv4 client is in `tcp`; an IPv6 socket connected to an IPv4 address is in `tcp6`, as
::ffff:127.0.0.1. If the kernel answers for single sockets (sock_diag.py), that is tried first: the same rules, and a
hundred times faster.
"""

import os
import socket
import sys
import time
from functools import cached_property
from hashlib import sha256
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path
from select import select
from typing import NamedTuple

from gpuyard.live.wire import sock_diag
from gpuyard.live.wire.clock import SYSTEM_CLOCK
from gpuyard.system.backoff import Backoff

SocketAddress = tuple[str, int]
"""A numeric host, and a port."""
_Ip = IPv4Address | IPv6Address

_TABLES = Path("/proc/net")
_HELD_STATES = frozenset({1, 4, 5, 8})
"""ESTABLISHED, FIN_WAIT1 and FIN_WAIT2 (its owner has ended its side), CLOSE_WAIT (we have ended ours)."""
_ROW_SECONDS = 0.5
"""A connection to this machine is in the kernel's table at once, accepted or not."""


def trusted_uids() -> frozenset[int]:
    """Return the uids that need no login: the owner of this process, and root, which could read its memory anyway."""
    return frozenset({0, os.getuid()})


def shared_user_label(uid: int) -> tuple[str, str]:
    """Return the label of a node on this machine whose agent runs tasks of all users under its own uid.

    A uid is meaningless on another machine, so the label includes a hash of this boot of this machine.
    """
    machine = sha256(SYSTEM_CLOCK.machine_start().encode()).hexdigest()[:16]
    return ("gpuyard/shared_user", f"{uid}@{machine}")


class LoopbackConnection:
    """One TCP connection, from our side. Create it on accept and keep it until it closes; the kernel is asked once.

    It must not be looked up by its addresses later: a closed port may belong to another process next.
    """

    def __init__(self, peer: SocketAddress, ours: SocketAddress) -> None:
        self.peer = peer
        self.ours = ours

    @cached_property
    def peer_uid(self) -> int | None:
        """The uid at the other end; None if it is not on loopback or gone."""
        return uid_of_peer(self.peer, self.ours)


def uid_of_peer(peer: SocketAddress, ours: SocketAddress) -> int | None:
    """Return the uid that owns the other end of a connection; None if it is not on loopback or gone."""
    ends = _ends(peer, ours)
    if ends is None:
        return None
    uid = uid_by_sock_diag(ends)
    return uid_by_proc_tables(ends) if uid is None else uid


def owner_of_server(connection: socket.socket, seconds: float) -> int | None:
    """Return the uid of the process that accepts a connection we have opened to this machine, once it is accepted.

    None: the kernel does not say, or the server is in another network namespace. Raises `TimeoutError` if the
    connection is not accepted in that time, `ConnectionError` if it was closed before.
    """
    peer, ours = connection.getpeername()[:2], connection.getsockname()[:2]
    ends = ConnectionEnds(_plain(peer[0]), peer[1], _plain(ours[0]), ours[1])
    began, backoff = time.monotonic(), Backoff(0.0002, 0.05)
    while True:
        uid = uid_by_sock_diag(ends)
        uid = uid_by_proc_tables(ends) if uid is None else uid
        if uid is not None:
            return uid
        waited = time.monotonic() - began
        if select([connection], [], [], 0)[0] and not connection.recv(1, socket.MSG_PEEK):
            raise ConnectionAbortedError("it was closed before a request was sent")
        if waited > _ROW_SECONDS and not _is_there(ends):
            return None
        if waited > seconds:
            raise TimeoutError
        # The connection is established before the server has accepted it; until then its socket has no owner.
        time.sleep(backoff.next())


def is_on_this_machine(connection: socket.socket) -> bool:
    """Return whether both ends of a TCP connection are on this machine: on loopback, or at one of its own addresses."""
    peer, ours = connection.getpeername()[0], connection.getsockname()[0]
    return is_loopback(peer) or _plain(peer) == _plain(ours)


class ConnectionEnds(NamedTuple):
    """Both ends of a connection, as the peer's socket has them: its own first."""

    peer: _Ip
    peer_port: int
    ours: _Ip
    our_port: int


def uid_by_sock_diag(ends: ConnectionEnds) -> int | None:
    """Ask the kernel for the one socket."""
    found = sock_diag.find(*ends)
    return found.uid if found and found.state in _HELD_STATES and found.inode else None


def uid_by_proc_tables(ends: ConnectionEnds) -> int | None:
    """Search the tables of all sockets."""
    uid = _uid_in("tcp", ends)
    return _uid_in("tcp6", ends) if uid is None else uid


def is_loopback(host: str) -> bool:
    """Return whether a numeric address is on loopback."""
    return _loopback(host) is not None


def is_loopback_address(address: str) -> bool:
    """Return whether HOST:PORT is on loopback. Of all names only localhost counts: the others can change."""
    host = address.rpartition(":")[0].removeprefix("[").removesuffix("]").lower()
    return host == "localhost" or is_loopback(host)


def _loopback(host: str) -> _Ip | None:
    """Return an address if it is on loopback, else None."""
    try:
        address = _plain(host)
    except ValueError:
        return None
    return address if address.is_loopback else None


def _plain(host: str) -> _Ip:
    """Parse an address; an IPv4-mapped IPv6 address becomes IPv4."""
    address = ip_address(host)
    if isinstance(address, IPv6Address) and address.ipv4_mapped:
        return address.ipv4_mapped
    return address


def _is_there(ends: ConnectionEnds) -> bool:
    """Return whether the kernel knows the peer's socket, accepted or not."""
    return sock_diag.find(*ends) is not None or any(_row_in(table, ends) is not None for table in ("tcp", "tcp6"))


def _ends(peer: SocketAddress, ours: SocketAddress) -> ConnectionEnds | None:
    peer_ip, our_ip = _loopback(peer[0]), _loopback(ours[0])
    if peer_ip is None or our_ip is None or peer_ip.version != our_ip.version:
        return None
    return ConnectionEnds(peer_ip, peer[1], our_ip, ours[1])


def _uid_in(table: str, ends: ConnectionEnds) -> int | None:
    row = _row_in(table, ends)
    if row is None:
        return None
    state, _, _, _, uid, _, inode = row.split(maxsplit=7)[:7]
    return int(uid) if int(state, 16) in _HELD_STATES and int(inode) else None


def _row_in(table: str, ends: ConnectionEnds) -> bytes | None:
    """Return the part of the table's row after the two addresses; None if there is no such row."""
    width = 4 if table == "tcp" else 16
    if len(ends.peer.packed) > width:
        return None
    peer, ours = _written(ends.peer, width), _written(ends.ours, width)
    wanted = f" {peer}:{ends.peer_port:04X} {ours}:{ends.our_port:04X} ".encode()
    try:
        rows = (_TABLES / table).read_bytes()
    except OSError:
        return None
    at = rows.find(wanted)
    return None if at < 0 else rows[at + len(wanted) : at + len(wanted) + 200]


def _written(address: _Ip, width: int) -> str:
    """Format an address as in the table: 32-bit words in the byte order of this machine."""
    packed = address.packed
    if len(packed) < width:
        packed = bytes(10) + b"\xff\xff" + packed
    words = (packed[at : at + 4] for at in range(0, width, 4))
    return "".join(f"{int.from_bytes(word, sys.byteorder):08X}" for word in words)
