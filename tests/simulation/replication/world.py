"""One run: two schedulers, nodes and witnesses, two clients, and faults; then everything heals and must work again."""

import random
from collections import Counter
from collections.abc import Callable, Collection
from functools import partial
from heapq import heappop, heappush
from typing import Literal

from gpuyard.core.replication.electorate import PATIENCE_SECONDS, CandidateVoter, choose_voters
from gpuyard.core.replication.membership import Membership, first_membership, founding_membership
from gpuyard.core.replication.timing import Timing
from tests.simulation.replication.checks import Checks, Violation
from tests.simulation.replication.faults import FAULTS, Fault
from tests.simulation.replication.node import NOTHING, NodeProcess
from tests.simulation.replication.process import Process
from tests.simulation.replication.scheduler import SchedulerProcess, Submit

CHAOS, HEALED = 12.0, 9.0
"""Seconds with faults, and without them afterwards. A lease takes one second."""


class World:
    """Everything that happens is an event of the heap; the seed determines all of it."""

    def __init__(
        self,
        seed: int,
        without: Collection[str] = (),
        *,
        trace: bool = False,
        faults: tuple[Fault, ...] = FAULTS,
        choose: bool = False,
        grouped: bool = False,
    ) -> None:
        """`choose`: the leader asks for the voters of `choose_voters`; otherwise for all registered ones."""
        self.seed, self.without, self.tracing, self.choose = seed, frozenset(without), trace, choose
        self.grouped = grouped
        """Some requests are appends of several entries."""
        self.rng = rng = random.Random(seed)
        self.now, self.healed = 0.0, False
        self.counts: Counter[str] = Counter()
        self.checks = Checks(self)
        self._heap: list[tuple[float, int, Process | None, int, Callable[[], object]]] = []
        self._number = 0
        self.cut: Counter[tuple[str, str]] = Counter()
        self.lag: dict[tuple[str, str], float] = {}
        self._loss = rng.choice([0, 0.02, 0.1, 0.25])
        self._doubled = rng.choice([0, 0.05])
        self._late = rng.choice([0, 0.02, 0.1])
        self.clocks_hold = rng.random() < 0.7
        """Otherwise clocks also stop or jump ahead; leases are then not safe, all other promises are."""
        self.timing = Timing(
            lease=1.0,
            renew_every=0.25,
            answers_within=0.3,
            proposal_retry=1.5,
            single_after=rng.choice([None, 0.6, 2.0]),
            batch=rng.choice([1, 3, 50]),
        )
        self.progress_owed = True
        self._build()
        self._plan(faults)

    # --- the cluster ---

    def _build(self) -> None:
        rng = self.rng
        count = rng.choice([1, 2, 3, 3, 4, 5])
        names = [(f"n{number}", f"n{number}", True) for number in range(count)]
        if count < 3 or rng.random() < 0.3:
            names += [("wA", "A", False), ("wB", "B", False)]  # a witness beside each scheduler; it dies with the host
        if count == 2:
            names.append(("w", "w", False))
        founded_alone = rng.random() < 0.3
        """The cluster begins with one scheduler and its voter; the others join."""
        if founded_alone:
            self.first = founding_membership("A", "vA#0")
        else:
            self.first = first_membership(["A", "B"], [f"{name}#0" for name, *_ in names])
        self.nodes: dict[str, NodeProcess] = {}
        for name, host, runs_tasks in names:
            self.add_node(name, host, runs_tasks=runs_tasks)
        self.next_node = count
        self.registered = set(self.nodes)
        if founded_alone:
            founding_voter = self.add_node("vA", "A", runs_tasks=False)
            if rng.random() < 0.5:
                self.registered.add(founding_voter.address)
        self.schedulers: dict[str, SchedulerProcess] = {}
        self.schedulers["A"] = SchedulerProcess(self, "A", "B", self.first, rng.uniform(1.0, 1.3))
        b_knows = NOTHING if founded_alone else self.first
        self.schedulers["B"] = SchedulerProcess(self, "B", "A", b_knows, rng.uniform(1.3, 2.0), empty=founded_alone)
        self.checks.single_allowed = founded_alone or self.timing.single_after is not None
        self.counts["runs founded by one scheduler"] += founded_alone
        self._gone_since: dict[str, float] = {}
        self._asked: dict[int, tuple[str, float]] = {}
        for client in range(2):
            self.at(rng.uniform(0, 1), None, 0, partial(self._ask, client, 0))

    def add_node(self, name: str, host: str, *, runs_tasks: bool) -> NodeProcess:
        node = NodeProcess(self, name, host, self.first, runs_tasks=runs_tasks)
        self.nodes[node.address] = node
        return node

    def rename(self, node: NodeProcess, address: str) -> None:
        del self.nodes[node.address]
        if node.address in self.registered:
            self.registered.discard(node.address)
            self.registered.add(address)
        node.address = address
        self.nodes[address] = node

    def wanted_voters(self, current: frozenset[str]) -> frozenset[str] | None:
        """The voters that there should be. All that run are connected; patience is a second for two leases."""
        if not self.choose:
            return frozenset(self.registered)
        kinds: dict[bool, Literal["agent", "witness"]] = {True: "agent", False: "witness"}
        connected = {
            address: CandidateVoter("scheduler" if it.name == "vA" else kinds[it.runs_tasks], it.name)
            for address, it in self.nodes.items()
            if it.alive
        }
        registered = {self.nodes[address].name for address in self.registered}
        gone = current - connected.keys()
        self._gone_since = {address: self._gone_since.get(address, self.now) for address in gone}
        away = {address: (self.now - since) * PATIENCE_SECONDS / 2 for address, since in self._gone_since.items()}
        return choose_voters(current, connected, registered, away)

    def some_node(self) -> str | None:
        """A registered node that runs tasks."""
        nodes = sorted(address for address in self.registered if self.nodes[address].runs_tasks)
        return self.rng.choice(nodes) if nodes else None

    @property
    def processes(self) -> list[Process]:
        return [*self.schedulers.values(), *self.nodes.values()]

    # --- time and network ---

    def at(self, when: float, process: Process | None, life: int, what: Callable[[], object]) -> None:
        self._number += 1
        heappush(self._heap, (when, self._number, process, life, what))

    def send(self, source: Process, to: str, message: object) -> None:
        """A message may be lost, doubled, late and overtaken; one to itself arrives at once."""
        target: Process | None = self.nodes.get(to)
        for scheduler in self.schedulers.values():
            if scheduler.address == to:
                target = scheduler
        if target is None:
            return
        if target is source:
            self.at(self.now, target, target.life, lambda: target.receive(message))
            return
        rng, way = self.rng, (source.host, target.host)
        if self.tracing:
            self.trace(source.address, "->", to, message)
        if source.host != target.host and self.cut[way] > 0:
            self.counts["messages cut off"] += 1
            return
        copies = 2 if rng.random() < self._doubled else 1
        self.counts["messages doubled"] += copies - 1
        for _ in range(copies):
            if rng.random() < self._loss:
                self.counts["messages lost"] += 1
                continue
            delay = rng.uniform(0.001, 0.02) + self.lag.get(way, 0.0)
            if rng.random() < self._late:
                self.counts["messages late"] += 1
                delay += rng.expovariate(1 / 1.5)
            self.at(self.now + delay, target, -1, lambda: self._deliver(target, to, message))

    def _deliver(self, target: Process, to: str, message: object) -> None:
        if target.address == to:
            target.receive(message)

    def run(self) -> None:
        """Raises `Violation`."""
        try:
            self._run()
            self.checks.at_end()
        except AssertionError as broken:
            raise Violation(f"assertion: {broken}", f"at {self.now:.3f} s") from broken
        self.counts["requests acknowledged"] += len(self.checks.acknowledged)
        self.counts["entries committed"] += len(self.checks.history)
        self.counts["entries committed on one disk"] += self.checks.single_commits
        self.counts["epochs with a leader"] += len(self.checks.leaders)
        self.counts["attempts launched"] += len(self.checks.runs)
        self.counts["runs with broken clocks"] += not self.clocks_hold
        self.counts["runs that owe progress"] += self.progress_owed

    def _run(self) -> None:
        heap = self._heap
        while heap and heap[0][0] <= CHAOS + HEALED:
            when, _, process, life, what = heappop(heap)
            self.now = when
            if process is not None:
                if not process.alive or (life >= 0 and life != process.life):
                    continue
                if when < process.paused_until:
                    process.park(life, what)
                    continue
            what()

    def trace(self, *words: object) -> None:
        if self.tracing:
            print(f"{self.now:7.3f}", *words)

    # --- clients ---

    def _ask(self, client: int, number: int) -> None:
        task = f"c{client}.{number}"
        waiting = self._asked.get(client)
        if waiting is None or waiting[0] != task:
            self._asked[client] = (task, self.now)
        request = Submit(client, task)
        for scheduler in self.schedulers.values():
            if self.rng.random() >= self._loss:
                delay = self.rng.uniform(0.001, 0.02)
                self.at(self.now + delay, scheduler, -1, partial(scheduler.receive, request))

        def again() -> None:
            if task not in self.checks.acknowledged:
                self._ask(client, number)

        self.at(self.now + self.rng.uniform(0.2, 0.7), None, 0, again)

    def answer(self, client: int, task: str) -> None:
        if task in self.checks.acknowledged:
            return
        self.checks.acknowledged.add(task)
        number = int(task.split(".")[1]) + 1
        self.at(self.now + self.rng.expovariate(2.0), None, 0, lambda: self._ask(client, number))

    def waits_too_long(self) -> bool:
        return any(task not in self.checks.acknowledged and since < CHAOS + 0.5 for task, since in self._asked.values())

    # --- faults ---

    def _plan(self, faults: tuple[Fault, ...]) -> None:
        rng = self.rng
        for _ in range(rng.choice([3, 7, 12, 20])):
            when = rng.uniform(0.8, CHAOS)
            for _ in range(rng.choice([1, 1, 2, 3])):
                fault = rng.choice(faults)
                instant = min(CHAOS - 0.01, when + rng.choice([0, 0, 0.05, 0.4]))
                self.at(instant, None, 0, partial(self._strike, fault))
        self.at(CHAOS, None, 0, self._heal)

    def _strike(self, fault: Fault) -> None:
        name = fault.__name__.replace("_", " ")
        self.trace("FAULT", name)
        self.counts[f"fault: {name}"] += 1
        fault(self)

    def leader(self) -> SchedulerProcess:
        """The scheduler that leads, or the first one."""
        return next((it for it in self.schedulers.values() if it.alive and it.replica.reign), self.schedulers["A"])

    def block(self, ways: Collection[tuple[str, str]], seconds: float) -> None:
        if self.healed:
            return
        ways = list(ways)
        self.cut.update(ways)
        self.at(self.now + seconds, None, 0, lambda: self.cut.subtract(ways))

    def crash(self, process: Process, seconds: float, *, forget: bool = False) -> None:
        """With a scheduler, what runs on its host crashes as well."""
        beside = (
            [it for it in self.processes if it.host == process.host] if process.host in self.schedulers else [process]
        )
        for it in beside:
            if it.alive:
                it.crash()
                if forget and isinstance(it, NodeProcess):
                    it.forget()
                self.at(self.now + seconds, None, 0, it.restart)

    def _heal(self) -> None:
        """From here on messages arrive and processes run, except those that are gone for good."""
        self.trace("HEAL")
        self.healed = True
        self._loss = self._doubled = self._late = 0
        self.cut, self.lag = Counter(), {}
        for it in self.processes:
            it.wake()
            it.sync_seconds = 0.002
        possible = self.possible()
        if self.rng.random() < 0.4:
            self._lose_a_scheduler(possible)
        for it in self.processes:
            it.restart()
        alive = {address for address, it in self.nodes.items() if it.alive}
        # One that knows only voters that are lost finds no other ones; a person has to help it.
        able = {it.name for it in self.schedulers.values() if it.alive and it.disk.record.membership.everyone & alive}
        self.progress_owed = all(it.quorum(alive) and it.in_sync & able for it in possible)
        if len(able) < 2 and self.timing.single_after is None:
            self.progress_owed = False

    def is_spare(self, scheduler: SchedulerProcess) -> bool:
        """Whether the other one has every committed entry, whichever membership is in force."""
        other = self.schedulers[scheduler.peer]
        return not self.healed and not other.waiting and all(other.name in it.in_sync for it in self.possible())

    def possible(self) -> set[Membership]:
        """The memberships that may be in force: those that voters and leaders have and that are not surely replaced."""
        known = {it.disk.accepted for it in self.nodes.values()}
        for it in self.schedulers.values():  # proposals that are still on their way
            known |= {disk.record.membership for disk in (it.disk, *it.lost)} | {it.replica.record.membership}
        known.discard(NOTHING)
        newest = max(known, key=lambda it: it.order)
        return {it for it in known if it.epoch == newest.epoch or it.order >= self._decided().order} | {self._decided()}

    def _decided(self) -> Membership:
        """The newest membership that a quorum of its own voters has accepted."""
        known = {it.disk.accepted for it in self.nodes.values()} - {NOTHING}
        decided = [
            it
            for it in known
            if it.quorum({address for address, node in self.nodes.items() if node.disk.accepted.order >= it.order})
        ]
        return max(decided, key=lambda it: it.order, default=self.first)

    def _lose_a_scheduler(self, possible: set[Membership]) -> None:
        """One scheduler never returns, if the other one is in sync whichever membership is in force."""
        for lost in self.schedulers.values():
            witnessed = any(it.host == lost.host for it in self.nodes.values())
            other = self.schedulers[lost.peer]
            if not witnessed and all(other.name in it.in_sync for it in possible):
                if lost.alive:
                    lost.crash()
                lost.gone = True
                self.counts["fault: scheduler lost for good"] += 1
                return
