"""A journal in PostgreSQL that several schedulers follow, and that one of them writes.

Who writes has a lease: it changes the row in `leader` (`beat`) with every append, and with `renew` when there is nothing
to append. Clocks of different machines are never compared. Each scheduler uses its own, which measures the same second:

    writer     ──┬ sends the beat ────────────────┬ answer        may answer until 0.9 leases after it has SENT it
                 └──────► beat 41 in the table ◄──┘
    follower            ──┬ has SEEN beat 41 ────────────────────┬ beat 41 is still there a whole lease later: take over

The beat is seen after it was sent, so the writer stops before a follower begins. The take-over names the epoch and the
beat that were seen; if either has changed, it changes nothing. It draws the next epoch, and the earlier writer can write
nothing from then on, whatever its clock says (postgres.py).
"""

import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Self

from gpuyard.core.domain.errors import EventsRetired, JournalError, WriterDeposed
from gpuyard.core.journal.codec import CODEC, Codec
from gpuyard.core.journal.port import AuditRetention, Leader
from gpuyard.core.journal.records import JournalEntry, Position, Record, Snapshot
from gpuyard.core.journal.stores import postgres_connection as database
from gpuyard.core.journal.stores import postgres_tables as tables
from gpuyard.core.journal.stores.postgres import PostgresJournal, evict, this_process
from gpuyard.core.journal.stores.postgres_connection import DatabaseAddress, Waits
from gpuyard.core.journal.stores.postgres_follower import PostgresFollower
from gpuyard.core.journal.stores.sqlite import SEGMENT_EVENTS

SAFE_PART = 0.9
"""The writer uses this part of its lease; the rest covers clocks that run at different speeds."""
_LEADER = "SELECT epoch, beat, released, holder, url, wanted FROM leader"
_TAKE = """UPDATE leader SET epoch = epoch + 1, session = session + 1, beat = beat + 1, released = false,
        holder = %(holder)s, url = %(url)s, wanted = ''
    WHERE epoch = %(epoch)s AND (beat = %(beat)s OR released) RETURNING epoch, session, seq, hash"""
_RENEW = "UPDATE leader SET beat = beat + 1 WHERE epoch = %(epoch)s RETURNING wanted"
_WANT = "UPDATE leader SET wanted = %(url)s WHERE epoch = %(epoch)s RETURNING epoch"
_RELEASE = "UPDATE leader SET released = true, beat = beat + 1 WHERE epoch = %(epoch)s RETURNING beat"


def _boot_clock() -> float:
    """Return a clock that never jumps, and also runs while the machine sleeps."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class SharedJournal:
    """See gpuyard.core.journal.port.Journal. It only follows until `take_over` succeeds. Create it with `open`."""

    def __init__(
        self,
        follower: PostgresFollower,
        head: Position,
        notes: list[str],
        *,
        lease_seconds: float,
        codec: Codec,
        waits: Waits,
        clock: Callable[[], float],
    ) -> None:
        self.lease_seconds = lease_seconds
        self.is_elected = False
        self.notes = notes
        """Problems that were found when the journal was opened and did not prevent it, one sentence each."""
        self._follower = follower
        self._head = head
        self._codec = codec
        self._waits = waits
        self._clock = clock
        self._writer: PostgresJournal | None = None
        # A renewal that takes longer than the lease is of no use.
        self._renewing = database.LastingConnection(
            self.address, waits._replace(lock_seconds=lease_seconds, answer_seconds=lease_seconds)
        )
        self._held_until = 0.0
        self._level_at = float("-inf")

    @classmethod
    def open(
        cls,
        url: str,
        *,
        lease_seconds: float,
        codec: Codec = CODEC,
        waits: Waits | None = None,
        clock: Callable[[], float] = _boot_clock,
    ) -> Self:
        """Open the journal of a database to follow it, or create one if there is none."""
        address, waits, notes = DatabaseAddress.parse(url), waits or Waits(), list[str]()
        connection = database.connect(address, waits)
        try:
            tables.create_if_missing(connection, address)
            tables.check_version(connection, address)
            head = tables.examine(connection, address, None, notes)
        finally:
            database.close(connection)
        follower = PostgresFollower(address, waits, codec)
        return cls(follower, head, notes, lease_seconds=lease_seconds, codec=codec, waits=waits, clock=clock)

    @property
    def address(self) -> DatabaseAddress:
        """Where the journal is."""
        return self._follower.contents.address

    # --- following ---------------------------------------------------------------------------------------------------

    def follow(self, wait_seconds: float = 0.0) -> tuple[Leader, list[Record]]:
        """Return who writes, and the next events after the head, which moves with them; ask for them after this time."""
        time.sleep(wait_seconds)
        asked_at, leader = self._clock(), self.leader()
        records, self._head = self._follower.tail(self._head)
        if len(records) < tables.CHUNK:
            self._level_at = asked_at
        return leader, records

    @property
    def behind_seconds(self) -> float:
        """How long ago `follow` had returned everything that was committed then; infinite: it never had."""
        return self._clock() - self._level_at

    def leader(self) -> Leader:
        """Return who writes now."""
        rows = self._follower.ask(_LEADER)
        if len(rows) != 1:
            raise tables.damaged(self.address, self._head.seq, "the table leader must have one row")
        return Leader(*rows[0])

    def can_hand_over(self) -> bool:
        """Return True: the database tells only those that ask whether another scheduler waits."""
        return True

    def take_over(self, seen: Leader, url: str) -> list[Record] | None:
        """Become the writer, if nothing has changed since `seen`; return the events that were not followed yet.

        None: another scheduler writes, and nothing was changed. `url`: where this one answers REST.
        """
        sent = self._clock()
        connection = database.connect(self.address, self._waits)
        try:
            fields = {"epoch": seen.epoch, "beat": seen.beat, "holder": this_process(), "url": url}
            drawn = database.commit(connection, self.address, _TAKE, fields)
            if not drawn:
                database.close(connection)
                return None
            evict(connection, self.address)
        except BaseException:
            database.close(connection)
            raise
        writer = PostgresJournal(self.address, connection, drawn[0], [], self._codec, SEGMENT_EVENTS, self._waits)
        missed: list[Record] = []
        try:
            while self._head.seq < writer.head.seq:
                records, self._head = self._follower.tail(self._head)
                missed += records
            if self._head != writer.head:
                raise tables.damaged(self.address, self._head.seq, "the table leader has recorded another event there")
        except BaseException:
            writer.close()
            raise
        self._writer = writer
        self._extend(sent)
        return missed

    # --- the lease ---------------------------------------------------------------------------------------------------

    @property
    def is_held(self) -> bool:
        """Whether this scheduler writes, and no other one can have taken over yet."""
        return self._clock() < self._held_until

    @property
    def held_seconds(self) -> float:
        """How long the lease lasts if it is not renewed; at most 0: it is over."""
        return self._held_until - self._clock()

    def renew(self) -> str:
        """Extend the lease; return to which scheduler this one should hand over, by its address; empty: none.

        Raises WriterDeposed if another scheduler has taken over.
        """
        sent = self._clock()
        rows = self._renewing(_RENEW, {"epoch": self._leading().epoch})
        if not rows:
            raise WriterDeposed(f"Another scheduler has taken over the journal in {self.address.shown}.")
        self._extend(sent)
        wanted: str = rows[0][0]
        return wanted

    def ask_for_lead(self, seen: Leader, url: str) -> bool:
        """Ask the scheduler that leads to hand over to the one at `url`; return whether it still leads."""
        return bool(self._renewing(_WANT, {"epoch": seen.epoch, "url": url}))

    def release(self) -> None:
        """Let a follower take over at once. Nothing can be written afterwards."""
        writer, self._held_until = self._leading(), 0.0
        self._renewing(_RELEASE, {"epoch": writer.epoch})
        writer.close()

    def _extend(self, sent: float) -> None:
        self._held_until = max(self._held_until, sent + SAFE_PART * self.lease_seconds)

    # --- the journal -------------------------------------------------------------------------------------------------

    @property
    def head(self) -> Position:
        """The position of the last event that was written or followed."""
        return self._head if self._writer is None else self._writer.head

    def encode(self, entry: JournalEntry) -> bytes:
        """Encode an event as it would be written."""
        return self._codec.encode(entry)

    def append(self, batch: Sequence[JournalEntry]) -> Position:
        """Encode these events and append them."""
        return self.append_encoded([self._codec.encode(entry) for entry in batch])

    def append_encoded(self, payloads: Sequence[bytes]) -> Position:
        """Write events durably, all or none; return the new head. It extends the lease."""
        writer, sent = self._leading(), self._clock()
        head = writer.append_encoded(payloads)
        if payloads:
            self._extend(sent)
        return head

    def read(self, after: int = 0) -> Iterator[Record]:
        """Iterate over the events after this number, up to the current head; each is checked against the chain."""
        contents, until = self._follower.contents, self.head.seq
        oldest = contents.after().seq + 1
        if after + 1 < oldest:
            raise EventsRetired(after, oldest)
        rows = contents.rows(after, until) if after < until else iter(())
        return (self._codec.decode(seq, payload) for seq, payload, _ in rows)

    def position_at(self, seq: int) -> Position | None:
        """Return the position of this event, or None if it does not exist or was retired."""
        head = self.head
        if seq == head.seq:
            return head
        return self._follower.contents.position_at(seq) if seq < head.seq else None

    def save_snapshot(self, snapshot: Snapshot) -> None:
        """Save a snapshot durably, and delete all but the two newest."""
        self._leading().save_snapshot(snapshot)

    def usable_snapshots(self) -> Iterator[Snapshot]:
        """Iterate over the intact snapshots whose following events are all stored here, newest first."""
        reached, earliest = self.head.seq, self._follower.contents.after().seq
        return (it for it in self._follower.snapshots() if earliest <= it.position.seq <= reached)

    def retire(self, into: Path | None = None, audit: AuditRetention | None = None) -> int:
        """Delete the segments that both snapshots cover."""
        return self._leading().retire(into, audit)

    def close(self) -> None:
        """Close all connections. The lease ends by itself; `release` ends it at once."""
        self._held_until = 0.0
        if self._writer is not None:
            self._writer.close()
        self._renewing.close()
        self._follower.close()

    @property
    def epoch(self) -> int:
        """The number under which this scheduler writes."""
        return self._leading().epoch

    def _leading(self) -> PostgresJournal:
        if self._writer is None:
            raise JournalError("This scheduler follows the journal and does not write it.")
        return self._writer
