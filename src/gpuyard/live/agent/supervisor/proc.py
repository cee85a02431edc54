"""Reads process information from the kernel.

A pid is reused after its process is gone, so a process is identified by its pid and the range of ticks since the start
of the machine in which it began: the clock is read before and after starting one, which is cheaper than asking about
each. Both are compared before a signal goes to a process that was not just looked up.
"""

import ctypes
import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from gpuyard.live.agent.supervisor.clock import now

_PR_SET_NAME = 15
_PR_SET_CHILD_SUBREAPER = 36
OOM_SCORE = -900
"""The score of the supervisor and its keeper: the kernel kills tasks first."""
_libc = ctypes.CDLL(None, use_errno=True)


ProcessStart = tuple[int, int]
"""The first and the last tick in which a process can have begun."""
UNBORN: ProcessStart = (0, 0)

_TICKS_A_SECOND = os.sysconf("SC_CLK_TCK")


def tick() -> int:
    """Return the current time in the unit of the process table."""
    return int(now() * _TICKS_A_SECOND)


class Process(NamedTuple):
    """One entry of the process table."""

    pid: int
    parent: int
    session: int
    began: int
    """In ticks since the machine started."""
    is_over: bool


def process(pid: int) -> Process | None:
    """Return a process; None if no process has this pid."""
    try:
        descriptor = os.open(f"/proc/{pid}/stat", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        line = os.read(descriptor, 4096)
    except OSError:  # it ended in between
        return None
    finally:
        os.close(descriptor)
    # The name may contain anything, even spaces and brackets; the fields after its last bracket are plain.
    fields = line[line.rindex(b")") + 2 :].split()
    # A process whose first thread has ended shows as a zombie while other threads still run: count the threads.
    is_over = fields[0] in b"ZX" and int(fields[17]) <= 1
    return Process(pid, int(fields[1]), int(fields[3]), int(fields[19]), is_over)


def is_alive(pid: int, born: ProcessStart) -> bool:
    """Return whether exactly this process still runs."""
    found = process(pid)
    return found is not None and born[0] <= found.began <= born[1] and not found.is_over


def all_processes() -> dict[int, Process]:
    """Return the whole process table. It costs about 10 µs per process, so the common path does not use it."""
    names = os.listdir("/proc")  # noqa: PTH208 - a path object for each would double the time
    return {found.pid: found for name in names if name.isdigit() and (found := process(int(name)))}


def children() -> list[int]:
    """Return the pids of all children, including those left behind by commands, and zombies."""
    me = os.getpid()
    try:
        descriptor = os.open(f"/proc/{me}/task/{me}/children", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:  # a kernel without CONFIG_PROC_CHILDREN
        return [found.pid for found in all_processes().values() if found.parent == me]
    try:
        pids = b""
        while more := os.read(descriptor, 65536):
            pids += more
    finally:
        os.close(descriptor)
    return [int(pid) for pid in pids.split()]


def variable(pid: int, name: bytes) -> bytes:
    """Return a variable a process was started with; empty if it is not set or not readable."""
    try:
        environ = b"\0" + Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return b""
    _, found, rest = environ.partition(b"\0" + name + b"=")
    return rest.partition(b"\0")[0] if found else b""


def command_line(pid: int) -> bytes:
    """Return the arguments a process was started with, separated by NUL bytes; empty if it is gone."""
    try:
        descriptor = os.open(f"/proc/{pid}/cmdline", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        words = b""
        while more := os.read(descriptor, 65536):
            words += more
        return words
    except OSError:  # it ended in between
        return b""
    finally:
        os.close(descriptor)


def family(table: dict[int, Process], pid: int, born: ProcessStart, roots: Iterable[int]) -> set[int]:
    """Return all live processes of an attempt: its command's session, the given roots, and all their descendants.

    The command itself may be gone; the kernel does not reuse its pid while its session has members.
    """
    leader = table.get(pid)
    origins = {root for root in roots if root in table}
    if leader is None or born[0] <= leader.began <= born[1]:
        origins |= {found.pid for found in table.values() if pid in {found.session, found.pid}}
    return {member for member in descendants(table, origins) if not table[member].is_over}


def descendants(table: dict[int, Process], roots: Iterable[int]) -> set[int]:
    """Return the roots and all their descendants."""
    below: dict[int, list[int]] = {}
    for found in table.values():
        below.setdefault(found.parent, []).append(found.pid)
    reached: set[int] = set()
    ahead = [root for root in roots if root in table]
    while ahead:
        pid = ahead.pop()
        if pid not in reached:
            reached.add(pid)
            ahead += below.get(pid, ())
    return reached


def boot_id() -> str:
    """Return the id of this boot of the machine. Pids and ticks are valid within one boot only."""
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()


def become_subreaper() -> None:
    """Make processes that descendants leave behind children of this process instead of process 1."""
    if _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "this kernel has no PR_SET_CHILD_SUBREAPER")


def lower_oom_score() -> None:
    """Ask the out-of-memory killer to choose other processes first.

    Without the permission to do so, nothing changes.
    """
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(str(OOM_SCORE), encoding="ascii")


def set_process_name(name: str) -> None:
    """Set the name that `ps` and `top` show for this process."""
    _libc.prctl(_PR_SET_NAME, name.encode()[:15], 0, 0, 0)


def signal_all(pids: set[int], table: dict[int, Process], number: int) -> None:
    """Send a signal to processes of a table just read. Skip those that are gone or belong to another user by now."""
    for pid in pids:
        if not table[pid].is_over:
            try:
                os.kill(pid, number)
            except (ProcessLookupError, PermissionError):
                continue
