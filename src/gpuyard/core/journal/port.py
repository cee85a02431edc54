"""The port: the interface and guarantees of every journal, independent of its store."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol, runtime_checkable

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


@runtime_checkable
class FolderJournal(Journal, Protocol):
    """A journal whose events and snapshots are files in a folder of this machine."""

    @property
    def folder(self) -> Path:
        """The folder of the journal."""
        ...

    def snapshot_path(self, seq: int) -> Path:
        """Return the path of the snapshot at this event."""
        ...

    def adopt_snapshot(self, position: Position, folder: Path) -> None:
        """Move in the snapshot that another process wrote."""
        ...


class Leader(NamedTuple):
    """The scheduler that writes a journal, as those that follow it see it."""

    epoch: int
    beat: int
    """Changes as long as it writes or renews its lease."""
    released: bool
    """It has stopped on purpose, or there never was one."""
    holder: str
    url: str
    """Where it answers REST; empty: unknown."""
    wanted: str
    """The scheduler to which it should hand over, by its address; empty: none."""


class LeasedJournal(Journal, Protocol):
    """A journal that several schedulers follow, and that the one with the lease writes."""

    lease_seconds: float
    is_elected: bool
    """Whether voters choose the writer. Otherwise any follower may take over a lease that has run out."""

    @property
    def behind_seconds(self) -> float:
        """How long ago `follow` had returned everything that was committed then; infinite: it never had."""
        ...

    @property
    def epoch(self) -> int:
        """The number under which this scheduler writes."""
        ...

    @property
    def is_held(self) -> bool:
        """Whether this scheduler writes, and no other one can have taken over yet."""
        ...

    @property
    def held_seconds(self) -> float:
        """How long the lease lasts if it is not renewed; at most 0: it is over."""
        ...

    def leader(self) -> Leader:
        """Return who writes now."""
        ...

    def follow(self, wait_seconds: float = 0.0) -> tuple[Leader, list[Record]]:
        """Return who writes, and the next events after the head, which moves with them. It may wait so long for some."""
        ...

    def can_hand_over(self) -> bool:
        """Whether another scheduler could lead in place of this writer."""
        ...

    def take_over(self, seen: Leader, url: str) -> list[Record] | None:
        """Become the writer if nothing has changed since `seen`; return the events that were not followed yet.

        None: another scheduler writes, and nothing was changed. `url`: where this one answers REST.
        """
        ...

    def renew(self) -> str:
        """Extend the lease; return to which scheduler this one should hand over, by its address; empty: none.

        Raises WriterDeposed if another scheduler has taken over.
        """
        ...

    def ask_for_lead(self, seen: Leader, url: str) -> bool:
        """Ask the scheduler that leads to hand over to the one at `url`; return whether it still leads."""
        ...

    def release(self) -> None:
        """Let another scheduler take over at once. Nothing can be written afterwards."""
        ...
