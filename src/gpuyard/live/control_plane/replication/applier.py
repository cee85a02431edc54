"""The thread that applies committed entries: events to the journal, changes of records to their stores.

    driver ── committed entries ──► Applier ─┬─ {…  ─► SqliteJournal   ─► followers (`since`)
                                             └─ R…  ─► SqliteRecords   ─► `changes`
                                             then: `reached` tells those who wait for a position

It is the only writer of the journal and of the records, on the leader as on the standby. Where nobody waits, as on a
standby, it gathers entries for `GATHER_SECONDS` and writes them together: they are durable in the log already, and each
write has a fixed price. When the disk is full it waits and tries again; nothing is answered meanwhile. Any other error ends the scheduler, because its files may be unusable.
"""

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager
from itertools import groupby
from threading import Condition, RLock, Thread
from time import monotonic

import structlog

from gpuyard.core.domain.errors import StorageFull
from gpuyard.core.journal.codec import CODEC
from gpuyard.core.journal.records import Record
from gpuyard.core.journal.stores.sqlite import SqliteJournal
from gpuyard.core.replication.log import LogEntry
from gpuyard.live.control_plane.replication.log_file import EVENT
from gpuyard.live.control_plane.replication.record_changes import decode_changes
from gpuyard.live.control_plane.stores.cluster_records import SqliteRecords
from gpuyard.live.control_plane.stores.database import StoreFull

RETRY_SECONDS = 1.0
KEPT_EVENTS = 20_000
"""Events kept in memory for a follower; one that is further behind reads the journal."""
AT_ONCE = 2_000
"""The most entries that are applied before others learn of them."""
GATHER_SECONDS = 0.04

log = structlog.get_logger()


class Applier:
    """Applies entries in order. May be called from any thread."""

    def __init__(self, journal: SqliteJournal, records: Mapping[str, SqliteRecords], position: int) -> None:
        self._journal = journal
        self._records = records
        self._queue: deque[tuple[int, bytes]] = deque()
        self._lock = RLock()
        self._awake = Condition(self._lock)
        """There are entries to apply, or something else for the thread."""
        self._news = Condition(self._lock)
        """Followers have something to read."""
        self._closing = False
        self._turn = RLock()
        """Held while a batch is applied."""
        self._recent: deque[tuple[int, bytes]] = deque(maxlen=KEPT_EVENTS)
        self._waiting: deque[tuple[int, Future[int]]] = deque()
        self._thread = Thread(target=self._run, name="applier", daemon=True)
        self.position = position
        """Everything up to here is applied."""
        self.changes = dict.fromkeys(records, 0)
        """How many changes of each store were applied."""
        self.is_full = False
        """Whether it waits for space on the disk."""
        self.failed: Future[None] = Future()
        """Gets the error that has ended the thread."""

    def start(self) -> None:
        """Begin to apply."""
        self._thread.start()

    def put(self, start: int, entries: Iterable[LogEntry]) -> None:
        """Apply these committed entries, which follow position `start`."""
        with self._awake:
            was_empty = not self._queue
            self._queue.extend((position, entry.payload) for position, entry in enumerate(entries, start=start + 1))
            if was_empty or self._is_urgent():
                self._awake.notify()

    def reached(self, position: int) -> "Future[int]":
        """Return a future that gets the position when everything up to it is applied. Ask in order of positions."""
        future: Future[int] = Future()
        with self._awake:
            if position <= self.position:
                future.set_result(position)
            else:
                self._waiting.append((position, future))
                self._awake.notify()
        return future

    def give_up(self, error: Exception) -> None:
        """Fail all who wait: their entries may never be committed."""
        with self._awake:
            waiting, self._waiting = self._waiting, deque()
        for _, future in waiting:
            if not future.done():
                future.set_exception(error)

    def wait_for_events(self, seq: int, seconds: float) -> None:
        """Wait at most so long until there are events after this one."""
        with self._lock:
            self._news.wait_for(lambda: self._journal.head.seq > seq or self._closing, seconds)

    def since(self, seq: int, limit: int) -> list[Record]:
        """Return at most `limit` events after this one."""
        with self._awake:
            recent = self._recent
            if recent and recent[0][0] <= seq + 1:
                first = seq + 1 - recent[0][0]
                found = [recent[index] for index in range(first, min(len(recent), first + limit))]
                return [CODEC.decode(number, payload) for number, payload in found]
        records = list[Record]()
        for record in self._journal.read(seq):
            records.append(record)
            if len(records) == limit:
                break
        return records

    def still(self) -> "AbstractContextManager[bool]":
        """Within this context nothing is applied: journal, records and position belong together."""
        return self._turn

    def close(self) -> None:
        """Apply what was committed, then end the thread."""
        with self._awake:
            self._closing = True
            self._awake.notify()
            self._news.notify_all()
        if self._thread.is_alive():
            self._thread.join()

    # --- the thread ---------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while batch := self._next():
                self._apply(batch)
        except Exception as error:
            self.give_up(error)
            self.failed.set_exception(error)

    def _next(self) -> Sequence[tuple[int, bytes]]:
        with self._awake:
            while not self._queue and not self._closing:
                self._awake.wait()
            until = monotonic() + GATHER_SECONDS
            while not self._is_urgent() and (left := until - monotonic()) > 0:
                self._awake.wait(left)
            return [self._queue.popleft() for _ in range(min(len(self._queue), AT_ONCE))]

    def _is_urgent(self) -> bool:
        return bool(self._waiting) or self._closing or len(self._queue) >= AT_ONCE

    def _apply(self, batch: Sequence[tuple[int, bytes]]) -> None:
        done = 0
        while done < len(batch):
            try:
                with self._turn:
                    for is_event, group in groupby(batch[done:], key=lambda each: each[1].startswith(EVENT)):
                        entries = list(group)
                        if is_event:
                            self._append([payload for _, payload in entries])
                        else:
                            self._change([payload for _, payload in entries])
                        done += len(entries)
                        self._reach(entries[-1][0])
            except (StorageFull, StoreFull) as error:
                self.is_full = True
                log.error("storage_full", message=str(error))
                with self._awake:
                    if self._closing:
                        return
                    self._awake.wait(RETRY_SECONDS)
            else:
                self.is_full = False

    def _append(self, payloads: Sequence[bytes]) -> None:
        head = self._journal.append_encoded(payloads)
        with self._awake:
            self._recent.extend(enumerate(payloads, start=head.seq - len(payloads) + 1))
            self._news.notify_all()

    def _change(self, entries: Sequence[bytes]) -> None:
        for entry in entries:
            store, changes = decode_changes(entry)
            self._records[store].write(*changes)
            self.changes[store] += 1

    def _reach(self, position: int) -> None:
        done = list[tuple[int, Future[int]]]()
        with self._awake:
            self.position = position
            while self._waiting and self._waiting[0][0] <= position:
                done.append(self._waiting.popleft())
        for reached, future in done:
            if not future.done():
                future.set_result(reached)
