"""What must never happen. A broken promise raises `Violation` with its kind and a sentence."""

from typing import TYPE_CHECKING

from gpuyard.core.replication.log import LogEntry
from gpuyard.core.replication.membership import Membership

if TYPE_CHECKING:
    from tests.simulation.replication.node import NodeProcess
    from tests.simulation.replication.scheduler import SchedulerProcess
    from tests.simulation.replication.world import World


class Violation(Exception):
    """A promise of the protocol is broken."""

    def __init__(self, kind: str, story: str) -> None:
        super().__init__(f"{kind}: {story}")
        self.kind, self.story = kind, story


class Checks:
    """The whole truth about one run, which no process knows."""

    def __init__(self, world: "World") -> None:
        self.world = world
        self.history: list[LogEntry] = []
        self.committed_in: list[int] = []
        self.committed_payloads: set[bytes] = set()
        self.leaders: dict[int, tuple[str, int]] = {}
        self.runs: dict[bytes, str] = {}
        self.acknowledged: set[str] = set()
        self.single_allowed = False
        """Whether the operator or a setting allows single writing, or the cluster never had two schedulers."""
        self.newest: Membership | None = None
        """The newest membership that is decided."""
        self.single_commits = 0

    def fail(self, kind: str, story: str) -> None:
        raise Violation(kind, f"at {self.world.now:.3f} s: {story}")

    def began(self, scheduler: "SchedulerProcess", epoch: int) -> None:
        """One leader per epoch, and it has every entry that was committed in lower epochs."""
        me = (scheduler.name, scheduler.life)
        if self.leaders.setdefault(epoch, me) != me:
            self.fail("two leaders in one epoch", f"{self.leaders[epoch]} and {me} in epoch {epoch}")
        owed = max((at + 1 for at, was in enumerate(self.committed_in) if was < epoch), default=0)
        if scheduler.entries[:owed] != self.history[:owed]:
            length = len(scheduler.replica.log)
            self.fail(
                "leader lacks committed entries",
                f"{scheduler.name} leads epoch {epoch} with {length} entries; {owed} were committed before",
            )

    def decided(self, membership: Membership) -> None:
        """The in-sync set has one replica only if that is allowed. Two of them end what was allowed to a new cluster."""
        before = self.newest
        if before is not None:
            if membership.order <= before.order:
                return
            self.count_change(before, membership)
        self.newest = membership
        if len(membership.in_sync) > 1:
            self.single_allowed = self.world.timing.single_after is not None
        elif not self.single_allowed:
            self.fail("standby left out", f"{membership}; neither the operator nor a setting allows it")

    def count_change(self, before: Membership, after: Membership) -> None:
        counts, pair = self.world.counts, len(before.in_sync) == 2
        counts["changes of the voters"] += before.voters != after.voters
        counts["standbys included"] += before.in_sync < after.in_sync
        counts["standbys replaced"] += pair and len(after.in_sync) == 2 and before.in_sync != after.in_sync
        if after.in_sync < before.in_sync:
            (out,) = before.in_sync - after.in_sync
            lost = out not in {it.name for it in self.world.schedulers.values()}
            counts["standbys left out"] += 1
            counts["standbys left out that did not exist any more"] += lost

    def acts(self, scheduler: "SchedulerProcess") -> None:
        """Two replicas never may act at the same instant, as long as clocks run at the right speed."""
        other = self.world.schedulers[scheduler.peer]
        if self.world.clocks_hold and other.alive and other.replica.may_act(other.clock()):
            self.fail("two leaders may act", f"{scheduler.name} and {other.name}")

    def committed(self, scheduler: "SchedulerProcess", epoch: int, position: int) -> None:
        """One history; each entry durable on the disks of the in-sync set, also on one that was lost afterwards."""
        assert self.newest is not None, "a leader has a decided membership"
        disks = {disk.name: disk.log for it in self.world.schedulers.values() for disk in (*it.lost, it.disk)}
        needed = sorted(self.newest.in_sync)
        for at, entry in enumerate(scheduler.entries[:position]):
            if at < len(self.history):
                if self.history[at] != entry:
                    self.fail("history forked", f"{scheduler.name} commits {entry} at {at}; it was {self.history[at]}")
                continue
            self.history.append(entry)
            self.committed_in.append(epoch)
            self.committed_payloads.add(entry.payload)
            self.single_commits += len(needed) == 1
            lacking = [name for name in needed if disks[name][at : at + 1] != [entry]]
            if lacking:
                self.fail("committed but not durable", f"{entry} is not on the disk of {lacking}")

    def whole(self, entries: list[LogEntry]) -> None:
        """Of every append there are all entries or none."""
        for entry, following in zip(entries, [*entries[1:], None], strict=True):
            if not entry.last and (following is None or following.epoch != entry.epoch):
                self.fail("append in part", f"{entry} is followed by {following}")

    def learned(self, scheduler: "SchedulerProcess", position: int) -> None:
        """A standby that is told how far entries are committed has the same entries."""
        if scheduler.entries[:position] != self.history[:position]:
            self.fail("history forked", f"{scheduler.name} follows with other entries up to {position}")

    def obeyed(self, node: "NodeProcess", epoch: int) -> None:
        if epoch < node.granted:
            self.fail("old leader obeyed", f"{node.address} has granted {node.granted} and obeys {epoch}")

    def launched(self, node: "NodeProcess", body: bytes) -> None:
        """An attempt starts once, on the node of its placement, and only if the placement is committed."""
        _, task, number, _ = body.decode().split()
        attempt = f"{task} {number}".encode()
        if body not in self.committed_payloads:
            self.fail("launch without a committed placement", f"{body!r} on {node.address}")
        if attempt in self.runs:
            self.fail("attempt launched twice", f"{attempt!r} on {self.runs[attempt]} and {node.address}")
        self.runs[attempt] = node.address

    def at_end(self) -> None:
        """Somebody leads, and every acknowledged request is in the journal once. Called when all faults are over."""
        world = self.world
        leader = next((it for it in world.schedulers.values() if it.alive and it.replica.is_ready(it.clock())), None)
        if leader is None:
            if world.progress_owed:
                self.fail("no progress", "no replica leads at the end")
            return
        if world.progress_owed and world.waits_too_long():
            self.fail("no progress", "a client has waited for an answer since the faults ended")
        self.whole(leader.entries)
        tasks: dict[str, int] = {}
        for entry in leader.entries:
            kind, task, *_ = entry.payload.decode().split()
            tasks[task] = tasks.get(task, 0) + (kind == "submit")
        for task in sorted(self.acknowledged):
            if tasks.get(task, 0) != 1:
                self.fail("acknowledged request lost", f"{task} is in the journal {tasks.get(task, 0)} times")
