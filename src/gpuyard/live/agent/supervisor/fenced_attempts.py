"""The supervisor's side of the fence: which attempts are fenced, until when, and the watcher that enforces it."""

import os
from collections.abc import Set as AbstractSet
from pathlib import Path

from gpuyard.live.agent.supervisor.attempt_record import Attempt
from gpuyard.live.agent.supervisor.clock import now
from gpuyard.live.agent.supervisor.fence import FenceTable, FenceWatcher, fork_watcher
from gpuyard.live.agent.supervisor.messages import AttemptKey


class FencedAttempts:
    """Attempts that end when the lease runs out."""

    def __init__(self, path: Path, mark: str, helpers: set[int]) -> None:
        """`helpers`: child processes that belong to no attempt; the watcher is one."""
        self._table = FenceTable(path)
        self._mark = mark
        self._helpers = helpers
        self._slots: dict[AttemptKey, int] = {}
        self._watcher: FenceWatcher | None = None
        self._fenced: dict[AttemptKey, Attempt] = {}
        self._shortened_at = 0.0
        """When the lease was last shortened, on the boot clock."""

    # --- the lease ----------------------------------------------------------------------------------------------------

    @property
    def lease_end(self) -> float:
        """Until when fenced attempts may run, on the boot clock."""
        return self._table.lease_end

    @property
    def is_full(self) -> bool:
        """Whether no more attempts can be fenced."""
        return self._table.is_full

    @property
    def due_at(self) -> float | None:
        """When `lapsed` has something to return; None if nothing is fenced."""
        return self._table.lease_end if self._fenced else None

    def renew(self, made_at: float, seconds: float) -> None:
        """Extend the lease, unless it was shortened after the message was made."""
        made_at = min(made_at, now())
        if made_at >= self._shortened_at:
            self._table.lease_end = max(self._table.lease_end, made_at + seconds)

    def shorten(self, made_at: float, seconds: float) -> None:
        """Shorten the lease."""
        self._shortened_at = min(made_at, now())
        self._table.lease_end = min(self._table.lease_end, self._shortened_at + seconds)
        if self._watcher is not None:
            self._watcher.ring()  # it sleeps until the end of the old lease

    def lapsed(self, at: float) -> list[Attempt]:
        """Return the attempts to end, once, if the lease has run out."""
        if not self._fenced or self._table.lease_end > at:
            return []
        fenced, self._fenced = self._fenced, {}
        return list(fenced.values())

    # --- attempts -----------------------------------------------------------------------------------------------------

    def take_over(self) -> set[AttemptKey]:
        """Take over the slots of the previous supervisor, so that no fenced attempt is without one.

        Return the attempts that the watcher has killed.
        """
        fenced = list(self._table.fenced())
        self._slots = {entry.key: entry.slot for entry in fenced}
        return {entry.key for entry in fenced if entry.struck}

    def keep_only(self, keys: AbstractSet[AttemptKey]) -> None:
        """Free the slots of all other attempts."""
        for key in self._slots.keys() - keys:
            self._table.take(self._slots.pop(key))

    def __contains__(self, key: AttemptKey) -> bool:
        return key in self._slots

    def add(self, attempt: Attempt) -> None:
        """Fence an attempt, if it is to be fenced; with its pid also in the table, for the watcher."""
        if attempt.fence:
            self._fenced[attempt.key] = attempt
        if not attempt.fence or not attempt.pid:
            return
        was_empty = self._table.is_empty
        if attempt.key not in self._slots:
            self._slots[attempt.key] = self._table.put(attempt.key, attempt.pid, attempt.born)
        if self._watcher is None:
            self._table.generation += 1  # tells a watcher of an earlier supervisor to end
            self._fork_watcher()
        elif was_empty:
            self._watcher.ring()

    def free_slot(self, key: AttemptKey) -> bool:
        """Free the slot of a process that is gone. Return whether the watcher has killed it."""
        slot = self._slots.pop(key, None)
        return slot is not None and self._table.take(slot)

    def remove(self, key: AttemptKey) -> bool:
        """Remove an attempt that has ended. Return whether the watcher has killed it."""
        self._fenced.pop(key, None)
        return self.free_slot(key)

    # --- the watcher --------------------------------------------------------------------------------------------------

    @property
    def watcher_pid(self) -> int:
        """The pid of the watcher; 0 if there is none."""
        return self._watcher.pid if self._watcher else 0

    def _fork_watcher(self) -> None:
        self._watcher = fork_watcher(self._table, self._mark)
        self._helpers.add(self._watcher.pid)

    def watcher_ended(self) -> None:
        """Handle the end of the watcher. Fenced attempts need a new one."""
        assert self._watcher is not None
        os.close(self._watcher.bell)
        self._helpers.discard(self._watcher.pid)
        self._watcher = None
        if not self._table.is_empty:
            self._fork_watcher()
