"""The port: what every journal promises, whatever it is kept in."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

from gpuyard.core.journal.records import JournalEntry, Position, Record, Snapshot


class AuditRetention(NamedTuple):
    """Which facts are kept when they are retired, and where."""

    folder: Path
    wanted: Callable[[Record], bool]


class Journal(Protocol):
    """One writer appends facts; anybody in its process may read, from any thread."""

    @property
    def head(self) -> Position:
        """How far the journal goes."""
        ...

    def encode(self, entry: JournalEntry) -> bytes:
        """A fact as it would be written. One that can not be is a `JournalError` here, and nothing was written."""
        ...

    def append(self, batch: Sequence[JournalEntry]) -> Position:
        """Encode these facts and append them."""
        ...

    def append_encoded(self, payloads: Sequence[bytes]) -> Position:
        """Write facts so that they survive a crash or power loss, all or none, and return the new head.

        `StorageFull` means that nothing was written and that the same call may be made again. After any other error
        open the journal anew: whether the facts were written is then known.
        """
        ...

    def position_at(self, seq: int) -> Position | None:
        """The place after this fact; none: it was never there, or is not any more."""
        ...

    def read(self, after: int = 0) -> Iterator[Record]:
        """The facts with higher numbers than `after`, up to the head of this moment, each checked against the chain.

        `FactsRetired` says that they are not all there any more, at once or when the reader comes to where they were.
        """
        ...

    def save_snapshot(self, snapshot: Snapshot) -> None:
        """Keep what the facts up to a position add up to. The two newest snapshots are kept, older ones dropped."""
        ...

    def usable_snapshots(self) -> Iterator[Snapshot]:
        """All snapshots that can be used, the newest first: what is whole may still not be understood."""
        ...

    def retire(self, into: Path | None = None, audit: "AuditRetention | None" = None) -> int:
        """Take out facts that both kept snapshots cover; return how many.

        They are dropped, or packed into a folder; those that `audit` wants are kept in its folder as lines of JSON. A store may keep more than asked, up to one segment. With
        fewer than two snapshots nothing is retired: should the newest be damaged, the older one needs the facts since.
        """
        ...

    def close(self) -> None:
        """Give the journal back. A second call does nothing; any other call afterwards is an error."""
        ...
