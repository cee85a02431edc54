"""The TCP ports on which the processes of an attempt listen, from the kernel's tables.

A port counts only if a process of the attempt has its listening socket open: other services of the node, reachable on
loopback for every local process, stay closed to clients.
"""

import os
import re
import sys
from contextlib import suppress
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path
from typing import NamedTuple

import msgspec

from gpuyard.live.agent.supervisor import cgroup, proc, process_tag
from gpuyard.live.agent.supervisor.messages import AttemptKey

_LISTEN = "0A"
_SOCKET = re.compile(r"socket:\[(\d+)\]")


class ListeningPort(NamedTuple):
    """A TCP port on which a process listens."""

    port: int
    loopback: str
    """The address of loopback at which it can be reached."""
    pid: int
    command: str


def of_attempt(mark: str, key: AttemptKey, pid: int) -> list[ListeningPort]:
    """Return the ports of an attempt whose command is the process `pid`, in order. `mark`: of the supervisor's folder."""
    listening = _listening()
    found: dict[int, ListeningPort] = {}
    for member in sorted(_members(mark, key, pid)):
        for inode in _sockets(member):
            if inode in listening:
                port, address = listening[inode]
                found.setdefault(port, ListeningPort(port, address, member, _name(member)))
    return [found[port] for port in sorted(found)]


def encode(ports: list[ListeningPort]) -> bytes:
    """Return ports as JSON."""
    return msgspec.json.encode([{"port": it.port, "pid": it.pid, "command": it.command} for it in ports])


def _members(mark: str, key: AttemptKey, pid: int) -> set[int]:
    """Return the processes of an attempt: by session, ancestors, mark and control group."""
    table = proc.all_processes()
    roots = {one.pid for one in table.values() if pid and pid in {one.pid, one.session}}
    base = cgroup.name_of(mark)
    for one in table:
        if process_tag.owner(mark, one) == key or cgroup.owner_of(one, base) == key:
            roots.add(one)
    return proc.descendants(table, roots)


def _sockets(pid: int) -> set[int]:
    """Return the inodes of the sockets that a process has open."""
    inodes = set()
    with suppress(OSError):
        for name in os.listdir(f"/proc/{pid}/fd"):  # noqa: PTH208 - thousands of descriptors are common
            with suppress(OSError):
                if found := _SOCKET.fullmatch(os.readlink(f"/proc/{pid}/fd/{name}")):  # noqa: PTH115
                    inodes.add(int(found[1]))
    return inodes


def _listening() -> dict[int, tuple[int, str]]:
    """Return port and address of loopback of every listening socket that loopback reaches, by inode."""
    found = {}
    for table in ("tcp", "tcp6"):
        with suppress(OSError):
            for row in Path(f"/proc/net/{table}").read_text(encoding="ascii").splitlines()[1:]:
                words = row.split()
                address, _, port = words[1].partition(":")
                if words[3] == _LISTEN and (loopback := _loopback(address)):
                    found[int(words[9])] = (int(port, 16), loopback)
    return found


def _loopback(written: str) -> str:
    """Return the address of loopback that reaches a listening address; empty if none does."""
    words = [int(written[at : at + 8], 16).to_bytes(4, sys.byteorder) for at in range(0, len(written), 8)]
    address: IPv4Address | IPv6Address = ip_address(b"".join(words))
    if isinstance(address, IPv6Address) and address.ipv4_mapped:
        address = address.ipv4_mapped
    if address.is_loopback:
        return str(address)
    if not address.is_unspecified:
        return ""
    # A socket for IPv6 may refuse IPv4, and then 127.0.0.1 may lead to another process that has the same port there.
    return "::1" if address.version == 6 and _has_ipv6_loopback() else "127.0.0.1"


def _has_ipv6_loopback() -> bool:
    with suppress(OSError):
        return f"{1:032x} " in Path("/proc/net/if_inet6").read_text(encoding="ascii")
    return False


def _name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""
