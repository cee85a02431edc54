"""One scenario of a cluster: nodes, a load and faults; at the end everything is repaired and checked. All of it follows from a seed."""

import asyncio
import gc
import hashlib
import logging
import random
import shutil
import tempfile
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import structlog

from gpuyard.core.domain import commands as command
from gpuyard.core.domain.refusals import Refusal
from gpuyard.core.domain.task import Resources, TaskSpec
from gpuyard.core.domain.values import NodeId, OnLost, TaskId, TaskStatus, TenantId
from gpuyard.core.journal.records import Record
from gpuyard.live.control_plane.access.principal import AuthMethod, Principal, Role, issuer_of
from gpuyard.live.control_plane.scheduler import Scheduler
from gpuyard.live.control_plane.submissions import Submission as Asked
from tests.simulation.faults.event_loop import VirtualLoop, clocks_watched, one_seed, virtual_loop
from tests.simulation.faults.ledger import SCHEDULER, Book, Judge, Ledger, Submission, Wrong, spoken
from tests.simulation.faults.machine import TOKEN, Machine, Work
from tests.simulation.faults.network import Link, Network
from tests.simulation.faults.scheduler import Disk, SchedulerMachine

MAIN, OTHER = "scheduler:9090", "standby:9090"
OUTAGES = (1.0, 1.0, 5.0, 20.0, 20.0, 90.0, 90.0, 600.0)
"""How long a scheduler is down."""
STUCK_SECONDS = 900.0
"""Nothing was said of any task for so long, and nothing runs that long: what has not ended by then never will."""
WHO = Principal("client", TenantId("lab"), Role.MEMBER, AuthMethod.TOKEN, "127.0.0.1")


@dataclass
class Outcome:
    """The outcome of a scenario."""

    seed: int
    faults: Counter[str] = field(default_factory=Counter)
    wrongs: list[Wrong] = field(default_factory=list)
    trace: list[str] = field(default_factory=list)
    tasks: int = 0
    runs: int = 0
    seconds: float = 0.0
    """Of virtual time."""

    @property
    def digest(self) -> str:
        return hashlib.sha256("\n".join(self.trace).encode()).hexdigest()[:16]


Fault = Callable[["Scenario", random.Random], Awaitable[str | None]]
"""Performs it with its own random numbers: the faults of a seed are the same whatever they do to the cluster. None: not now."""


def run_scenario(seed: int, faults: int = 50, only: Sequence[str] = (), *, keeps_exit_codes: bool = True) -> Outcome:
    """Run one scenario from its seed; the same seed gives the same scenario."""
    before = structlog.get_config()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    folder = Path(tempfile.mkdtemp(prefix="faults-", dir="/dev/shm" if Path("/dev/shm").is_dir() else None))
    loop = virtual_loop()
    gc.freeze()  # when the scenario is discarded, only its own objects are collected
    try:
        with one_seed(seed) as chance, clocks_watched() as asked:
            outcome = loop.run(Scenario(loop, seed, chance, folder, faults, only, keeps_exit_codes).run())
        outcome.wrongs += [Wrong("real_clock", "", f"{it}: such a scenario cannot be repeated") for it in sorted(asked)]
        return outcome
    finally:
        loop.bury()
        gc.unfreeze()
        structlog.configure(**before)
        shutil.rmtree(folder, ignore_errors=True)


class Scenario:
    """A cluster, its load and its faults."""

    def __init__(
        self,
        loop: VirtualLoop,
        seed: int,
        chance: random.Random,
        folder: Path,
        faults: int,
        only: Sequence[str],
        keeps_exit_codes: bool,
    ) -> None:
        self.loop, self.chance = loop, chance
        self.outcome = Outcome(seed)
        self._began = loop.time()
        self._folder, self._faults, self._only = folder, faults, only
        self.book = Book(loop.time, self.trace)
        self.ledger = Ledger(loop.time, self.trace)
        self.network = Network(loop, self._chances("network"))
        self.works: dict[str, Work] = {}
        self._keeps_exit_codes = keeps_exit_codes
        self.addresses = (MAIN, OTHER) if chance.random() < 0.3 or "scheduler_copied" in only else (MAIN,)
        self.scheduler = SchedulerMachine(loop, self.network, MAIN, Disk(self.book.hear, folder / "scheduler"))
        self.machines = [self._machine(f"node-{number}") for number in range(1, chance.randint(2, 4) + 1)]
        self.twins: list[Machine] = []
        self._twin_number = 0
        self.rival: SchedulerMachine | None = None
        """A second scheduler on a copy of the journal."""
        self.restored = False
        """An operator has put back a backup, or has decided between two schedulers."""
        self.busy: set[str] = set()
        """What a fault is being done to: machines, and the scheduler."""
        self.over = False
        self._waiting: set[str] = set()
        self._under_way: list[asyncio.Task[Any]] = []

    def _chances(self, *what: object) -> random.Random:
        """Of one thing alone: what happens to others does not change them."""
        return random.Random(f"{self.outcome.seed} {' '.join(map(str, what))}")

    def _machine(self, name: str, hardware: str = "", gpus: int = 0) -> Machine:
        return Machine(
            self.loop,
            name,
            gpus or self.chance.choice((1, 2, 4)),
            Link(self.network),
            self.addresses,
            self._folder / (hardware or name),
            self.ledger,
            self.works.__getitem__,
            self._chances(hardware or name),
            hardware=hardware,
            keeps_exit_codes=self._keeps_exit_codes,
        )

    def trace(self, line: str) -> None:
        self.outcome.trace.append(f"{self.loop.time():9.3f} {line}")

    # --- the whole ----------------------------------------------------------------------------------------------------

    async def run(self) -> Outcome:
        """Run the scenario and check it."""
        outcome = self.outcome
        self.scheduler.start()
        for machine in self.machines:
            machine.start_agent()
        works = (self._watch_over(), self._load(), self._suspend_some(), self._cancel_some())
        beside = [self.loop.create_task(work) for work in works]
        await asyncio.sleep(self.chance.uniform(5.0, 20.0))
        names = [name for name in FAULTS if not self._only or name in self._only]
        weights = [FAULTS[name][0] for name in names]
        pace = self.chance.choice((3.0, 8.0, 25.0))
        while sum(outcome.faults.values()) < self._faults:
            name = self.chance.choices(names, weights)[0]
            chance = self._chances("fault", len(self._under_way))
            self._under_way.append(self.loop.create_task(self._fault(name, chance)))
            await asyncio.sleep(self.chance.expovariate(1 / pace) if self.chance.random() < 0.95 else 90.0)
        await asyncio.gather(*self._under_way)
        self.over = True
        await self._mend()
        for task in beside:
            task.cancel()
        self.book.moved_at = self.loop.time()
        while self._open_tasks() and self.loop.time() < self.book.moved_at + STUCK_SECONDS:
            self._restart_the_dead()
            await asyncio.sleep(1.0)
        await asyncio.sleep(30.0)
        outcome.wrongs += Judge(self.book, self.ledger.runs, self.loop.time()).judge()
        self._check_nodes()
        for error in self.loop.errors:
            outcome.wrongs.append(Wrong("uncaught", "", f"{error.get('message')}: {error.get('exception')!r}"))
        for wrong in outcome.wrongs:
            self.trace(f"WRONG   {wrong.kind} {wrong.token}: {wrong.sentence}")
        outcome.tasks, outcome.runs = len(self.book.submissions), len(self.ledger.runs)
        outcome.seconds = self.loop.time() - self._began
        return outcome

    def _open_tasks(self) -> bool:
        return bool(self.book.open or self._waiting) or any(machine.running for machine in self.machines)

    def _check_nodes(self) -> None:
        """When everything is well, every node is there."""
        active = self.scheduler.active
        if active is None:
            self.outcome.wrongs.append(Wrong("no_scheduler", "", "the scheduler did not come back"))
            return
        for machine in self.machines:
            view = active.views.nodes.get(NodeId(machine.name))
            if view is None or view.lost:
                self.outcome.wrongs.append(Wrong("node_lost", "", f"{machine.name} is well, and counts as lost"))

    async def _mend(self) -> None:
        """Nothing is wrong any more."""
        self.trace("mend")
        for twin in self.twins:
            self._remove_twin(twin)
        self.twins = []
        self.scheduler.clock.ahead = 0.0
        self.scheduler.set_disk(0.0)
        self.scheduler.set_full(False)
        self.scheduler.start()
        for machine in self.machines:
            machine.clock.ahead = 0.0
            machine.link.mend()
            machine.start_agent()
        for token, submission in self.book.submissions.items():  # those that were suspended go on
            if submission.task is not None:
                await self.tell(command.ResumeTask(TaskId(submission.task)), f"resume {token}", quiet=True)

    # --- what an operating system does --------------------------------------------------------------------------------

    async def _watch_over(self) -> None:
        """What ends by itself is started again."""
        while not self.over:
            await asyncio.sleep(1.0)
            self._restart_the_dead()

    def _restart_the_dead(self) -> None:
        if why := self.scheduler.ended_alone:
            self.trace(f"  died  the scheduler: {why}"[:300])
            self.scheduler.kill(lambda: True)
            if self.rival is None and self.scheduler.was_deposed and self.restored:
                # A node that was away meanwhile has obeyed what was put away: the operator decides once more.
                self.scheduler.start(take_over=True)
                self.book.trouble("scheduler", SCHEDULER, self.loop.time() - 1.0, self.loop.time() + 1.0)
            elif self.rival is None:  # one that was deposed is right to end, and is started again when that is settled
                self.outcome.wrongs.append(Wrong("died", "", f"the scheduler: {why}"[:300]))
                if len(self.outcome.wrongs) < 50:
                    self.scheduler.start()
        if self.rival is not None and (why := self.rival.ended_alone):
            self.trace(f"  died  the second scheduler: {why}"[:300])
            self.rival.kill(lambda: True)
        for machine in (*self.machines, *self.twins):
            if (error := machine.agent_failed) is not None:
                self.trace(f"  died  the agent of {machine.hardware}: {error!r}"[:300])
                self.outcome.wrongs.append(Wrong("died", "", f"the agent of {machine.hardware}: {error!r}"[:300]))
                machine.kill_agent()
                if len(self.outcome.wrongs) < 50:
                    machine.start_agent()

    # --- the load -----------------------------------------------------------------------------------------------------

    async def _load(self) -> None:
        gpus = sum(len(machine.cards) for machine in self.machines)
        pause, number, chance = 70.0 / gpus, 0, self._chances("load")
        while not self.over:
            if len(self._waiting) + len(self.book.open) < 3 * gpus:  # in a long outage others come later
                number += 1
                self.loop.create_task(self._submit(number))
            await asyncio.sleep(chance.expovariate(1 / pause))

    async def _submit(self, number: int) -> None:
        """Until it is accepted, as a client with a key does."""
        token, chance = f"t{number}", self._chances("task", number)
        seconds = chance.expovariate(1 / 40.0) if chance.random() < 0.8 else chance.uniform(60.0, 400.0)
        exit_code = 0 if chance.random() < 0.85 else 1
        self.works[token] = Work(seconds, exit_code, chance.choice((0.05, 0.5, 8.0, 30.0)))
        on_lost = chance.choice((OnLost.RERUN, OnLost.RERUN, OnLost.FENCE, OnLost.WAIT))
        nodes = 2 if chance.random() < 0.1 else 1
        retries = 1 if chance.random() < 0.1 else 0
        largest = max(len(machine.cards) for machine in self.machines)
        gpus = 2 if nodes == 1 and largest > 1 and chance.random() < 0.2 else 1
        spec = TaskSpec(
            TenantId("lab"),
            Resources(gpus=gpus, nodes=nodes),
            command="work",
            env=((TOKEN, token),),
            on_lost=on_lost,
            retries=retries,
            timeout_seconds=chance.uniform(20.0, 120.0) if chance.random() < 0.1 else None,
        )
        submission = self.book.submissions[token] = Submission(token, on_lost, nodes, retries)
        self._waiting.add(token)
        await self._ask_until_accepted(submission, spec, chance)
        self._waiting.discard(token)

    async def _ask_until_accepted(self, submission: Submission, spec: TaskSpec, chance: random.Random) -> None:
        token = submission.token
        while True:
            answer = await self.scheduler.ask(
                lambda active: active.submissions.submit([Asked([spec], {})], WHO, key=token, body=token.encode())
            )
            if isinstance(answer, list) and answer:
                submission.task = int(answer[0].id)
                return
            if isinstance(answer, list):
                return  # the first answer was lost, and it has ended already
            if isinstance(answer, Refusal):
                return
            if self.over and answer is None and self.scheduler.active is not None:
                return
            await asyncio.sleep(chance.uniform(0.5, 3.0))

    async def tell(self, asked: command.Command, what: str, *, quiet: bool = False) -> Any:
        """An operator asks for something."""

        async def ask(active: Scheduler) -> Any:
            return await active.loop.tell(asked, issuer_of(WHO))

        answer = await self.scheduler.ask(ask)
        if not quiet:
            self.trace(
                f"  asked {what}: {'refused' if isinstance(answer, Refusal) else 'done' if answer else answer!r}"
            )
        return answer

    async def _suspend_some(self) -> None:
        chance = self._chances("suspend")
        while not self.over:
            await asyncio.sleep(chance.expovariate(1 / 60.0))
            active = self.scheduler.active
            running = (
                []
                if active is None
                else [it.id for it in active.views.tasks.values() if it.status is TaskStatus.RUNNING]
            )
            if running:
                task = chance.choice(running)
                await self.tell(command.SuspendTask(task), f"suspend task {task}")
                await asyncio.sleep(chance.uniform(1.0, 40.0))
                await self.tell(command.ResumeTask(task), f"resume task {task}")

    async def _cancel_some(self) -> None:
        chance = self._chances("cancel")
        while not self.over:
            await asyncio.sleep(chance.expovariate(1 / 120.0))
            known = [it for it in self.book.submissions.values() if it.task in self.book.open]
            if known:
                submission = chance.choice(known)
                submission.cancelled = True
                assert submission.task is not None
                await self.tell(command.CancelTask(TaskId(submission.task)), f"cancel task {submission.task}")

    # --- faults -------------------------------------------------------------------------------------------------------

    async def _fault(self, name: str, chance: random.Random) -> None:
        done = await FAULTS[name][1](self, chance)
        if done is not None:
            self.outcome.faults[name] += 1

    def began(self, what: str) -> float:
        self.trace(f"FAULT {what}")
        return self.loop.time()

    def pick(self, chance: random.Random) -> Machine | None:
        """A machine that nothing is being done to."""
        free = [machine for machine in self.machines if machine.name not in self.busy]
        return chance.choice(free) if free else None

    def _remove_twin(self, twin: Machine) -> None:
        self.trace(f"  twin  {twin.hardware} goes")
        twin.power_off()


def coin(chance: random.Random) -> bool:
    return chance.random() < 0.5


async def _with_scheduler(scenario: Scenario, do: Callable[[], Awaitable[None]]) -> str | None:
    """Do something to the scheduler, unless something is being done to it already."""
    if SCHEDULER in scenario.busy:
        return None
    scenario.busy.add(SCHEDULER)
    try:
        await do()
    finally:
        scenario.busy.discard(SCHEDULER)
    return "done"


async def _with_machine(
    scenario: Scenario, chance: random.Random, do: Callable[[Machine], Awaitable[None]]
) -> str | None:
    machine = scenario.pick(chance)
    if machine is None:
        return None
    scenario.busy.add(machine.name)
    try:
        await do(machine)
    finally:
        scenario.busy.discard(machine.name)
    return "done"


async def scheduler_killed(scenario: Scenario, chance: random.Random) -> str | None:
    async def do() -> None:
        seconds = chance.choice(OUTAGES) * chance.uniform(0.8, 1.2)
        began = scenario.began(f"scheduler killed for {seconds:.1f} s")
        scenario.scheduler.kill(partial(coin, chance))
        await asyncio.sleep(seconds)
        scenario.scheduler.start()
        scenario.book.trouble("scheduler", SCHEDULER, began, scenario.loop.time() + 1.0)

    return await _with_scheduler(scenario, do)


async def scheduler_stopped(scenario: Scenario, chance: random.Random) -> str | None:
    async def do() -> None:
        seconds = chance.choice((1.0, 5.0, 20.0, 40.0))
        began = scenario.began(f"scheduler stopped as planned for {seconds:.0f} s")
        good = not scenario.scheduler.disk.journal.full and scenario.scheduler.active is not None
        await scenario.scheduler.stop()
        await asyncio.sleep(seconds)
        scenario.scheduler.start()
        kind = "scheduler_planned" if good else "scheduler"
        scenario.book.trouble(kind, SCHEDULER, began, scenario.loop.time() + 1.0)

    return await _with_scheduler(scenario, do)


async def scheduler_paused(scenario: Scenario, chance: random.Random) -> str | None:
    async def do() -> None:
        seconds = chance.choice((1.0, 8.0, 20.0, 40.0, 120.0))
        process = scenario.scheduler.process
        began = scenario.began(f"scheduler stands still for {seconds:.0f} s")
        if process is not None and not process.stopped:
            process.stop()
            await asyncio.sleep(seconds)
            process.go_on()
        scenario.book.trouble("scheduler", SCHEDULER, began, scenario.loop.time() + 1.0)

    return await _with_scheduler(scenario, do)


async def clock_jumps(scenario: Scenario, chance: random.Random) -> str | None:
    clocks = [scenario.scheduler.clock, *(machine.clock for machine in scenario.machines)]
    place = chance.choice([0, 0, *range(1, len(clocks))])
    clock = clocks[place]
    if clock.ahead:
        clock.ahead = 0.0
        scenario.began(f"clock {place} is put right")
    else:
        clock.ahead = chance.choice((-28_800.0, -60.0, -5.0, 5.0, 60.0, 3_600.0, 28_800.0))
        scenario.began(f"clock {place} jumps by {clock.ahead:.0f} s")
    return "done"


async def disk_slow(scenario: Scenario, chance: random.Random) -> str | None:
    async def do() -> None:
        seconds = chance.choice((0.3, 1.3, 3.0))
        began = scenario.began(f"disk takes {seconds} s")
        scenario.scheduler.set_disk(seconds)
        await asyncio.sleep(chance.uniform(5.0, 60.0))
        scenario.scheduler.set_disk(0.0)
        scenario.book.trouble("slow", SCHEDULER, began, scenario.loop.time())

    return await _with_scheduler(scenario, do)


async def disk_full(scenario: Scenario, chance: random.Random) -> str | None:
    async def do() -> None:
        began = scenario.began("disk is full")
        scenario.scheduler.set_full(True)
        await asyncio.sleep(chance.choice((2.0, 20.0, 60.0)))
        if coin(chance):
            scenario.trace("  and   the scheduler is killed")
            scenario.scheduler.kill(partial(coin, chance))
            await asyncio.sleep(1.0)
            scenario.scheduler.set_full(False)
            scenario.scheduler.start()
        scenario.scheduler.set_full(False)
        scenario.book.trouble("full", SCHEDULER, began, scenario.loop.time() + 3.0)

    return await _with_scheduler(scenario, do)


async def backup_restored(scenario: Scenario, chance: random.Random) -> str | None:
    """An operator puts back a copy of the data folder that was made some time ago."""

    async def do() -> None:
        scheduler = scenario.scheduler
        length, backup = len(scenario.book.events), scheduler.disk.copy()
        scenario.began("backup made")
        await asyncio.sleep(chance.uniform(2.0, 60.0))
        began = scenario.began(f"backup of {length} events restored")
        scheduler.kill(partial(coin, chance))
        scenario.book.restore(length)
        scheduler.disk, scenario.restored = backup, True
        await asyncio.sleep(chance.choice((1.0, 20.0)))
        scheduler.start(take_over=True)
        scenario.book.trouble("scheduler", SCHEDULER, began, scenario.loop.time() + 1.0)

    return await _with_scheduler(scenario, do)


async def scheduler_copied(scenario: Scenario, chance: random.Random) -> str | None:
    """A second scheduler is started on a copy of the data folder, at an address that the agents try as well."""
    if OTHER not in scenario.addresses:
        return None

    async def do() -> None:
        scheduler = scenario.scheduler
        away = chance.choice((0.0, 20.0))
        began = scenario.began(f"a second scheduler starts on a copy; the first one is away for {away:.0f} s")

        def told(entries: Sequence[Record]) -> None:
            for said in filter(None, (spoken(it.event) for it in entries)):
                scenario.trace(f"  copy  {said}")

        rival = scenario.rival = SchedulerMachine(scenario.loop, scenario.network, OTHER, scheduler.disk.copy(told))
        rival.disk.journal.full = False
        scenario.book.excuse_open()
        rival.start()
        if away:
            scheduler.kill(partial(coin, chance))
            await asyncio.sleep(away)
            scheduler.start()
        await asyncio.sleep(chance.uniform(10.0, 60.0))
        scenario.trace("  copy  ends")
        rival.kill(partial(coin, chance))
        scenario.book.excuse_open()
        scheduler.kill(partial(coin, chance))
        await asyncio.sleep(1.0)
        scenario.rival, scenario.restored = None, True
        scheduler.start(take_over=True)
        scenario.book.trouble("scheduler", SCHEDULER, began, scenario.loop.time() + 1.0)

    return await _with_scheduler(scenario, do)


async def agent_killed(scenario: Scenario, chance: random.Random) -> str | None:
    async def do(machine: Machine) -> None:
        seconds = chance.choice((0.5, 5.0, 8.0, 30.0))
        began = scenario.began(f"agent of {machine.name} killed for {seconds} s")
        machine.kill_agent()
        await asyncio.sleep(seconds)
        machine.start_agent()
        scenario.book.trouble("agent_down", machine.name, began, scenario.loop.time())

    return await _with_machine(scenario, chance, do)


async def agent_stopped(scenario: Scenario, chance: random.Random) -> str | None:
    async def do(machine: Machine) -> None:
        seconds = chance.choice((1.0, 10.0, 30.0, 50.0))
        began = scenario.began(f"agent of {machine.name} stopped as planned for {seconds:.0f} s")
        told = is_connected(scenario, machine)
        await machine.stop_agent()
        await asyncio.sleep(seconds)
        machine.start_agent()
        kind = "agent_planned" if told else "agent_down"
        scenario.book.trouble(kind, machine.name, began, scenario.loop.time())

    return await _with_machine(scenario, chance, do)


def is_connected(scenario: Scenario, machine: Machine) -> bool:
    """Whether a word of an agent arrives at a scheduler that can write it down."""
    active, process = scenario.scheduler.active, scenario.scheduler.process
    if (
        active is None
        or process is None
        or process.stopped
        or active.loop.unwritable
        or scenario.scheduler.disk_seconds
    ):
        return False
    session = active.agents.sessions.get(NodeId(machine.name))
    return session is not None and session.connected and not session.closed and not machine.link.is_cut


async def agent_paused(scenario: Scenario, chance: random.Random) -> str | None:
    async def do(machine: Machine) -> None:
        seconds = chance.choice((1.0, 8.0, 20.0, 60.0))
        process = machine.process
        began = scenario.began(f"agent of {machine.name} stands still for {seconds:.0f} s")
        if process is not None:
            process.stop()
            await asyncio.sleep(seconds)
            process.go_on()
        scenario.book.trouble("agent_stopped", machine.name, began, scenario.loop.time())

    return await _with_machine(scenario, chance, do)


async def supervisor_killed(scenario: Scenario, chance: random.Random) -> str | None:
    async def do(machine: Machine) -> None:
        began = scenario.began(f"supervisor of {machine.name} killed")
        machine.kill_supervisor()
        if not scenario._keeps_exit_codes:
            scenario.book.trouble("supervisor", machine.name, began, scenario.loop.time())

    return await _with_machine(scenario, chance, do)


async def supervisor_paused(scenario: Scenario, chance: random.Random) -> str | None:
    """It is stopped: ends are reported later, and the watcher of leases does not wait for it."""

    async def do(machine: Machine) -> None:
        seconds = chance.choice((1.0, 20.0, 60.0))
        began = scenario.began(f"supervisor of {machine.name} stands still for {seconds:.0f} s")
        if machine.supervisor is not None:
            process = machine.supervisor.process
            process.stop()
            await asyncio.sleep(seconds)
            process.go_on()
        scenario.book.trouble("supervisor_stopped", machine.name, began, scenario.loop.time())

    return await _with_machine(scenario, chance, do)


async def node_rebooted(scenario: Scenario, chance: random.Random) -> str | None:
    async def do(machine: Machine) -> None:
        seconds = chance.choice((5.0, 40.0, 120.0))
        began = scenario.began(f"{machine.name} loses power for {seconds:.0f} s")
        machine.power_off()
        await asyncio.sleep(seconds)
        machine.power_on()
        scenario.book.trouble("power", machine.name, began, scenario.loop.time())

    return await _with_machine(scenario, chance, do)


async def line_cut(scenario: Scenario, chance: random.Random) -> str | None:
    async def do(machine: Machine) -> None:
        seconds = chance.choice((2.0, 7.0, 14.0, 20.0, 60.0))
        up, down = chance.choice(((True, True), (True, False), (False, True)))
        which = "both ways" if up and down else "up" if up else "down"
        began = scenario.began(f"line of {machine.name} cut {which} for {seconds:.0f} s")
        machine.link.keepalive = chance.random() < 0.8
        machine.link.cut(up, down)
        await asyncio.sleep(seconds)
        machine.link.mend()
        scenario.book.trouble("cut", machine.name, began, scenario.loop.time())

    return await _with_machine(scenario, chance, do)


async def line_broken(scenario: Scenario, chance: random.Random) -> str | None:
    """A connection breaks at one side, and the other side does not know: the agent comes a second time."""

    async def do(machine: Machine) -> None:
        client, server = chance.choice(((True, False), (False, True), (True, True)))
        which = "at both ends" if client and server else "at the agent" if client else "at the scheduler"
        began = scenario.began(f"connection of {machine.name} breaks {which}")
        machine.link.reset(client, server)
        await asyncio.sleep(6.0)  # the other side learns of it when it says something and is answered with a reset
        scenario.book.trouble("cut", machine.name, began, scenario.loop.time())

    return await _with_machine(scenario, chance, do)


async def line_slow(scenario: Scenario, chance: random.Random) -> str | None:
    async def do(machine: Machine) -> None:
        began = scenario.began(f"line of {machine.name} is slow")
        machine.link.delay_seconds = (0.1, chance.choice((0.5, 2.0)))
        await asyncio.sleep(chance.uniform(5.0, 60.0))
        machine.link.mend()
        scenario.book.trouble("line_slow", machine.name, began, scenario.loop.time())

    return await _with_machine(scenario, chance, do)


async def twin_comes(scenario: Scenario, chance: random.Random) -> str | None:
    """A second machine with the name of a node, with a copy of its folder or with a new one."""

    async def do(machine: Machine) -> None:
        scenario._twin_number += 1
        hardware = f"{machine.name}-twin-{scenario._twin_number}"
        copied = coin(chance)
        began = scenario.began(f"{hardware} comes, with {'a copied' if copied else 'a new'} folder")
        twin = scenario._machine(machine.name, hardware, len(machine.cards))
        if copied:
            machine.clone_folder(twin.folder)
        scenario.twins.append(twin)
        twin.start_agent()
        await asyncio.sleep(chance.uniform(10.0, 90.0))
        if twin in scenario.twins:
            scenario.twins.remove(twin)
            scenario._remove_twin(twin)
        scenario.book.trouble("power", hardware, began, scenario.loop.time())
        away_since = began - 10.0
        for it in sorted(scenario.book.troubles, key=lambda it: it.end, reverse=True):
            if it.where == SCHEDULER and it.begin <= began and it.end >= away_since:
                away_since = min(away_since, it.begin - 10.0)  # it could not come back meanwhile
        reasons = [it for it in scenario.book.troubles if it.where == machine.name and it.end >= away_since]
        if sum(it.end - it.begin for it in reasons) >= 5.0:  # the right one was away, and its place was free
            scenario.book.trouble("removed", machine.name, began, scenario.loop.time() + 30.0)

    return await _with_machine(scenario, chance, do)


async def node_removed(scenario: Scenario, chance: random.Random) -> str | None:
    """A node is out of reach, counts as lost, is removed by an operator, and returns."""

    async def do(machine: Machine) -> None:
        began = scenario.began(f"{machine.name} is cut off, removed, and returns")
        machine.link.cut()
        await asyncio.sleep(chance.uniform(20.0, 40.0))
        await scenario.tell(command.RemoveNode(NodeId(machine.name)), f"remove {machine.name}")
        await asyncio.sleep(chance.uniform(0.0, 30.0))
        machine.link.mend()
        scenario.book.trouble("removed", machine.name, began, scenario.loop.time())
        scenario.book.trouble("cut", machine.name, began, scenario.loop.time())

    return await _with_machine(scenario, chance, do)


FAULTS: dict[str, tuple[float, Fault]] = {
    "scheduler_killed": (3.0, scheduler_killed),
    "scheduler_stopped": (1.5, scheduler_stopped),
    "scheduler_paused": (1.0, scheduler_paused),
    "clock_jumps": (1.5, clock_jumps),
    "disk_slow": (1.0, disk_slow),
    "disk_full": (0.7, disk_full),
    "backup_restored": (0.3, backup_restored),
    "scheduler_copied": (0.5, scheduler_copied),
    "agent_killed": (3.0, agent_killed),
    "agent_stopped": (1.5, agent_stopped),
    "agent_paused": (1.0, agent_paused),
    "supervisor_killed": (1.0, supervisor_killed),
    "supervisor_paused": (0.5, supervisor_paused),
    "node_rebooted": (0.7, node_rebooted),
    "line_cut": (2.0, line_cut),
    "line_broken": (2.0, line_broken),
    "line_slow": (0.5, line_slow),
    "twin_comes": (0.5, twin_comes),
    "node_removed": (0.4, node_removed),
}
"""Every fault, with how often it is drawn."""
