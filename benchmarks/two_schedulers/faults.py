"""The kinds of faults: each causes one, and returns what mends it after the measurement."""

import random
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from benchmarks.two_schedulers.load import Load
from benchmarks.two_schedulers.pair import NAMES, Databases, Pair, boot
from benchmarks.two_schedulers.watch import Watch
from gpuyard.live.sdk import ClusterError, connect
from tests.acceptance.pair import MORE_NODES, NODES, STORE
from tests.acceptance.waiting import until
from tests.netns import HERE, Direction

CUTS = {
    "cut-store": (STORE,),
    "cut-standby": ("standby",),
    "cut-some-nodes": (NODES,),
    "cut-nodes": (NODES, MORE_NODES),
    "cut-all": ("standby", NODES, MORE_NODES, STORE, HERE),
}
"""From whom the leader is cut off."""
PLAIN = ("kill", "pause", "terminate", "promote", "both-killed", "standby-killed")
DATABASE_ONLY = ("postgres-restart", "postgres-failover", "cut-store")
CLOCKS = ("clock-ahead", "clock-behind", "clock-jump")
DISKS = ("disk-leader", "disk-standby")
KINDS = (*PLAIN, "postgres-restart", "postgres-failover", *CUTS, *CLOCKS, *DISKS)
GROUPS = {"cuts": tuple(CUTS), "clocks": CLOCKS, "disks": DISKS}
"""Names that stand for several kinds."""
TAKE_OVERS = ("kill", "pause", "terminate", "promote", "both-killed", "clock-ahead", "clock-behind", "clock-jump")
"""Another epoch must begin after these."""
DIRECTIONS: tuple[Direction, ...] = ("out", "in", "both")
PAUSE_SECONDS = (2.0, 6.0)
LONG_PAUSE_SECONDS = 60.0
CUT_SECONDS = (5.0, 20.0)
FULL_SECONDS = (5.0, 12.0)
APART_SECONDS = 300.0
RECOVERY_SECONDS = 90.0

Mend = Callable[[], None] | None


@dataclass
class Fault:
    """One fault, and what was measured after it."""

    kind: str
    target: str
    at: float
    """When it began, by the boot clock."""
    wall: float
    epoch: int
    leads: float | None = None
    """Seconds until a scheduler of a later epoch leads; None: the same one has led all the time."""
    starts: float | None = None
    gap: float | None = None
    again: float | None = None
    """Seconds from the end of the fault until one leads and one follows."""
    ended: float = 0.0
    """When its cause was removed, by the boot clock."""
    over: float = 0.0
    """When everything worked again, by the boot clock."""
    probe: str = ""
    """The name of a task that was submitted after it."""
    note: str = ""


@dataclass
class Bench:
    """The processes of a run."""

    pair: Pair
    databases: Databases | None
    watch: Watch
    load: Load
    draw: random.Random
    long_pause: bool
    faults: list[Fault] = field(default_factory=list)
    probes: int = 0

    def hurt(self, kind: str) -> None:
        """Cause a fault and wait until everything works again."""
        leader, other = self._roles()
        if kind in CLOCKS:
            self._with_a_wrong_clock(kind, leader, other)
            return
        cause: Callable[[Fault, str, str], Mend] = (
            self._cut if kind in CUTS else getattr(self, f"_{kind.replace('-', '_')}")
        )
        self._cause(kind, leader, other, cause)

    def _roles(self) -> tuple[str, str]:
        """Wait until everything works; return who leads and who follows."""
        until(self.watch.is_whole, RECOVERY_SECONDS, "one scheduler leads and one follows")
        leader = self.watch.leader()
        assert leader is not None
        return leader, NAMES[leader == NAMES[0]]

    def _cause(self, kind: str, leader: str, other: str, cause: Callable[[Fault, str, str], Mend]) -> Fault:
        seen = self.watch.latest(leader)
        fault = Fault(kind, leader, boot(), time.time(), seen.epoch if seen else 0)
        self.faults.append(fault)
        mend = cause(fault, leader, other)
        probe = self._measure(fault)
        if mend is not None:
            mend()
        fault.ended = fault.ended or boot()
        until(self.watch.is_whole, RECOVERY_SECONDS, f"one scheduler leads and one follows after {kind}")
        fault.over = boot()
        probe.join(RECOVERY_SECONDS)
        fault.again = fault.over - fault.ended
        look = self.watch.leads_after(fault.at, fault.epoch + 1)
        fault.leads = look.received - fault.at if look is not None else None
        return fault

    def _measure(self, fault: Fault) -> threading.Thread:
        """Wait until a scheduler leads, and give it a task to start."""
        epoch = fault.epoch + (fault.kind in TAKE_OVERS)
        addresses = self.pair.addresses
        if fault.kind in TAKE_OVERS:
            until(
                lambda: self.watch.leads_after(fault.at, epoch) is not None,
                RECOVERY_SECONDS,
                f"a scheduler leads after {fault.kind}",
            )
            look = self.watch.leads_after(fault.at, epoch)
            assert look is not None
            # Clients wait for up to 10 s for a paused leader. This task shows how soon the new one can start tasks.
            addresses = self.pair.of(look.name).url
        self.probes += 1
        fault.probe = f"probe-{self.probes}"

        def submit() -> None:
            with connect(addresses, token=self.pair.token()) as client:
                self.load.submit(client, fault.probe, "true")

        probe = threading.Thread(target=submit, daemon=True)
        probe.start()
        return probe

    # --- processes ---------------------------------------------------------------------------------------------------

    def _kill(self, fault: Fault, leader: str, other: str) -> Mend:  # noqa: ARG002
        self.pair.kill(self.pair.process(leader))
        return lambda: self.pair.start_named(leader)

    def _pause(self, fault: Fault, leader: str, other: str) -> Mend:  # noqa: ARG002
        seconds = LONG_PAUSE_SECONDS if self.long_pause else self.draw.uniform(*PAUSE_SECONDS)
        self.long_pause = False
        fault.note = f"{seconds:.1f} s"
        process = self.pair.process(leader)
        self.pair.kill(process, signal.SIGSTOP)

        def resume() -> None:
            time.sleep(max(0.0, fault.at + seconds - boot()))
            self.pair.kill(process, signal.SIGCONT)

        return resume

    def _terminate(self, fault: Fault, leader: str, other: str) -> Mend:  # noqa: ARG002
        process = self.pair.process(leader)
        self.pair.kill(process, signal.SIGTERM)

        def again() -> None:
            fault.note = f"exit {process.wait(30)}"
            self.pair.start_named(leader)

        return again

    def _promote(self, fault: Fault, leader: str, other: str) -> Mend:  # noqa: ARG002
        # The command takes about a second to start; the request counts.
        with connect(self.pair.of(other).url, token=self.pair.token()) as client:
            fault.at, fault.wall = boot(), time.time()
            try:
                client.promote()
            except ClusterError as error:
                fault.note = str(error)
        return None

    def _both_killed(self, fault: Fault, leader: str, other: str) -> Mend:
        for name in (leader, other):
            self.pair.kill(self.pair.process(name))
        order = [leader, other]
        self.draw.shuffle(order)
        fault.note = f"{order[0]} first"
        for name in order:
            self.pair.start_named(name, "master" if name == NAMES[0] else "standby")
            time.sleep(self.draw.choice((0.0, 0.5)))
        return None

    def _standby_killed(self, fault: Fault, leader: str, other: str) -> Mend:  # noqa: ARG002
        fault.target = other
        self.pair.kill(self.pair.process(other))
        return lambda: self.pair.start_named(other)

    # --- the database ------------------------------------------------------------------------------------------------

    def _postgres_restart(self, fault: Fault, leader: str, other: str) -> Mend:  # noqa: ARG002
        assert self.databases is not None, "this fault needs --storage database"
        self.databases.primary.crash()
        time.sleep(self.draw.choice((0.0, 1.0, 3.0)))
        self.databases.primary.start()
        fault.ended = boot()
        fault.note = f"away {fault.ended - fault.at:.1f} s"
        return None

    def _postgres_failover(self, fault: Fault, leader: str, other: str) -> Mend:  # noqa: ARG002
        assert self.databases is not None, "this fault needs --storage database"
        self.databases.fail_over()
        fault.ended = boot()
        fault.note = f"away {fault.ended - fault.at:.1f} s"
        return self.databases.replicate_again

    # --- the network -------------------------------------------------------------------------------------------------

    def _cut(self, fault: Fault, leader: str, other: str) -> Mend:
        network = self.pair.network
        assert network is not None, "this fault needs a network"
        number = sum(before.kind == fault.kind for before in self.faults)
        direction, seconds = DIRECTIONS[(number - 1) % len(DIRECTIONS)], self.draw.uniform(*CUT_SECONDS)
        fault.note = f"{direction}, {seconds:.1f} s"
        network.cut(leader, [other if host == "standby" else host for host in CUTS[fault.kind]], direction)

        def heal() -> None:
            time.sleep(max(0.0, fault.at + seconds - boot()))
            network.heal()

        return heal

    # --- clocks ------------------------------------------------------------------------------------------------------

    def _with_a_wrong_clock(self, kind: str, leader: str, other: str) -> None:
        """Three faults: the leader is killed, so that one with another clock leads; that clock may jump; it is killed."""
        jumps = kind == "clock-jump"
        apart = self.draw.choice((-APART_SECONDS, APART_SECONDS)) if jumps else APART_SECONDS
        shift = -apart if kind == "clock-behind" else apart
        self.pair.kill(self.pair.process(other), signal.SIGTERM)
        self.pair.process(other).wait(30)
        self.pair.shift(other, 0.0 if jumps else shift)
        self.pair.start_named(other)
        started_at = boot()
        until(lambda: self._answers_since(other, started_at), RECOVERY_SECONDS, "the restarted scheduler answers")
        leader, other = self._roles()
        time.sleep(1.0)  # it learns from the next events what time it is for the leader
        self._cause(kind, leader, other, self._kill).note = f"to the clock with {0 if jumps else shift:+g} s"
        leader, other = self._roles()
        time.sleep(1.0)
        if jumps:
            self.pair.shift(leader, shift)
            time.sleep(self.draw.uniform(3.0, 8.0))
        self._cause(kind, leader, other, self._kill_and_correct).note = f"from the clock with {shift:+g} s"

    def _answers_since(self, name: str, at: float) -> bool:
        look = self.watch.latest(name)
        return look is not None and look.sent > at

    def _kill_and_correct(self, fault: Fault, leader: str, other: str) -> Mend:  # noqa: ARG002
        self.pair.kill(self.pair.process(leader))

        def again() -> None:
            self.pair.shifts.pop(leader)
            self.pair.start_named(leader)

        return again

    # --- disks -------------------------------------------------------------------------------------------------------

    def _disk_leader(self, fault: Fault, leader: str, other: str) -> Mend:  # noqa: ARG002
        return self._full(fault, leader)

    def _disk_standby(self, fault: Fault, leader: str, other: str) -> Mend:  # noqa: ARG002
        fault.target = other
        return self._full(fault, other)

    def _full(self, fault: Fault, name: str) -> Mend:
        seconds = self.draw.uniform(*FULL_SECONDS)
        fault.note = f"{seconds:.1f} s"
        self.pair.fill_disk(name)

        def give_space() -> None:
            until_at = fault.at + seconds
            while boot() < until_at:
                self.pair.fill_disk(name)  # what was removed meanwhile is taken, too
                time.sleep(min(0.5, max(0.0, until_at - boot())))
            self.pair.empty_disk(name)

        return give_space
