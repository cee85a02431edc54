"""What happens in the demonstration: a yard, its tenants, the tasks they submit, and the accidents of the day.

Everything is drawn from one seed, so a demonstration can be repeated. The length of the story decides how many tasks
come and how long they run; some parts of it are always there because they are worth seeing: a gang, shares of a GPU,
a chain of dependencies, a task no node can hold, a retry, a lost node, a drained one, cards that fail or are used from
outside.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

from msgspec.structs import replace

from gpuyard.core.domain import commands as command
from gpuyard.core.domain.node import Gpu, NodeSpec
from gpuyard.core.domain.settings import Settings
from gpuyard.core.domain.task import Estimate, NewTask, Resources, Share, TaskSpec
from gpuyard.core.domain.tenant import QuotaMode, Split, Tenant
from gpuyard.core.domain.values import GpuHealth, NodeId, Outcome, Preemption, TaskClass, TaskId, TenantId
from gpuyard.simulator.world import Run

LARGE, SMALL = "A100", "L40S"
ARRIVALS_UNTIL = 0.55
"""Part of the story in which tasks are submitted; the rest is there to see them end."""
LOAD = 1.05
"""Work submitted, measured by what the yard could do until the last arrival: above 1, so that tasks wait."""

_NAMES = {
    "search": ("rank", "embed", "answer"),
    "vision": ("resnet", "detect", "segment"),
    "speech": ("whisper", "tts", "align"),
    "students": ("homework", "thesis", "sweep"),
}


@dataclass
class Workload:
    """A story to come: what is so at the beginning, and what is said when."""

    nodes: tuple[NodeSpec, ...]
    opening: tuple[command.Command, ...]
    script: list[tuple[float, command.Command]]
    runs: dict[TaskId, Run]
    """How long tasks really run and how they end."""

    @property
    def gpus(self) -> int:
        """How many cards there are."""
        return sum(len(node.gpus) for node in self.nodes)


@dataclass(frozen=True)
class _Draft:
    """A task that has no number yet."""

    at: float
    spec: TaskSpec
    run: Run
    cancelled_at: float | None = None
    after: "_Draft | None" = None
    """The one whose success it needs."""


def workload(seed: int, nodes: int, length: float) -> Workload:
    """The story of a yard with so many nodes, over so many virtual seconds."""
    luck = Random(seed)  # noqa: S311  it tells a story, it keeps no secret
    yard = _yard(nodes)
    gpus = sum(len(node.gpus) for node in yard)
    drafts = sorted([*_ordinary(luck, gpus, length), *_always(luck, yard, length)], key=lambda draft: draft.at)
    story = Workload(yard, tuple(_opening(yard, gpus, length)), _accidents(yard, length), {})
    _number(drafts, story)
    story.script.sort(key=lambda step: step[0])
    return story


# --- the yard ---------------------------------------------------------------------------------------------------------


def _yard(count: int) -> tuple[NodeSpec, ...]:
    """Two nodes of three are large ones, and there are always both kinds."""
    kinds = ((LARGE, 8, 81_920), (SMALL, 4, 49_152), (LARGE, 8, 81_920))
    return tuple(_node(place, *kinds[place % 3]) for place in range(count))


def _node(place: int, model: str, gpus: int, memory_mib: int) -> NodeSpec:
    cards = tuple(Gpu(model, memory_mib, numa=card * 2 // gpus, nvlink=card * 2 // gpus) for card in range(gpus))
    return NodeSpec(NodeId(f"node-{place + 1}"), cards, cpus=96, memory_mib=1_048_576)


def _opening(yard: tuple[NodeSpec, ...], gpus: int, length: float) -> Iterator[command.Command]:
    yield command.FoundYard("demo")
    yield command.ChangeSettings(Settings(preemption_min_run_seconds=length / 50))
    yield command.SetSplit(Split(0.5, 0.5, QuotaMode.BORROW))
    limits = {
        "search": None,
        "vision": max(gpus * 4 // 5, 16),
        "speech": max(gpus // 3, 4),
        "students": max(gpus // 8, 2),
    }
    for name, most in limits.items():
        yield command.SetTenant(Tenant(TenantId(name), max_gpus=most))
    for node in yard:
        yield command.JoinNode(node)


def _accidents(yard: tuple[NodeSpec, ...], length: float) -> list[tuple[float, command.Command]]:
    drained, lost, worn = yard[0].id, yard[min(2, len(yard) - 1)].id, yard[-1].id
    return [
        (length * 0.10, command.SetGpuHealth(worn, 3, GpuHealth.OFFLINE)),
        (length * 0.18, command.SetGpuHealth(drained, 7, GpuHealth.EXTERNAL)),
        (length * 0.30, command.LoseNode(lost)),
        (length * 0.42, command.ReturnNode(lost)),
        (length * 0.50, command.CordonNode(drained, drain=True)),
        (length * 0.56, command.SetGpuHealth(drained, 7, GpuHealth.OK)),
        (length * 0.64, command.UncordonNode(drained)),
    ]


# --- the tasks --------------------------------------------------------------------------------------------------------


def _ordinary(luck: Random, gpus: int, length: float) -> Iterator[_Draft]:
    """Tasks of all tenants, until they add up to the load."""
    window = length * ARRIVALS_UNTIL
    left = gpus * window * LOAD
    while left > 0:
        draft = _draft(luck, luck.uniform(0.0, window), length)
        ask = draft.spec.resources
        left -= draft.run.seconds * (ask.gpus * ask.nodes or 0.5)
        yield draft


def _draft(luck: Random, at: float, length: float) -> _Draft:
    tenant = luck.choices(("search", "vision", "speech", "students"), (30, 35, 25, 10))[0]
    online = tenant == "search"
    name = f"{luck.choice(_NAMES[tenant])}-{luck.randrange(100, 1000)}"
    seconds = min(luck.lognormvariate(5.7, 0.6), length / 5)
    if online and luck.random() < 0.4:
        ask = Resources(share=Share(luck.choice((250, 500))), cpus=2)
    else:
        most = 2 if tenant == "students" else 4 if tenant == "speech" else 8
        size = min(luck.choices((1, 2, 4, 8), (40, 30, 20, 10))[0], most)
        models = (LARGE,) if size == 8 else luck.choice(((), (), (LARGE,), (SMALL,), (LARGE, SMALL)))
        ask = Resources(gpus=size, models=models, cpus=size * 4)
    fails = luck.random()
    run = Run(seconds) if fails > 0.12 else Run(seconds / 3, Outcome.FAILED, 1, then=Run(seconds))
    spec = TaskSpec(
        TenantId(tenant),
        ask,
        name=name,
        task_class=TaskClass.ONLINE if online else TaskClass.BATCH,
        priority=luck.choice((20, 50, 50, 80)),
        command=("python", f"{name}.py"),
        retries=0 if fails < 0.03 else 2,
        preemption=Preemption.NEVER if online else luck.choices(list(Preemption), (4, 3, 2, 1))[0],
        estimate=_estimate(luck, seconds) if luck.random() < 0.98 else None,
    )
    return _Draft(at, spec, run)


def _estimate(luck: Random, seconds: float) -> Estimate:
    """A guess that is off by up to a fifth, with a band around it."""
    guess = seconds * luck.uniform(0.8, 1.2)
    return Estimate(round(guess, 1), round(guess * 0.6, 1), round(guess * 1.7, 1))


def _always(luck: Random, yard: tuple[NodeSpec, ...], length: float) -> Iterator[_Draft]:
    """What every demonstration shows."""
    large = [node for node in yard if len(node.gpus) == 8]
    each = 8 if len(large) > 1 else 4
    gang = Resources(gpus=each, nodes=2, models=(LARGE,) if each == 8 else ())
    for part in (0.12, 0.45):
        yield _special(luck, "train-llm", "vision", gang, length * part, length / 9)
    first = _special(luck, "prepare", "speech", Resources(gpus=1), length * 0.05, length / 12)
    second = _special(luck, "train", "speech", Resources(gpus=2), first.at, length / 12, after=first)
    yield from (
        first,
        second,
        _special(luck, "evaluate", "speech", Resources(gpus=1), first.at, length / 20, after=second),
    )
    broken = _special(luck, "bad-config", "students", Resources(gpus=1), length * 0.2, length / 30, fails=True)
    yield from (broken, _special(luck, "report", "students", Resources(gpus=1), broken.at, length / 30, after=broken))
    wish = _special(luck, "wishful", "students", Resources(gpus=1, models=("B300",)), length * 0.15, length / 30)
    yield _Draft(wish.at, wish.spec, wish.run, cancelled_at=length * 0.55)


def _special(
    luck: Random,
    name: str,
    tenant: str,
    ask: Resources,
    at: float,
    seconds: float,
    *,
    after: _Draft | None = None,
    fails: bool = False,
) -> _Draft:
    spec = TaskSpec(
        TenantId(tenant),
        ask,
        name=name,
        priority=90,
        command=("python", f"{name}.py"),
        estimate=_estimate(luck, seconds),
    )
    return _Draft(at, spec, Run(seconds, Outcome.FAILED, 2) if fails else Run(seconds), after=after)


def _number(drafts: list[_Draft], story: Workload) -> None:
    """Give tasks their numbers in order of arrival, and put them into the script."""
    numbers = {id(draft): TaskId(place + 1) for place, draft in enumerate(drafts)}
    for draft in drafts:
        number = numbers[id(draft)]
        spec = draft.spec
        if draft.after is not None:
            spec = replace(spec, after_success=(numbers[id(draft.after)],))
        story.script.append((draft.at, command.SubmitTasks((NewTask(number, spec),))))
        story.runs[number] = draft.run
        if draft.cancelled_at is not None:
            story.script.append((draft.cancelled_at, command.CancelTask(number)))
