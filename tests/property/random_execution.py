"""Random work with random plans, and a simulation in which GPUs are lost, reclaimed and returned, and calls fail.

The simulation checks the rules all the time and reports violations with their instant.
"""

from dataclasses import dataclass, field
from random import Random

from gpuyard.plan.executor.executor import Executor, Rules
from gpuyard.plan.executor.messages import (
    Back,
    Call,
    Done,
    DropResult,
    ExecutorCommand,
    ExecutorEvent,
    Failed,
    Load,
    Lost,
    Reclaimed,
    ReleaseGpu,
    Replan,
    Stop,
    Unload,
)
from gpuyard.plan.executor.work import Assignment, RemainingWork, Work
from gpuyard.testing.rehearsal import rehearse


def random_work(chance: Random) -> Work:
    """A few requests of a few calls on a few GPUs; some models are wide, some GPUs small, some requests come late."""
    gpus = chance.randint(1, 6)
    models = chance.randint(1, 4)
    width = [chance.choice([1, 1, 1, 2, 3]) for _ in range(models)]
    width = [min(w, gpus) for w in width]
    model: list[int] = []
    before: list[list[int]] = []
    earliest: list[float] = []
    for _ in range(chance.randint(1, 8)):
        base, arrival = len(model), chance.choice([0.0, 0.0, chance.uniform(0, 60)])
        for position in range(chance.randint(1, 5)):
            model.append(chance.randrange(models))
            before.append([base + other for other in range(position) if chance.random() < 0.4])
            earliest.append(arrival)
    after: list[list[int]] = [[] for _ in model]
    for call, some in enumerate(before):
        for earlier in some:
            after[earlier].append(call)
    memory = [chance.choice([4.0, 8.0]) for _ in range(models)]
    return Work(
        model=model,
        seconds=[chance.choice([0.0, 1.0, chance.uniform(0, 20)]) for _ in model],
        earliest_s=earliest,
        before=before,
        after=after,
        kind=list(model),
        width=width,
        load_s=[chance.uniform(0, 10) for _ in range(models)],
        unload_s=[chance.choice([0.0, 1.0]) for _ in range(models)],
        memory_gb=memory,
        gpu_memory_gb=[chance.choice([8.0, 16.0]) for _ in range(gpus)],
        speed=[chance.choice([1.0, 1.0, 0.5]) for _ in range(gpus)],
        host=[0] * gpus,
        multi_model=chance.random() < 0.3,
        priority=[chance.choice([10, 50, 90]) for _ in model] if chance.random() < 0.5 else (),
        preloads=[chance.random() < 0.9 for _ in range(models)] if chance.random() < 0.5 else (),
    )


def random_plan(work: Work, chance: Random, left: RemainingWork | None = None) -> Assignment:
    """Any GPU and any order that the dependencies allow; sometimes a call is missing."""
    usable = [True] * len(work.speed) if left is None else left.usable
    calls = list(range(len(work))) if left is None else list(left.call)
    chance.shuffle(calls)
    calls.sort(key=lambda call: chance.random() * 3 + work.rank[call])
    calls = sorted(calls, key=lambda call: work.rank[call]) if chance.random() < 0.5 else _legal(work, calls)
    plan = Assignment()
    at = 0.0 if left is None else left.now_s
    for call in calls:
        model = work.model[call]
        firsts = [f for f in sorted(work.firsts[model]) if all(usable[g] for g in work.group(model, f))]
        if firsts and chance.random() < 0.95:
            plan.call.append(call)
            plan.gpu.append(chance.choice(firsts))
            plan.start_s.append(at)
            at += chance.uniform(0, 3)
            plan.end_s.append(at)
    return plan


def _legal(work: Work, calls: list[int]) -> list[int]:
    waiting, placed, order = list(calls), set[int](), list[int]()
    inside = set(calls)
    while waiting:
        for call in waiting:
            if all(b in placed or b not in inside for b in work.before[call]):
                placed.add(call)
                order.append(call)
                waiting.remove(call)
                break
    return order


@dataclass
class World:
    """Carries out commands, fails sometimes, and checks the commands."""

    work: Work
    chance: Random
    trouble: float
    broken: list[str] = field(default_factory=list)
    running: dict[int, ExecutorCommand] = field(default_factory=dict)
    held: dict[int, dict[int, int]] = field(default_factory=dict)
    """What the worker of each GPU really holds: model → width."""
    gone: set[int] = field(default_factory=set)
    overlaps: int = 0
    """How often something began on a GPU that did something else."""
    done: dict[int, int] = field(default_factory=dict)
    """How often each call was reported as done."""

    def says(self, now: float, what: str) -> None:
        self.broken.append(f"at {now:.3f}: {what}")

    def watch(self, now: float, command: ExecutorCommand) -> ExecutorEvent | None:
        match command:
            case Load() | Unload() | Call():
                self._begins(now, command)
                if self.chance.random() < self.trouble * (0.3 if isinstance(command, Load) else 1.0):
                    return Failed(command.operation, "bad luck")
            case Stop(gpu) | ReleaseGpu(gpu):
                self.end_worker(gpu)
                if isinstance(command, ReleaseGpu):
                    self.gone.add(gpu)
            case Replan() | DropResult():
                pass
        return None

    def _begins(self, now: float, command: Load | Unload | Call) -> None:
        worker = command.gpus[0]
        if list(command.gpus) != list(range(worker, worker + self.work.width[command.model])):
            self.says(now, f"{command} is no group of neighbours")
        for other in self.running.values():
            if isinstance(other, Load | Unload | Call) and set(other.gpus) & set(command.gpus):
                if not self._may_overlap(command, other):
                    self.says(now, f"{command} while {other}")
                self.overlaps += 1
        if set(command.gpus) & self.gone:
            self.says(now, f"{command} on a GPU that is gone")
        self.running[command.operation] = command
        if isinstance(command, Load):
            self._fits(now)
        holds = self.held.setdefault(worker, {})
        if isinstance(command, Call):
            if command.model not in holds:
                self.says(now, f"{command} but its worker holds {holds}")
            if any(self.done.get(b, 0) != 1 for b in self.work.before[command.call]):
                self.says(now, f"{command} before what it waits for")
            if set(command.results) != set(self.work.before[command.call]):
                self.says(now, f"{command} without all results")
            if any(result != f"result of {b}" for b, result in command.results.items()):
                self.says(now, f"{command} with wrong results")
            if now < self.work.earliest_s[command.call]:
                self.says(now, f"{command} before its request came")

    def _may_overlap(self, one: Load | Unload | Call, other: Load | Unload | Call) -> bool:
        """A load or an unload beside a call of another model, if the work allows it for the model."""
        copies = [c for c in (one, other) if isinstance(c, Load | Unload)]
        return (
            len(copies) == 1 and copies[0].beside and one.model != other.model and self.work.preloads[copies[0].model]
        )

    def hears(self, _now: float, event: ExecutorEvent) -> ExecutorEvent:
        """An event on its way to the executor: what it means for the world."""
        if isinstance(event, Done | Failed):
            command = self.running.pop(event.operation, None)
            worker = None if command is None or not isinstance(command, Load | Unload | Call) else command.gpus[0]
            if isinstance(event, Done) and worker is not None:
                holds = self.held.setdefault(worker, {})
                match command:
                    case Load(_, model):
                        holds[model] = self.work.width[model]
                    case Unload(_, model):
                        holds.pop(model, None)
                    case Call():
                        self.done[command.call] = self.done.get(command.call, 0) + 1
                        return Done(event.operation, event.seconds, f"result of {command.call}")
        if isinstance(event, Lost):
            self.end_worker(event.gpu)
            self.gone.add(event.gpu)
        if isinstance(event, Back):
            self.gone.discard(event.gpu)
        return event

    def _fits(self, now: float) -> None:
        for gpu, memory in enumerate(self.work.gpu_memory_gb):
            here = [m for worker, holds in self.held.items() for m, w in holds.items() if worker <= gpu < worker + w]
            here += [c.model for c in self.running.values() if isinstance(c, Load) and gpu in c.gpus]
            if sum(self.work.memory_gb[m] for m in here) > memory:
                self.says(now, f"GPU {gpu} of {memory} GB holds models {here}")
            if not self.work.multi_model and len(here) > (2 if self.work.preloads else 1):
                self.says(now, f"GPU {gpu} holds models {here}")

    def end_worker(self, gpu: int) -> None:
        """All that it did and held is gone."""
        self.held.pop(gpu, None)
        self.running = {
            n: c for n, c in self.running.items() if not (isinstance(c, Load | Unload | Call) and c.gpus[0] == gpu)
        }


def bad_days(work: Work, chance: Random) -> list[tuple[float, ExecutorEvent]]:
    """GPUs are lost and taken, and all of them are back in the end."""
    days: list[tuple[float, ExecutorEvent]] = []
    for gpu in range(len(work.speed)):
        at = 0.0
        for _ in range(chance.choice([0, 0, 1, 2, 3])):
            at += chance.uniform(0, 40)
            notice = chance.uniform(0, 15)
            days.append((at, Lost(gpu) if chance.random() < 0.5 else Reclaimed(gpu, at + notice)))
            at += notice + chance.uniform(0, 20)
            days.append((at, Back(gpu)))
    return days


def run_scenario(seed: int, trouble: float = 0.1, *, bad: bool = True) -> tuple[Executor, World]:
    """One scenario from one seed: the result of the executor, and the violations found."""
    chance = Random(seed)
    work = random_work(chance)
    rules = Rules(steals=chance.random() < 0.8, replans=chance.random() < 0.8, retries=50, losses=50, load_failures=50)
    executor = Executor(work, random_plan(work, chance), rules)
    world = World(work, chance, trouble)
    rehearse(
        executor,
        seconds=lambda call: call.seconds * chance.uniform(0.5, 1.5),
        plan=lambda left: random_plan(work, chance, left) if chance.random() < 0.9 else None,
        happens=bad_days(work, chance) if bad else (),
        watch=world.watch,
        hears=world.hears,
    )
    return executor, world
