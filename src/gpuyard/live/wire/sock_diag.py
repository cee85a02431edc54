"""Asks the kernel for one TCP socket by its two ends, in microseconds.

/proc/net/tcp has the same data, but the kernel walks its whole hash table to write it: milliseconds, even with ten
sockets. Not every kernel answers this query (it is a module, and containers may lack it), so callers must handle None
and read the table instead. (The format is Linux's: linux/inet_diag.h, sock_diag(7).)
"""

import socket
from ipaddress import IPv4Address, IPv6Address
from struct import Struct
from typing import NamedTuple

_SOCK_DIAG = 4
_BY_FAMILY = 20
_REQUEST = 1
_ANY_STATE = 0xFFFFFFFF
_NO_COOKIE = b"\xff" * 8
_HEADER = Struct("=IHHII")
_QUESTION = Struct("=BBBBI")
_PORTS = Struct("!HH")
_SOCKET = Struct("=BBBB48sIIIII")
_ENDS_BYTES = 36
"""Length of ports and addresses among the 48 bytes that identify a socket. An interface and a cookie follow."""


class SocketInfo(NamedTuple):
    """The kernel's data about a socket."""

    state: int
    uid: int
    inode: int


def find(
    local: IPv4Address | IPv6Address, local_port: int, remote: IPv4Address | IPv6Address, remote_port: int
) -> SocketInfo | None:
    """Return the socket with these ends; None if there is none or the kernel does not answer."""
    family = socket.AF_INET if local.version == 4 else socket.AF_INET6
    ends = _PORTS.pack(local_port, remote_port) + local.packed.ljust(16, b"\0") + remote.packed.ljust(16, b"\0")
    question = _QUESTION.pack(family, socket.IPPROTO_TCP, 0, 0, _ANY_STATE) + ends + bytes(4) + _NO_COOKIE
    try:
        with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, _SOCK_DIAG) as kernel:
            kernel.settimeout(0.1)
            length = _HEADER.size + len(question)
            kernel.sendto(_HEADER.pack(length, _BY_FAMILY, _REQUEST, 1, 0) + question, (0, 0))
            answer = kernel.recv(4096)
    except OSError:
        return None
    if len(answer) < _HEADER.size + _SOCKET.size or _HEADER.unpack_from(answer)[1] != _BY_FAMILY:
        return None
    _, state, _, _, named, _, _, _, uid, inode = _SOCKET.unpack_from(answer, _HEADER.size)
    if not _same_ends(named[:_ENDS_BYTES], ends, len(local.packed)):  # for example a listening socket
        return None
    return SocketInfo(state, uid, inode)


def _same_ends(named: bytes, ends: bytes, width: int) -> bool:
    """Compare ports and addresses; for IPv4 only the first 4 bytes of an address count."""
    parts = ((0, 4), (4, 4 + width), (20, 20 + width))
    return all(named[start:end] == ends[start:end] for start, end in parts)
