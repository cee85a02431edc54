"""The port: the interface and guarantees of every journal, independent of its store."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

from gpuyard.core.journal.records import JournalEntry, Position, Record, Snapshot


class AuditRetention(NamedTuple):
    """Which events are kept for the audit when their segment is retired, and in which folder."""

    folder: Path
    wanted: Callable[[Record], bool]


class Journal(Protocol):
    """One writer appends events; every thread of its process may read."""

    @property
    def head(self) -> Position:
        """The position of the last event."""
        ...

    def encode(self, entry: JournalEntry) -> bytes:
        """Encode an event as it would be written. Raises `JournalError` if that is impossible. Writes nothing."""
        ...

    def append(self, batch: Sequence[JournalEntry]) -> Position:
        """Encode these events and append them."""
        ...

    def append_encoded(self, payloads: Sequence[bytes]) -> Position:
        """Write events so that they survive a crash or power loss, all or none, and return the new head.

        `StorageFull` means that nothing was written; repeat the call with the same events. After any other error, open
        the journal again to find out whether the events were written.
        """
        ...

    def position_at(self, seq: int) -> Position | None:
        """Return the position of this event, or None if it does not exist or was retired."""
        ...

    def read(self, after: int = 0) -> Iterator[Record]:
        """Iterate over the events after number `after`, up to the current head; each is checked against the chain.

        Raises `EventsRetired` if some of them have been retired: at once, or when the reader reaches the gap.
        """
        ...

    def save_snapshot(self, snapshot: Snapshot) -> None:
        """Save the state at a position. The two newest snapshots are kept, older ones are deleted."""
        ...

    def usable_snapshots(self) -> Iterator[Snapshot]:
        """Iterate over all intact snapshots, newest first. The caller may still fail to understand the state of one."""
        ...

    def retire(self, into: Path | None = None, audit: "AuditRetention | None" = None) -> int:
        """Remove events that both kept snapshots cover; return how many.

        They are deleted, or compressed into the folder `into`; those that `audit` selects are also kept in its folder
        as lines of JSON. A store may keep up to one segment more than necessary. With fewer than two snapshots nothing
        is retired: if the newest snapshot is damaged, recovery needs the older one and the events after it.
        """
        ...

    def close(self) -> None:
        """Close the journal. A second call does nothing; any other call afterwards is an error."""
        ...
