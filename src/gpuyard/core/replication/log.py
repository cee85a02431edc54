"""The log of a replica: entries with the epoch of the leader that appended them.

One leader per epoch, and a leader never changes what it has appended: therefore two logs that have an entry of the
same epoch at the same position are equal up to that position.

Only the newest entries are in memory. Older ones are final and durable; they are read from the store when a standby
needs them. The store may have retired the oldest ones, which snapshots cover:

    0 ───── retired ─────┤ oldest ├───── in the store ─────┤ start ├───── in memory ─────┤ len
"""

from collections.abc import Iterable, Sequence
from typing import Protocol

from gpuyard.core.domain.values import Value


class LogEntry(Value, frozen=True):
    """An encoded event, and the epoch of the leader that appended it."""

    epoch: int
    payload: bytes
    last: bool = True
    """Whether it is the last entry of its append, which counts as a whole or not at all."""


class EntryStore(Protocol):
    """The durable entries of a replica."""

    @property
    def oldest(self) -> int:
        """The position up to which entries were retired; 0: none. All of these are committed."""
        ...

    def epoch_at(self, position: int) -> int:
        """The epoch of the entry at this position, which is not below `oldest`."""
        ...

    def after(self, position: int, limit: int) -> Sequence[LogEntry]:
        """All entries after this position, which is not below `oldest`; at most `limit`."""
        ...


class ReplicatedLog:
    """Entries are numbered from 1, as in the journal; position 0 is the beginning."""

    def __init__(self, entries: Iterable[LogEntry] = (), start: int = 0, store: EntryStore | None = None) -> None:
        """`entries` follow position `start`; the `store` has those before it."""
        assert store is not None or start == 0, "entries that are not in memory need a store"
        self._recent = list(entries)
        self._start = start
        self._store = store

    def __len__(self) -> int:
        return self._start + len(self._recent)

    @property
    def oldest(self) -> int:
        """The position up to which entries were retired."""
        return 0 if self._store is None else self._store.oldest

    @property
    def entries(self) -> list[LogEntry]:
        """Every entry that was not retired. It reads the whole store."""
        return list(self.after(self.oldest, len(self)))

    def epoch_at(self, position: int) -> int:
        """The epoch of the entry at this position; 0 at the beginning."""
        if position > self._start:
            return self._recent[position - self._start - 1].epoch
        if position == 0 or self._store is None:
            return 0
        return self._store.epoch_at(position)

    def matches(self, position: int, epoch: int) -> bool:
        """Whether this log is equal, up to this position, to one that has an entry of this epoch there."""
        return self.oldest <= position <= len(self) and self.epoch_at(position) == epoch

    def after(self, position: int, limit: int) -> tuple[LogEntry, ...]:
        """At most `limit` entries after this position."""
        if position >= self._start or self._store is None:
            first = position - self._start
            return tuple(self._recent[first : first + limit])
        older = self._store.after(position, min(limit, self._start - position))
        return (*older, *self._recent[: limit - len(older)])

    def whole(self, position: int) -> int:
        """The largest position up to this one at which an append ends; what left the memory is committed."""
        while position > self._start and not self._recent[position - self._start - 1].last:
            position -= 1
        return position

    def first_conflict(self, start: int, entries: Sequence[LogEntry]) -> int:
        """How many of these entries, which follow position `start`, are already here."""
        same = 0
        for mine, theirs in zip(self.after(start, len(entries)), entries, strict=False):
            if mine.epoch != theirs.epoch:
                break
            same += 1
        return same

    def write(self, start: int, entries: Sequence[LogEntry]) -> None:
        """Remove what follows position `start`, and put these entries there."""
        assert start >= self._start, "entries that left the memory are final"
        self._recent[start - self._start :] = entries

    def forget(self, position: int) -> None:
        """Remove the entries up to this position from memory. They must be final and in the store."""
        if self._store is not None and position > self._start:
            del self._recent[: position - self._start]
            self._start = position


def at_most(size: int, entries: Sequence[LogEntry]) -> tuple[LogEntry, ...]:
    """The first of these entries, up to this many bytes, and at least one."""
    taken = 0
    for count, entry in enumerate(entries):
        taken += len(entry.payload)
        if taken > size and count:
            return tuple(entries[:count])
    return tuple(entries)
