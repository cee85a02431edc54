"""The journal of a scheduler that replicates, and the records beside it.

Both are views of one `Replication`: what they write becomes entries of its log, and is durable on every scheduler of the
in-sync set before it returns. While this scheduler follows, they show what the applier has written, event by event.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NotYet
from pathlib import Path

from gpuyard.core.domain.errors import JournalError, StandbyOutdated, StandbyUnreachable, StorageFull, WriterDeposed
from gpuyard.core.journal.codec import CODEC
from gpuyard.core.journal.port import AuditRetention, Leader
from gpuyard.core.journal.records import JournalEntry, Position, Record, Snapshot
from gpuyard.core.journal.stores.sqlite import SqliteJournal
from gpuyard.live.control_plane.replication.record_changes import encode_changes
from gpuyard.live.control_plane.replication.service import Replication, boot_clock
from gpuyard.live.control_plane.stores.cluster_records import Change, Key, Row, SqliteRecords, Table, check_once
from gpuyard.live.control_plane.stores.database import StoreUnreachable

COMMIT_SECONDS = 2.0
"""How long an append waits for the standby before callers are told that nothing can be written."""
RECORD_SECONDS = 10.0
AT_ONCE = 4_096
"""The most events that `follow` returns."""
MOST_HEARD = 1_000


class ReplicatedJournal:
    """See gpuyard.core.journal.port.Journal. It only follows until `take_over` succeeds. One for each `Scheduler`."""

    notes: tuple[str, ...] = ()

    def __init__(self, replication: Replication) -> None:
        self.lease_seconds = replication.lease_seconds
        self.is_elected = True
        self.epoch = 0
        """The epoch in which it leads."""
        self._replication = replication
        self._is_closed = False
        self._followed = self._local.head
        self._heard = deque[tuple[float, int]](maxlen=MOST_HEARD)
        """When it was asked for events, and what the leader had committed then; the oldest first."""
        self._level_at = float("-inf")
        self._pending: tuple[list[bytes], Future[int]] | None = None
        """Appended events whose fate is not known yet."""

    @property
    def _local(self) -> SqliteJournal:
        if self._is_closed:
            raise JournalError("This journal is closed.")
        return self._replication.files.journal

    # --- following ----------------------------------------------------------------------------------------------------

    def follow(self, wait_seconds: float = 0.0) -> tuple[Leader, list[Record]]:
        """Return who leads, and the next events after the head, which moves with them; wait for some at most so long."""
        if wait_seconds:
            self._replication.applier.wait_for_events(self._followed.seq, wait_seconds)
        if self._replication.copy_wanted.is_set():
            raise StandbyOutdated
        self._replication.check()
        leader = self.leader()
        committed = self._replication.leader_committed
        if committed is not None:
            self._heard.append((boot_clock(), committed))
        applied, reached = self._replication.applier.position, self._local.head
        new = reached.seq - self._followed.seq
        records = self._replication.applier.since(self._followed.seq, min(new, AT_ONCE)) if new else []
        if records and records[-1].seq == reached.seq:
            self._followed = reached
        elif records:
            position = self._local.position_at(records[-1].seq)
            assert position is not None, "an event that was just applied is not retired"
            self._followed = position
        if self._followed == reached:
            while self._heard and self._heard[0][1] <= applied:
                self._level_at = self._heard.popleft()[0]
        return leader, records

    def leader(self) -> Leader:
        """Return who leads. `released`: this scheduler was elected and may take over at once."""
        driver = self._replication.driver
        lead = driver.lead
        if lead is not None:
            return Leader(lead.epoch, lead.epoch, driver.is_ready, "", "", "")
        heard = driver.heard_at
        return Leader(
            driver.replica.record.promised, max(0, int(heard * 1000)), False, "", self._replication.peer_url, ""
        )

    @property
    def behind_seconds(self) -> float:
        """How long ago `follow` had returned everything that was committed then; infinite: it never had."""
        return boot_clock() - self._level_at

    def take_over(self, seen: Leader, url: str) -> list[Record] | None:
        """Begin to write, if this scheduler was elected; return the events that were not followed yet."""
        del seen, url
        replication = self._replication
        lead = replication.driver.lead
        if lead is None or not replication.driver.is_ready:
            return None
        if lead.epoch == replication.used_epoch:
            replication.resign()
            return None
        replication.used_epoch = lead.epoch
        missed = list[Record]()
        while self._followed.seq < self._local.head.seq:
            missed += self.follow()[1]
        self.epoch = lead.epoch
        replication.wanted_url = ""
        return missed

    # --- the lease ----------------------------------------------------------------------------------------------------

    @property
    def is_held(self) -> bool:
        """Whether this scheduler writes, and no other one can have taken over yet."""
        driver = self._replication.driver
        lead = driver.lead
        return bool(self.epoch) and lead is not None and lead.epoch == self.epoch and driver.is_held

    @property
    def held_seconds(self) -> float:
        """How long the lease lasts if it is not renewed; at most 0: it is over."""
        return self._replication.held_seconds if self.is_held else 0.0

    def renew(self) -> str:
        """Return to which scheduler this one should hand over, by its address; empty: none. Leases are renewed anyway."""
        self._replication.check()
        if not self.is_held:
            raise _deposed()
        return self._replication.wanted_url if self.can_hand_over() else ""

    def can_hand_over(self) -> bool:
        """Whether the other scheduler could lead."""
        return self._replication.can_hand_over()

    def ask_for_lead(self, seen: Leader, url: str) -> bool:
        """Ask the scheduler that leads to hand over to the one at `url`; return whether it could be asked."""
        del seen
        return self._replication.ask_for_lead(url)

    def release(self) -> None:
        """Let the other scheduler take over at once. Nothing can be written afterwards."""
        self.epoch = 0
        self._replication.hand_over()

    # --- the journal --------------------------------------------------------------------------------------------------

    @property
    def head(self) -> Position:
        """The position of the last event that was written or followed."""
        return self._local.head if self.epoch else self._followed

    def encode(self, entry: JournalEntry) -> bytes:
        """Encode an event as it would be written."""
        return CODEC.encode(entry)

    def append(self, batch: Sequence[JournalEntry]) -> Position:
        """Encode these events and append them."""
        return self.append_encoded([CODEC.encode(entry) for entry in batch])

    def append_encoded(self, payloads: Sequence[bytes]) -> Position:
        """Write events durably here and on the standby, all or none; return the new head.

        `StandbyUnreachable`, `StorageFull`: they are not committed yet; repeat the call with the same events.
        """
        local = self._local
        if not self.epoch:
            raise JournalError("This scheduler follows the journal and does not write it.")
        if self._pending is None:
            if not payloads:
                return local.head
            self._pending = (list(payloads), self._replication.append(self.epoch, payloads))
        written, future = self._pending
        if written != list(payloads):
            raise JournalError("Other events were given than those that are being replicated. Open the journal again.")
        try:
            future.result(COMMIT_SECONDS)
        except NotYet:
            if self._replication.is_full:
                raise StorageFull from None
            raise StandbyUnreachable(self._replication.why_not_committed()) from None
        self._pending = None
        return local.head

    def read(self, after: int = 0) -> Iterator[Record]:
        """Iterate over the events after this number, up to the head; each is checked against the chain."""
        until = self.head.seq
        records = self._local.read(after)
        return (record for record in records if record.seq <= until) if self.epoch else _until(records, until)

    def position_at(self, seq: int) -> Position | None:
        """Return the position of this event, or None if it does not exist or was retired."""
        return self._local.position_at(seq) if seq <= self.head.seq else None

    def save_snapshot(self, snapshot: Snapshot) -> None:
        """Save a snapshot here. The other scheduler saves its own."""
        self._local.save_snapshot(snapshot)

    def adopt_snapshot(self, position: Position, folder: Path) -> None:
        """Move in the snapshot that another process wrote."""
        self._local.adopt_snapshot(position, folder)

    @property
    def folder(self) -> Path:
        """The folder of the journal."""
        return self._local.folder

    def snapshot_path(self, seq: int) -> Path:
        """Return the path of the snapshot at this event."""
        return self._local.snapshot_path(seq)

    def usable_snapshots(self) -> Iterator[Snapshot]:
        """Iterate over the intact snapshots up to the head, newest first."""
        until = self.head.seq
        return (snapshot for snapshot in self._local.usable_snapshots() if snapshot.position.seq <= until)

    def retire(self, into: Path | None = None, audit: AuditRetention | None = None) -> int:
        """Remove events here that both snapshots cover."""
        return self._local.retire(into, audit)

    def close(self) -> None:
        """Leave the files open: they belong to the replication, which outlives this object."""
        self._is_closed, self.epoch = True, 0


def _until(records: Iterator[Record], seq: int) -> Iterator[Record]:
    for record in records:
        if record.seq > seq:
            return
        yield record


class ReplicatedRecords:
    """See ClusterRecords: the rows of one store, read here and written through the replication."""

    def __init__(self, replication: Replication, store: str) -> None:
        self._replication = replication
        self._store = store
        self._local: SqliteRecords = replication.files.records[store]

    def rows(self, table: Table, keys: Sequence[Key] | None = None) -> list[Row]:
        """Return the rows with these keys, or all rows."""
        return self._local.rows(table, keys)

    def keys(self, table: Table) -> list[Key]:
        """Return the keys of all rows."""
        return self._local.keys(table)

    def write(self, *changes: Change) -> None:
        """Make all changes or none, here and on the standby."""
        check_once(changes)
        lead = self._replication.driver.lead
        if lead is None:
            raise _deposed()
        future = self._replication.append(lead.epoch, encode_changes(self._store, changes))
        try:
            future.result(RECORD_SECONDS)
        except NotYet:
            raise StoreUnreachable(self._replication.why_not_committed()) from None

    def changes(self) -> int:
        """Return how many changes were applied."""
        return self._replication.applier.changes[self._store]

    def tidy(self) -> None:
        """Rewrite the write-ahead log, which may hold deleted rows."""
        self._local.tidy()

    def close(self) -> None:
        """Leave the file open: it belongs to the replication."""


def _deposed() -> WriterDeposed:
    return WriterDeposed("Another scheduler leads; this one does not write.")
