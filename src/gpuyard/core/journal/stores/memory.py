"""A journal in memory, for tests and simulations. It keeps every guarantee except durability.

Events are encoded and chained as on disk, so the same errors occur here as there.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from gpuyard.core.domain.errors import EventsRetired, JournalError
from gpuyard.core.journal.chain import link
from gpuyard.core.journal.codec import CODEC, Codec
from gpuyard.core.journal.port import AuditRetention
from gpuyard.core.journal.records import GENESIS, JournalEntry, Position, Record, Snapshot


class MemoryJournal:
    """See gpuyard.core.journal.port.Journal. Retired events are deleted, even if a folder to pack them into is given."""

    def __init__(self, codec: Codec = CODEC) -> None:
        self._codec = codec
        self._retired = 0
        self._rows: list[tuple[bytes, bytes]] = []
        """Payload and hash of event `self._retired + 1` and its successors."""
        self._head = GENESIS
        self._snapshots: list[tuple[Position, bytes]] = []
        self._closed = False

    @property
    def head(self) -> Position:
        """The position of the last event."""
        return self._head

    def encode(self, entry: JournalEntry) -> bytes:
        """Encode an event as it would be written."""
        return self._codec.encode(entry)

    def append(self, batch: Sequence[JournalEntry]) -> Position:
        """Encode these events and append them."""
        return self.append_encoded([self._codec.encode(entry) for entry in batch])

    def append_encoded(self, payloads: Sequence[bytes]) -> Position:
        """Append encoded events, all or none; return the new head."""
        self._check_open()
        digest = bytes.fromhex(self._head.hash)
        for payload in payloads:
            digest = link(digest, payload)
            self._rows.append((payload, digest))
        self._head = Position(self._head.seq + len(payloads), digest.hex())
        return self._head

    def read(self, after: int = 0) -> Iterator[Record]:
        """Iterate over the events after this number, up to the current head."""
        self._check_open()
        if after < self._retired:
            raise EventsRetired(after, self._retired + 1)
        rows = self._rows[after - self._retired :]
        return (self._codec.decode(seq, payload) for seq, (payload, _) in enumerate(rows, start=after + 1))

    def save_snapshot(self, snapshot: Snapshot) -> None:
        """Save a snapshot; keep it and the newest one before it."""
        self._check_open()
        position = snapshot.position
        if position != self.position_at(position.seq):
            raise JournalError(f"This journal was never at event {position.seq} with that hash; no snapshot was saved.")
        try:
            state = msgspec.json.encode(snapshot.state)
        except (msgspec.MsgspecError, ValueError, TypeError, OverflowError) as error:
            raise JournalError(f"This state cannot be written as a snapshot: {error}.") from error
        kept = {at.seq: (at, document) for at, document in self._snapshots} | {position.seq: (position, state)}
        self._snapshots = [kept[seq] for seq in sorted(kept)][-2:]

    def usable_snapshots(self) -> Iterator[Snapshot]:
        """Iterate over the kept snapshots, newest first."""
        self._check_open()
        return (Snapshot(position, msgspec.json.decode(document)) for position, document in reversed(self._snapshots))

    def retire(self, into: Path | None = None, audit: AuditRetention | None = None) -> int:  # noqa: ARG002 - nothing outlives this process
        """Delete the events that both snapshots cover; return how many."""
        self._check_open()
        if len(self._snapshots) < 2:
            return 0
        count = self._snapshots[0][0].seq - self._retired
        del self._rows[:count]
        self._retired += count
        return count

    def close(self) -> None:
        """Close the journal; later calls fail."""
        self._closed = True

    def position_at(self, seq: int) -> Position | None:
        """Return the position of this event, or None if it does not exist or was retired."""
        if seq == self._head.seq:
            return self._head
        index = seq - self._retired - 1
        return Position(seq, self._rows[index][1].hex()) if 0 <= index < len(self._rows) else None

    def _check_open(self) -> None:
        if self._closed:
            raise JournalError("The journal is closed. Open it again.")
