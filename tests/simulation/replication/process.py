"""A process with a clock, a disk and a life that can end. It performs outputs as `outputs.py` of the protocol demands."""

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from gpuyard.core.replication.outputs import (
    EntriesCommitted,
    FollowCommand,
    JournalsDiffer,
    LeadershipBegan,
    LeadershipEnded,
    SaveReplica,
    SaveVoter,
    SendMessage,
    StandbyTooFarBehind,
    WriteEntries,
)

if TYPE_CHECKING:
    from tests.simulation.replication.world import World

Output = (
    SendMessage
    | SaveVoter
    | SaveReplica
    | WriteEntries
    | FollowCommand
    | LeadershipBegan
    | LeadershipEnded
    | EntriesCommitted
    | StandbyTooFarBehind
    | JournalsDiffer
)
WRITES = (SaveVoter, SaveReplica, WriteEntries)


class Process:
    """`life` counts restarts; what was scheduled for an earlier life is dropped."""

    kind = "process"

    def __init__(self, world: "World", address: str, host: str) -> None:
        rng = world.rng
        self.world, self.address, self.host = world, address, host
        self.rate = 1 + rng.uniform(-world.timing.drift, world.timing.drift)
        self.offset = rng.uniform(0, 1000)
        self.stood = 0.0
        self.wall_jump = 0.0
        self.alive, self.gone, self.life = True, False, 0
        self.paused_until = self.frozen_until = 0.0
        self.sync_seconds = rng.choice([0.001, 0.005, 0.03])
        self._parked: list[tuple[int, Callable[[], object]]] = []
        self._queue: deque[Output] = deque()
        self._synced_writes = 0
        self._syncing = 0
        self._performing = False

    # --- clock ---

    def clock(self) -> float:
        """The monotonic clock; without the rule `monotonic` a wall clock, which jumps."""
        local = (self.world.now - self.stood) * self.rate + self.offset
        return local + self.wall_jump if "monotonic" in self.world.without else local

    def real_time_of(self, local: float) -> float:
        return self.world.now + (local - self.clock()) / self.rate

    def after(self, seconds: float, what: Callable[[], None]) -> None:
        self.world.at(self.world.now + seconds / self.rate, self, self.life, what)

    def pause(self, seconds: float, *, freeze: bool = False) -> None:
        """Stand still. If frozen, as a suspended virtual machine, the clock stands still as well."""
        until = self.world.now + seconds
        if freeze:
            if self.world.now < self.paused_until:
                return
            self.stood += seconds
            self.frozen_until = until
        self.paused_until = max(self.paused_until, until)

    def park(self, life: int, what: Callable[[], object]) -> None:
        """This happens when the pause is over."""
        if not self._parked:
            self.world.at(self.paused_until + 1e-6, None, 0, self._unpark)
        self._parked.append((life, what))

    def _unpark(self) -> None:
        parked, self._parked = self._parked, []
        for life, what in parked:
            self.world.at(self.world.now, self, life, what)

    def wake(self) -> None:
        self.stood -= max(0.0, self.frozen_until - self.world.now)
        self.frozen_until = min(self.frozen_until, self.world.now)
        self.paused_until = min(self.paused_until, self.world.now)
        self._unpark()

    # --- outputs, in order; what follows a write waits for it ---

    def perform(self, outputs: "list[Output]") -> None:
        if f"{self.kind}_sync" in self.world.without:
            for output in outputs:
                if isinstance(output, WRITES):
                    self._queue.append(output)
                else:
                    self.act(output)
        else:
            self._queue.extend(outputs)
        if self._performing:
            return
        self._performing = True
        try:
            self._drain()
        finally:
            self._performing = False

    def _drain(self) -> None:
        queue = self._queue
        while queue and not self._syncing:
            if not isinstance(queue[0], WRITES):
                self.act(queue.popleft())
            elif self._synced_writes:
                self._synced_writes -= 1
                self.store(queue.popleft())
            else:
                self._syncing = sum(isinstance(output, WRITES) for output in queue)  # they share one sync
                seconds = self.world.rng.uniform(0.2, 1.0) * self.sync_seconds
                self.world.at(self.world.now + seconds, self, self.life, self._synced)

    def _synced(self) -> None:
        self._synced_writes, self._syncing = self._syncing, 0
        self.perform([])

    # --- life ---

    def crash(self) -> None:
        """Keep a random first part of the writes that were not synced."""
        self.alive = False
        self.life += 1
        pending = [output for output in self._queue if isinstance(output, WRITES)]
        kept = self._synced_writes
        while kept < self._syncing and self.world.rng.random() < 0.5:
            kept += 1
        for write in pending[:kept]:
            self.store(write)
        self._queue.clear()
        self._synced_writes = self._syncing = 0

    def restart(self) -> None:
        if not self.alive and not self.gone:
            self.alive = True
            self.start()

    def start(self) -> None:
        raise NotImplementedError

    def act(self, output: Output) -> None:
        raise NotImplementedError

    def store(self, write: Output) -> None:
        raise NotImplementedError

    def receive(self, message: object) -> None:
        raise NotImplementedError
