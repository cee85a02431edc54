"""Drives a `Replica`: gives it messages, appends and the time, and performs what it asks for, in its order.

    network ── messages ──┐                  ┌─ SendMessage ────► network, or itself
    journal ── append ────┼─► Replica ─────► ├─ WriteEntries, SaveReplica ─► replication log (one sync for several)
    timer   ── tick ──────┘    outputs       ├─ EntriesCommitted ─► applier
                                             └─ LeadershipBegan, LeadershipEnded ─► `leads`

All of this happens in one thread with an event loop of its own, so that the rest of the scheduler cannot delay a lease.
A write blocks that thread: nothing may be sent that depends on it, and the other machine works meanwhile. If the disk is
full, the replica stands still until there is space; another one leads after a lease.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import NamedTuple

import structlog

from gpuyard.core.domain.errors import WriterDeposed
from gpuyard.core.replication.messages import AppendEntries, Message, ToReplica
from gpuyard.core.replication.outputs import (
    EntriesCommitted,
    JournalsDiffer,
    LeadershipBegan,
    LeadershipEnded,
    ReplicaOutput,
    SaveReplica,
    SendMessage,
    StandbyTooFarBehind,
    WriteEntries,
)
from gpuyard.core.replication.replica import Replica
from gpuyard.live.control_plane.replication.applier import Applier
from gpuyard.live.control_plane.replication.log_file import ReplicationLog
from gpuyard.live.control_plane.stores.database import StoreFull

FULL_RETRY_SECONDS = 1.0
MOST_HELD = 10_000
"""Messages that wait while the disk is full; older ones are dropped, as if they were lost."""
KEEP_IN_MEMORY = 2_000
"""Applied entries that stay in memory, for a standby that is a little behind."""
KEEP_ON_DISK, KEEP_BEHIND = 20_000, 2_000_000
"""Applied entries that stay in the log; more of them while a standby still needs them."""
TRIM_EVERY = 2_000

log = structlog.get_logger()

Step = Callable[[float], Sequence[ReplicaOutput]]


class Lead(NamedTuple):
    """This replica leads."""

    epoch: int
    ready_at: int
    """Predecessors may have committed everything up to this position: it must be applied before anything is answered."""


class ReplicaDriver:
    """Created in the loop of its thread; `append` and the properties may be used from any thread."""

    def __init__(
        self,
        replica: Replica,
        entries: ReplicationLog,
        applier: Applier,
        send: Callable[[str, Message], None],
        clock: Callable[[], float],
    ) -> None:
        self.replica = replica
        self.lead: Lead | None = None
        self.held_until = 0.0
        """Until when no other replica can lead, by the clock."""
        self.heard_at = 0.0
        """When the leader was last heard, if this replica follows."""
        self.leader_committed = 0
        self.is_full = False
        self.problem = ""
        """Why this replica cannot follow; empty: it can."""
        self.copied_from: int | None = None
        """The position that a copy of the data folder was given from: entries after it are kept until it follows."""
        self.too_far_behind = asyncio.Event()
        """Set on the leader when the standby needs entries that were removed."""
        self.failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._loop = asyncio.get_running_loop()
        self._log = entries
        self._applier = applier
        self._send = send
        self._clock = clock
        self._pending: deque[ReplicaOutput] = deque()
        self._held: deque[Step] = deque(maxlen=MOST_HELD)
        self._appends: deque[tuple[int, Sequence[bytes], Future[int]]] = deque()
        self._handed = applier.position
        """Entries up to here were given to the applier."""
        self._trimmed_at = applier.position
        self._timer: asyncio.TimerHandle | None = None
        self._is_performing = False

    # --- from the loop of the thread ---

    def start(self) -> None:
        """Begin to count time."""
        self._plan()

    def receive(self, message: ToReplica) -> None:
        """Give the replica a message."""
        if isinstance(message, AppendEntries) and message.epoch >= self.replica.record.promised:
            self.heard_at, self.leader_committed = self._clock(), message.committed
        self.step(lambda now: self.replica.receive(now, message))

    def step(self, work: Step) -> None:
        """Let the replica do something, and perform what it asks for."""
        if self.is_full:
            self._held.append(work)
            return
        self._pending.extend(work(self._clock()))
        self._perform()

    def stop(self) -> None:
        """Do nothing more."""
        if self._timer is not None:
            self._timer.cancel()

    # --- from any thread ---

    @property
    def is_held(self) -> bool:
        """Whether this replica leads, and no other one can lead yet."""
        return self.lead is not None and self._clock() < self.held_until

    @property
    def is_ready(self) -> bool:
        """Whether, in addition, everything that predecessors have committed is applied."""
        lead = self.lead
        return lead is not None and self._applier.position >= lead.ready_at and self.is_held

    def append(self, epoch: int, payloads: Sequence[bytes]) -> "Future[int]":
        """Append entries as the leader of this epoch.

        The future gets the position of the last one when it is applied here, or WriterDeposed: it is then not known
        whether they count.
        """
        future: Future[int] = Future()
        self._appends.append((epoch, payloads, future))
        self._loop.call_soon_threadsafe(self._take_appends)
        return future

    # --- performing ---

    def _take_appends(self) -> None:
        if self.is_full:
            return  # they are taken when there is space again
        taken = [self._appends.popleft() for _ in range(len(self._appends))]
        if not taken:
            return
        reign, position, appends = self.replica.reign, len(self.replica.log), list[Sequence[bytes]]()
        for epoch, payloads, future in taken:
            if self.lead is None or reign is None or reign.epoch != epoch:
                future.set_exception(_deposed())
                continue
            appends.append(payloads)
            position += len(payloads)
            _pass_on(self._applier.reached(position), future)
        if appends:
            self.step(lambda _: self.replica.append(*appends))

    def _perform(self) -> None:
        if self._is_performing:
            return
        self._is_performing = True
        try:
            while self._pending:
                if isinstance(self._pending[0], SaveReplica | WriteEntries):
                    if not self._write():
                        return
                else:
                    self._act(self._pending.popleft())
        except Exception as error:
            if not self.failed.done():
                self.failed.set_exception(error)
        finally:
            self._is_performing = False
            reign = self.replica.reign
            self.held_until = reign.lease_ends() if reign is not None and self.lead is not None else 0.0
            self._plan()

    def _write(self) -> bool:
        """Perform all writes that are pending with one sync; return False if the disk is full."""
        writes = [output for output in self._pending if isinstance(output, SaveReplica | WriteEntries)]
        try:
            self._log.save(writes)
        except StoreFull as error:
            if not self.is_full:
                log.error("storage_full", message=str(error))
            self.is_full = True
            self._loop.call_later(FULL_RETRY_SECONDS, self._try_again)
            return False
        self._pending = deque(output for output in self._pending if not isinstance(output, SaveReplica | WriteEntries))
        return True

    def _try_again(self) -> None:
        self.is_full = False
        self._perform()
        if self.is_full:
            return
        log.info("storage_recovered", position=self._log.last)
        while self._held and not self.is_full:
            self.step(self._held.popleft())
        self._take_appends()

    def _act(self, output: ReplicaOutput) -> None:
        match output:
            case SendMessage():
                if output.to == self.replica.name:
                    self._pending.extend(self.replica.receive(self._clock(), output.message))  # type: ignore[arg-type]
                else:
                    self._send(output.to, output.message)
            case EntriesCommitted():
                self._hand_over_to_applier(output.position)
            case LeadershipBegan():
                self.lead, self.problem = Lead(output.epoch, output.ready_at), ""
            case LeadershipEnded():
                self.lead = None
                self._applier.give_up(_deposed())
            case StandbyTooFarBehind():
                self.too_far_behind.set()
            case JournalsDiffer():
                problem = (
                    f"The journal of this scheduler differs from that of the leader at position {output.position}: one of "
                    "them was restored from an old copy. Stop this scheduler, move its data folder away, and start it "
                    "again: it then copies that of the leader."
                )
                if self.problem != problem:  # the leader repeats what this one does not answer
                    log.error("journals_differ", message=problem)
                self.problem = problem
            case SaveReplica() | WriteEntries():
                raise AssertionError("writes are performed together")

    def _hand_over_to_applier(self, position: int) -> None:
        if position > self._handed:
            entries = self.replica.log.after(self._handed, position - self._handed)
            self._applier.put(self._handed, entries)
            self._handed = position
        if self._handed - self._trimmed_at >= TRIM_EVERY:
            self._trimmed_at = self._handed
            self._forget()

    def _forget(self) -> None:
        """Remove old entries from memory and from the log."""
        if not any(isinstance(output, WriteEntries) for output in self._pending):
            self.replica.forget(KEEP_IN_MEMORY)
        applied = min(self._applier.position, self._handed)
        self._trim_to(max(min(applied, self._held_by_peer(applied)) - KEEP_ON_DISK, applied - KEEP_BEHIND))

    def _held_by_peer(self, applied: int) -> int:
        """What the other replica has, as far as this one knows; what it will have, if it has just got a copy."""
        reign = self.replica.reign
        if reign is None:
            return applied
        confirmed = reign.holds.get(self.replica.peer)
        if self.copied_from is not None and confirmed is not None and confirmed >= self.copied_from:
            self.copied_from = None
        return min(
            applied if confirmed is None else confirmed, applied if self.copied_from is None else self.copied_from
        )

    def _trim_to(self, position: int) -> None:
        if not self.is_full and self._log.trim(position):
            self._loop.call_soon(self._trim_to, position)

    def _plan(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        seconds = max(0.0, self.replica.next_tick() - self._clock()) + 0.0005
        self._timer = self._loop.call_later(seconds, self._tick)

    def _tick(self) -> None:
        self.step(self.replica.tick)


def _deposed() -> WriterDeposed:
    return WriterDeposed("Another scheduler may lead now; this one does not write any more.")


def _pass_on(source: "Future[int]", target: "Future[int]") -> None:
    def done(reached: "Future[int]") -> None:
        if target.done():
            return
        error = reached.exception()
        if error is not None:
            target.set_exception(error)
        else:
            target.set_result(reached.result())

    source.add_done_callback(done)
