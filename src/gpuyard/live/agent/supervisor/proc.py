"""What the kernel says about processes.

A pid is used again after its process is gone, so a process is named by its pid and the ticks since the machine started
between which it began: we look at the clock before and after we start one, which is cheaper than to ask about each.
Both are compared before anything is sent to a process we have not just heard of.
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
"""Of the supervisor and its keeper: the tasks go first."""
_libc = ctypes.CDLL(None, use_errno=True)


ProcessStart = tuple[int, int]
"""The first and the last tick in which a process can have begun."""
UNBORN: ProcessStart = (0, 0)

_TICKS_A_SECOND = os.sysconf("SC_CLK_TCK")


def tick() -> int:
    """The present instant, as the process table writes it."""
    return int(now() * _TICKS_A_SECOND)


class Process(NamedTuple):
    """One line of the process table."""

    pid: int
    parent: int
    session: int
    began: int
    """In ticks since the machine started."""
    is_over: bool


def process(pid: int) -> Process | None:
    """A process, or nothing when there is none with this pid."""
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
    # The name may contain anything, spaces and brackets too; what follows its last bracket is plain.
    fields = line[line.rindex(b")") + 2 :].split()
    # One whose first thread has ended shows as a zombie, and others of it still run: count them.
    is_over = fields[0] in b"ZX" and int(fields[17]) <= 1
    return Process(pid, int(fields[1]), int(fields[3]), int(fields[19]), is_over)


def is_alive(pid: int, born: ProcessStart) -> bool:
    """Whether this very process still does something."""
    found = process(pid)
    return found is not None and born[0] <= found.began <= born[1] and not found.is_over


def all_processes() -> dict[int, Process]:
    """The whole table. It costs some 10 µs a process, so nobody asks for it on the usual way."""
    names = os.listdir("/proc")  # noqa: PTH208 - a path object for each would double the time
    return {found.pid: found for name in names if name.isdigit() and (found := process(int(name)))}


def children() -> list[int]:
    """Our own children, also those that others left to us. Dead ones that nobody has waited for count."""
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
    """A variable that a process was started with; empty where it has none, or where we may not look."""
    try:
        environ = b"\0" + Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return b""
    _, found, rest = environ.partition(b"\0" + name + b"=")
    return rest.partition(b"\0")[0] if found else b""


def command_line(pid: int) -> bytes:
    """The words a process was started with."""
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
    """All live processes of an attempt: its command's session, what else is known to be its own, and all below.

    The command itself may be gone; its pid is not given to anybody else while its session has members.
    """
    leader = table.get(pid)
    origins = {root for root in roots if root in table}
    if leader is None or born[0] <= leader.began <= born[1]:
        origins |= {found.pid for found in table.values() if pid in {found.session, found.pid}}
    return {member for member in descendants(table, origins) if not table[member].is_over}


def descendants(table: dict[int, Process], roots: Iterable[int]) -> set[int]:
    """The roots and everything below them."""
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
    """Which start of the machine this is: pids and ticks mean something within one only."""
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()


def become_subreaper() -> None:
    """From now on, processes that our descendants leave behind become our children and not those of process 1."""
    if _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "this kernel has no PR_SET_CHILD_SUBREAPER")


def lower_oom_score() -> None:
    """Ask the out-of-memory killer to choose others first; without the right to ask for that, nothing changes."""
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(str(OOM_SCORE), encoding="ascii")


def set_process_name(name: str) -> None:
    """The name that `ps` and `top` show for this process."""
    _libc.prctl(_PR_SET_NAME, name.encode()[:15], 0, 0, 0)


def signal_all(pids: set[int], table: dict[int, Process], number: int) -> None:
    """Send a signal to processes of a table just read. One that is gone, or is another user's by now, needs none."""
    for pid in pids:
        if not table[pid].is_over:
            try:
                os.kill(pid, number)
            except (ProcessLookupError, PermissionError):
                continue
