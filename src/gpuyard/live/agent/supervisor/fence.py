"""Ends fenced attempts when their lease runs out, whatever happens to the supervisor.

"Never two at once" must hold on an unreachable node, so it cannot depend on one process being alive. The supervisor
keeps a table of its fenced attempts and the end of the lease in a file that is mapped into its memory; a watcher,
forked from it, maps the same file and only kills what is in the table when the lease is over. A supervisor that was
stopped or killed cannot renew, so the watcher strikes. A supervisor that starts after a kill finds the table, renews
the lease in it, and forks its own watcher; the old watcher sees by the generation that it can end.

                     lease_end, generation          a slot for each fenced attempt: pid, born, task, attempt, struck
    supervisor ──────────── writes ────────────► [ fences.table ] ◄─────────── reads, and marks what it struck ─ watcher
"""

import gc
import mmap
import os
import select
import signal
import struct
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, NoReturn

from gpuyard.live.agent.supervisor import proc
from gpuyard.live.agent.supervisor.cgroup import Cgroups
from gpuyard.live.agent.supervisor.clock import now
from gpuyard.live.agent.supervisor.messages import AttemptKey
from gpuyard.live.agent.supervisor.process_tag import owners

SLOTS = 4096
_BOOT_AT, _LEASE_AT, _GENERATION_AT, _SLOTS_AT = 0, 16, 24, 64
_NUMBER = struct.Struct("=Q")
_INSTANT = struct.Struct("=d")
_SLOT = struct.Struct("=QQQQQQQ")
_STRUCK_IN_SLOT = 48


class FencedAttempt(NamedTuple):
    """A slot in use."""

    slot: int
    pid: int
    born: proc.ProcessStart
    key: AttemptKey
    struck: bool


class FenceTable:
    """The shared file. Each field is written by one side only: `struck` by the watcher, the rest by the supervisor."""

    def __init__(self, path: Path) -> None:
        size = _SLOTS_AT + SLOTS * _SLOT.size
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.ftruncate(descriptor, size)
            self._memory = mmap.mmap(descriptor, size)
        finally:
            os.close(descriptor)
        boot = bytes.fromhex(proc.boot_id().replace("-", ""))
        # After a restart of the machine the content is meaningless.
        if self._memory[_BOOT_AT : _BOOT_AT + 16] != boot:
            self._memory[:] = boot + bytes(size - 16)
        self._free = [slot for slot in reversed(range(SLOTS)) if not self._read(slot)[0]]

    def _read(self, slot: int) -> tuple[int, int, int, int, int, int, int]:
        return _SLOT.unpack_from(self._memory, _SLOTS_AT + slot * _SLOT.size)

    @property
    def lease_end(self) -> float:
        """Until when fenced attempts may run, on the boot clock."""
        (instant,) = _INSTANT.unpack_from(self._memory, _LEASE_AT)
        return float(instant)

    @lease_end.setter
    def lease_end(self, instant: float) -> None:
        _INSTANT.pack_into(self._memory, _LEASE_AT, instant)

    @property
    def generation(self) -> int:
        """Counts the supervisors; a watcher of an earlier one ends."""
        (count,) = _NUMBER.unpack_from(self._memory, _GENERATION_AT)
        return int(count)

    @generation.setter
    def generation(self, count: int) -> None:
        _NUMBER.pack_into(self._memory, _GENERATION_AT, count)

    @property
    def is_full(self) -> bool:
        """Whether no more attempts can be fenced."""
        return not self._free

    @property
    def is_empty(self) -> bool:
        """Whether no attempt is fenced, as far as the supervisor knows."""
        return len(self._free) == SLOTS

    def put(self, key: AttemptKey, pid: int, born: proc.ProcessStart) -> int:
        """Fence a process and return its slot."""
        slot = self._free.pop()
        _SLOT.pack_into(self._memory, _SLOTS_AT + slot * _SLOT.size, pid, *born, *key, 0)
        return slot

    def take(self, slot: int) -> bool:
        """Free the slot of a process that is gone. Return whether the watcher had struck it."""
        struck = self._read(slot)[6] != 0
        _SLOT.pack_into(self._memory, _SLOTS_AT + slot * _SLOT.size, 0, 0, 0, 0, 0, 0, 0)
        self._free.append(slot)
        return struck

    def strike(self, slot: int) -> None:
        """Record that the watcher kills this one. Called before the kill."""
        _NUMBER.pack_into(self._memory, _SLOTS_AT + slot * _SLOT.size + _STRUCK_IN_SLOT, 1)

    def fenced(self) -> Iterator[FencedAttempt]:
        """Return the slots in use."""
        for slot in range(SLOTS):
            pid, first, last, task, attempt, origin, struck = self._read(slot)
            if pid:
                yield FencedAttempt(slot, pid, (first, last), AttemptKey(task, attempt, origin), struck != 0)


class FenceWatcher(NamedTuple):
    """The watcher, as its supervisor sees it."""

    pid: int
    bell: int
    """An eventfd that wakes the watcher."""

    def ring(self) -> None:
        """Wake the watcher, because the table or the lease has changed."""
        os.eventfd_write(self.bell, 1)


def fork_watcher(table: FenceTable, mark: str) -> FenceWatcher:
    """Start the watcher. It has the table mapped, and keeps no other descriptor of the supervisor open."""
    bell = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
    supervisor = os.pidfd_open(os.getpid())
    pid = os.fork()
    if pid == 0:
        _be_the_watcher(table, mark, bell, supervisor)
    os.close(supervisor)
    return FenceWatcher(pid, bell)


def _be_the_watcher(table: FenceTable, mark: str, bell: int, supervisor: int) -> NoReturn:
    status = 1
    try:
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)
        os.setsid()
        proc.set_process_name("gpuyard-fence")
        for descriptor in [int(path.name) for path in Path("/proc/self/fd").iterdir()]:
            if descriptor > 2 and descriptor not in {bell, supervisor}:
                with suppress(OSError):  # the one that listed the folder is closed already
                    os.close(descriptor)
        gc.freeze()
        watch(table, mark, bell, supervisor)
        status = 0
    finally:
        sys.stderr.flush()
        os._exit(status)


def watch(table: FenceTable, mark: str, bell: int, supervisor: int) -> None:
    """Kill what is fenced when the lease is over. Return when there is nothing left to watch."""
    generation = table.generation
    poll = select.poll()
    poll.register(bell, select.POLLIN)
    poll.register(supervisor, select.POLLIN)
    is_alone = False
    while table.generation == generation:
        fenced = list(table.fenced())
        left_seconds = table.lease_end - now()
        if left_seconds <= 0:
            struck = _strike(table, mark, fenced)
            # Check again: a process may have been forking, or a stopped supervisor has not freed the slot yet.
            seconds = 0.1 if struck else 1.0
        else:
            struck = False
            seconds = min(1.0, left_seconds) if is_alone else left_seconds
        if is_alone and not struck and not _somebody_lives(mark, fenced):
            return
        for descriptor, _ in poll.poll(1000 * seconds if fenced else None):
            if descriptor == bell:
                os.eventfd_read(bell)
            else:
                is_alone = True
                poll.unregister(supervisor)


def _strike(table: FenceTable, mark: str, fenced: list[FencedAttempt]) -> bool:
    """Kill everything that is left of these attempts. Return whether there was anything."""
    processes, marked = _look(mark) if fenced else ({}, {})
    groups = Cgroups(mark)
    found = False
    for entry in fenced:
        members = proc.family(processes, entry.pid, entry.born, marked.get(entry.key, ()))
        if members:
            found = True
            table.strike(entry.slot)
            proc.signal_all(members, processes, signal.SIGKILL)
            groups.kill(entry.key)
    return found


def _somebody_lives(mark: str, fenced: list[FencedAttempt]) -> bool:
    """Return whether any process of these attempts is left. The command may be over while its descendants run."""
    if any(proc.is_alive(entry.pid, entry.born) for entry in fenced):
        return True
    processes, marked = _look(mark) if fenced else ({}, {})
    return any(proc.family(processes, entry.pid, entry.born, marked.get(entry.key, ())) for entry in fenced)


def _look(mark: str) -> tuple[dict[int, proc.Process], dict[AttemptKey, list[int]]]:
    """Return the process table, and the processes in it that carry the mark of each attempt."""
    processes = proc.all_processes()
    return processes, owners(mark, processes)
