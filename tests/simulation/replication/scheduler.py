"""A scheduler: it drives a `Replica`, and a minimal engine that accepts requests, places tasks and launches them."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, cast

from gpuyard.core.replication.log import LogEntry
from gpuyard.core.replication.membership import Membership
from gpuyard.core.replication.messages import LeaderCommand, ToReplica
from gpuyard.core.replication.outputs import (
    EntriesCommitted,
    JournalsDiffer,
    LeadershipBegan,
    LeadershipEnded,
    ReplicaRecord,
    SaveReplica,
    SendMessage,
    StandbyTooFarBehind,
    WriteEntries,
)
from gpuyard.core.replication.replica import Following, Replica
from tests.simulation.replication.node import NOTHING, Started
from tests.simulation.replication.process import Output, Process

if TYPE_CHECKING:
    from tests.simulation.replication.world import World


class Submit:
    """A request of a client."""

    def __init__(self, client: int, task: str) -> None:
        self.client, self.task = client, task


class Hello(NamedTuple):
    """The name of the replica at the other end of a connection."""

    name: str


class CopyRequest(NamedTuple):
    """A scheduler with an empty disk asks for the data folder of the leader."""

    name: str
    """The name that the copy is for."""
    address: str


class CopyNeeded(NamedTuple):
    """The leader has retired entries that this standby lacks."""


class Copy(NamedTuple):
    """The committed entries of a leader, and the membership that it remembers; for the replica of this name."""

    name: str
    entries: list[LogEntry]
    membership: Membership


@dataclass
class Disk:
    """The disk of a scheduler, and the store from which a replica reads what it does not hold in memory.

    The name of the replica is on it. Everything up to `applied` is committed. Up to `oldest` the entries were retired, or
    came with a copy; only the checks see them.
    """

    name: str
    record: ReplicaRecord
    log: list[LogEntry] = field(default_factory=list)
    applied: int = 0
    oldest: int = 0

    def epoch_at(self, position: int) -> int:
        assert position >= self.oldest, "this entry is retired"
        return self.log[position - 1].epoch

    def after(self, position: int, limit: int) -> list[LogEntry]:
        assert position >= self.oldest, "this entry is retired"
        return self.log[position : position + limit]


class SchedulerProcess(Process):
    """Its disk has the record and the journal of the replica. `peer` is the host of the other scheduler."""

    kind = "journal"

    def __init__(
        self, world: "World", host: str, peer: str, first: Membership, patience: float, *, empty: bool = False
    ) -> None:
        super().__init__(world, host, host)
        self.peer, self.patience = peer, patience
        self.disk = Disk(host, ReplicaRecord(0, first))
        self.lost: list[Disk] = []
        self.names = 0
        self.waiting = empty
        """Whether its disk is empty, and it waits for a copy."""
        self.copied_as = ""
        """The name that a copy for it would have."""
        self.start()

    @property
    def name(self) -> str:
        return self.disk.name

    @property
    def entries(self) -> list[LogEntry]:
        """All entries, also those that are retired."""
        return [*self.disk.log[: self.disk.oldest], *self.replica.log.entries]

    def start(self) -> None:
        disk, self.address = self.disk, self.disk.name
        start = min(disk.applied, len(disk.log))
        self.replica = Replica(
            disk.name,
            "",
            self.world.timing,
            disk.record,
            disk.log[start:],
            self.clock(),
            patience=float("inf") if self.waiting else self.patience,
            start=start,
            store=disk,
        )
        self.copied_as = disk.name if self.waiting else ""
        self._tick_at = float("inf")
        self._final = start
        self._discard()
        self._plan_tick()
        self.after(self.world.rng.uniform(0.0, 0.05), self._greet)

    def crash(self) -> None:
        """Committed entries are applied by another thread, which may be behind."""
        super().crash()
        self.disk.applied = max(self.disk.applied, self.world.rng.randint(0, self._final))

    # --- another disk ---

    def lose_disk(self) -> None:
        """Only while it does not run. The next disk is empty and has another name."""
        self.lost.append(self.disk)
        self.disk = Disk(self._drawn_name(), ReplicaRecord(0, NOTHING))
        self.address, self.waiting = self.disk.name, True

    def find_disk(self) -> None:
        """Only while it does not run. The last disk that was lost is put back; the present one is lost."""
        found = self.lost.pop()
        if not self.waiting:
            self.lost.insert(0, self.disk)
        self.disk, self.address, self.waiting = found, found.name, False

    def _drawn_name(self) -> str:
        if "new_replica" in self.world.without:
            return self.name
        self.names += 1
        return f"{self.host}#{self.names}"

    def _greet(self) -> None:
        """Tell the other scheduler who is here, and ask it for a copy if one is needed."""
        other = self.world.schedulers[self.peer]
        if not self.waiting:
            self.world.send(self, other.address, Hello(self.name))
        if self.copied_as:
            self.world.send(self, other.address, CopyRequest(self.copied_as, self.address))
        self.after(0.3, self._greet)

    def _give_copy(self, request: CopyRequest) -> None:
        """A leader gives a copy also before it is ready: it may need the new standby to become ready."""
        must_be_ready = "early_copy" in self.world.without
        if self.leads is None or (must_be_ready and not self.replica.is_ready(self.clock())):
            return
        whole = "copy_committed" in self.world.without
        entries = self.entries if whole else self.entries[: self._final]
        self.world.send(self, request.address, Copy(request.name, entries, self.disk.record.membership))

    def _take_copy(self, copy: Copy) -> None:
        if copy.name != self.copied_as or not isinstance(self.replica.role, Following):
            return
        self.world.counts["copies of a disk"] += 1
        if not self.waiting:
            super().crash()
            self.alive = True
            self.lost.append(self.disk)
        end = len(copy.entries)
        self.disk = Disk(copy.name, ReplicaRecord(0, copy.membership), copy.entries, applied=end, oldest=end)
        self.waiting = False
        self.life += 1
        self.start()
        self.world.checks.learned(self, end)

    def _discard(self) -> None:
        """What a leader computed ahead of the committed entries. What it knows comes from outputs that were performed."""
        self.leads: int | None = None
        self.accepted: set[str] = set()
        self.attempts: dict[str, tuple[int, str]] = {}
        self.unconfirmed: dict[bytes, str] = {}
        self.applied = 0

    # --- driving the replica ---

    def perform(self, outputs: "list[Output]") -> None:
        super().perform(outputs)
        if self.replica.reign is not None:
            self.world.checks.decided(self.replica.reign.current)
        if self.replica.may_act(self.clock()):
            self.world.checks.acts(self)
        self._plan_tick()

    def _plan_tick(self) -> None:
        due = max(self.world.now, self.real_time_of(self.replica.next_tick())) + 1e-6
        if due < self._tick_at - 1e-6:
            self._tick_at = due
            self.world.at(due, self, self.life, self._tick)

    def _tick(self) -> None:
        if self.world.now < self._tick_at - 1e-9:
            return
        self._tick_at = float("inf")
        if self.leads is not None:
            self._look_after_cluster()
        self.perform(cast(list[Output], self.replica.tick(self.clock())))

    def receive(self, message: object) -> None:
        if isinstance(message, Submit):
            self._submit(message)
        elif isinstance(message, Started):
            self.unconfirmed.pop(message.body, None)
        elif isinstance(message, Copy):
            self._take_copy(message)
        elif isinstance(message, CopyNeeded):
            if self.leads is None and not self.copied_as:
                self.copied_as = self._drawn_name()
        elif self.waiting:
            return
        elif isinstance(message, Hello):
            self.perform(cast(list[Output], self.replica.meet(self.clock(), message.name)))
        elif isinstance(message, CopyRequest):
            self._give_copy(message)
        else:
            self.perform(cast(list[Output], self.replica.receive(self.clock(), cast(ToReplica, message))))

    def store(self, write: Output) -> None:
        if isinstance(write, WriteEntries):
            self.disk.log[write.start :] = write.entries
            if not any(isinstance(output, WriteEntries) for output in self._queue):
                self.replica.forget(keep=2)
        else:
            assert isinstance(write, SaveReplica)
            self.disk.record = write.record

    def act(self, output: Output) -> None:
        match output:
            case SendMessage():
                self.world.send(self, output.to, output.message)
            case LeadershipBegan():
                self.world.checks.began(self, output.epoch)
                self._discard()
                self.leads = output.epoch
                for entry in self.entries:
                    self._take_in(entry)
                self._committed(self._final)  # as the standby it has answered and launched nothing
            case LeadershipEnded():
                self._discard()
            case EntriesCommitted():
                self._final = output.position
                self._committed(output.position)
                if self.world.rng.random() < 0.1:
                    self._retire()
            case StandbyTooFarBehind():
                self.world.counts["standbys too far behind"] += 1
                self.world.send(self, self.world.schedulers[self.peer].address, CopyNeeded())
            case JournalsDiffer():
                story = f"the leader of {self.name} has another entry at {output.position}"
                self.world.checks.fail("committed entries would be removed", story)
            case _:
                raise AssertionError(output)

    def _retire(self) -> None:
        """Remove applied entries from the log; fewer of them while the standby needs them."""
        disk, reign = self.disk, self.replica.reign
        disk.applied = self._final
        held = self._final if reign is None else reign.holds.get(self.replica.peer, self._final)
        disk.oldest = max(disk.oldest, min(disk.applied, held) - 2, disk.applied - 10)

    # --- the engine ---

    def _take_in(self, entry: LogEntry) -> None:
        kind, task, *rest = entry.payload.decode().split()
        if kind == "submit":
            self.accepted.add(task)
        elif kind == "place":
            self.attempts[task] = (int(rest[0]), rest[1])
            self.unconfirmed[entry.payload] = rest[1]

    def _append(self, *payloads: str) -> None:
        encoded = [payload.encode() for payload in payloads]
        outputs = self.replica.append(encoded)
        for payload in encoded:
            self._take_in(LogEntry(0, payload))
        self.perform(cast(list[Output], outputs))

    def _submit(self, request: Submit) -> None:
        if self.leads is None or not self.replica.is_ready(self.clock()):
            return
        if request.task not in self.accepted:
            is_group = self.world.grouped and int(request.task.rpartition(".")[2]) % 3 == 0
            parts = [f"part {request.task} {number}" for number in range(4)] if is_group else []
            self._append(f"submit {request.task}", *parts)
        elif f"submit {request.task}".encode() in self.world.checks.committed_payloads and any(
            entry.payload == f"submit {request.task}".encode() for entry in self.entries[: self.applied]
        ):
            self.world.answer(request.client, request.task)

    def _committed(self, position: int) -> None:
        if self.leads is None:
            self.world.checks.learned(self, position)
            return
        if self.replica.reign is not None:
            self.world.checks.decided(self.replica.reign.current)
        self.world.checks.committed(self, self.leads, position)
        places = []
        for entry in self.entries[self.applied : position]:
            kind, task, *rest = entry.payload.decode().split()
            if kind == "submit":
                if entry.epoch == self.leads:
                    self.world.answer(int(task[1]), task)
                if task not in self.attempts and (node := self.world.some_node()):
                    places.append(f"place {task} 1 {node}")
            elif kind == "place":
                self._launch(entry.payload, rest[1])
        self.applied = max(self.applied, position)
        if places and self.replica.reign is not None:
            self._append(*places)

    def _launch(self, payload: bytes, node: str) -> None:
        if self.replica.reign is not None and self.replica.may_act(self.clock()):
            epoch = self.replica.reign.epoch
            self.world.send(self, node, LeaderCommand(self.name, epoch, payload))

    def _look_after_cluster(self) -> None:
        """Voters follow the registered nodes; launches are repeated until they are confirmed; some tasks move."""
        world = self.world
        if self.leads is None or not self.replica.is_ready(self.clock()):
            return
        reign = self.replica.reign
        if world.rng.random() < 0.5 and reign is not None:
            voters = world.wanted_voters(reign.current.voters)
            if voters is not None:
                self.replica.change_voters(voters)
        committed = {entry.payload for entry in self.entries[: self.applied]}
        waiting = [(body, node) for body, node in self.unconfirmed.items() if body in committed]
        for body, node in waiting[:3]:
            self._launch(body, node)
        if waiting and world.rng.random() < 0.1:
            task = waiting[0][0].decode().split()[1]
            node_now = world.some_node()
            if node_now:
                self.unconfirmed.pop(waiting[0][0])
                self._append(f"place {task} {self.attempts[task][0] + 1} {node_now}")
