"""Generates random problems from a seed, in eleven families. The same seed gives the same problem on any machine.

A family determines the models, the shape of workflows and the scatter of durations. Requests are drawn, each for one of
the workflows, until together they have the required number of calls. A call takes its model's usual time × e^(scatter ×
normal), rounded to a hundredth of a second.

    chain         calls one after another            tiny          calls of a tenth of a second: loading dominates
    fanout        a plan, many workers, a join       huge          calls of minutes: loading hardly counts
    diamond       one, two in parallel, one          multi_gpu     models that span 2, 4 and 8 GPUs
    agentic       5 to 16 calls of up to 11 models   hetero_time   times from milliseconds to minutes
    hot_model     two models have most of the calls  tight_chain   long chains that change the model at every step
                                                     switch_heavy  two dozen large models and short calls
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np

from gpuyard.core.domain.errors import WrongInput
from gpuyard.plan.planner.instance import (
    FORMAT,
    Instance,
    WrittenGpu,
    WrittenLevel,
    WrittenModel,
    WrittenNode,
    WrittenRequest,
    WrittenWorkflow,
)
from gpuyard.plan.planner.problem import Floats
from gpuyard.plan.planner.random_numbers import RandomNumbers

WorkflowEdges = list[tuple[int, ...]]
"""For each node, the nodes it waits for."""


@dataclass(frozen=True, slots=True)
class ModelKind:
    """A model, and the usual duration of its calls."""

    name: str
    memory_gb: int
    seconds: float
    gpus: int = 1


SMALL: Final = (
    ModelKind("embed-1b", 2, 0.4),
    ModelKind("rerank-1b", 2, 0.6),
    ModelKind("guard-2b", 4, 0.8),
    ModelKind("tts-1b", 3, 1.5),
    ModelKind("asr-2b", 3, 2.5),
    ModelKind("vision-7b", 15, 3.0),
    ModelKind("chat-8b", 16, 4.0),
    ModelKind("math-7b", 15, 5.0),
    ModelKind("code-14b", 28, 6.0),
    ModelKind("image-12b", 24, 8.0),
)
LARGE: Final = (ModelKind("judge-32b", 64, 7.0), ModelKind("video-5b", 12, 20.0))
WIDE: Final = (
    ModelKind("chat-70b", 70, 9.0, 2),
    ModelKind("code-120b", 60, 12.0, 4),
    ModelKind("chat-400b", 50, 20.0, 8),
)


# --- shapes of workflows ----------------------------------------------------------------------------------------------


def _chain(least: int, most: int) -> Callable[[RandomNumbers], WorkflowEdges]:
    def drawn(chance: RandomNumbers) -> WorkflowEdges:
        return [(i - 1,) if i else () for i in range(chance.between(least, most))]

    return drawn


def _graph(least: int, most: int) -> Callable[[RandomNumbers], WorkflowEdges]:
    """Every node but the first waits for one of the four before it, and for each of the others with probability 1/4."""

    def waits_for(chance: RandomNumbers, node: int) -> tuple[int, ...]:
        near = range(max(0, node - 4), node)
        one = near[chance.below(len(near))]
        return tuple(i for i in near if i == one or chance.below(4) == 0)

    def drawn(chance: RandomNumbers) -> WorkflowEdges:
        return [waits_for(chance, i) if i else () for i in range(chance.between(least, most))]

    return drawn


def _fanout(chance: RandomNumbers) -> WorkflowEdges:
    workers = chance.between(4, 12)
    return [(), *[(0,)] * workers, tuple(range(1, workers + 1))]


def _diamond(_: RandomNumbers) -> WorkflowEdges:
    return [(), (0,), (0,), (1, 2)]


# --- models of nodes --------------------------------------------------------------------------------------------------


def _any(chance: RandomNumbers, kinds: list[ModelKind], edges: WorkflowEdges) -> list[ModelKind]:
    return [kinds[chance.below(len(kinds))] for _ in edges]


def _workers_alike(chance: RandomNumbers, kinds: list[ModelKind], edges: WorkflowEdges) -> list[ModelKind]:
    first, worker, last = _any(chance, kinds, edges[:3])
    return [first, *[worker] * (len(edges) - 2), last]


def _two_are_hot(chance: RandomNumbers, kinds: list[ModelKind], edges: WorkflowEdges) -> list[ModelKind]:
    """Send six of ten calls to the first two models."""
    return [kinds[chance.below(2)] if chance.below(10) < 6 else kinds[chance.below(len(kinds))] for _ in edges]


# --- families ---------------------------------------------------------------------------------------------------------


def _some(count: int, of: tuple[ModelKind, ...] = SMALL) -> Callable[[RandomNumbers], list[ModelKind]]:
    """Draw this number of different models, in random order."""

    def drawn(chance: RandomNumbers) -> list[ModelKind]:
        left = list(of)
        return [left.pop(chance.below(len(left))) for _ in range(count)]

    return drawn


def _three_and_wide(chance: RandomNumbers) -> list[ModelKind]:
    return [*_some(3)(chance), *WIDE]


def _all_and_one_wide(_: RandomNumbers) -> list[ModelKind]:
    return [*SMALL, WIDE[0]]


def _two_dozen_large(chance: RandomNumbers) -> list[ModelKind]:
    return [ModelKind(f"big-{i}", chance.between(40, 74), chance.between(30, 200) / 100) for i in range(24)]


@dataclass(frozen=True, slots=True)
class Family:
    """The parameters of one family of problems."""

    workflows: int
    kinds: Callable[[RandomNumbers], list[ModelKind]]
    edges: Callable[[RandomNumbers], WorkflowEdges]
    choose: Callable[[RandomNumbers, list[ModelKind], WorkflowEdges], list[ModelKind]] = _any
    scatter: float = 0.4
    times: float = 1.0
    """Calls take their model's usual time multiplied by this."""


FAMILIES: Final[dict[str, Family]] = {
    "chain": Family(4, _some(6), _chain(3, 6)),
    "fanout": Family(3, _some(6), _fanout, _workers_alike),
    "diamond": Family(6, _some(8, SMALL + LARGE), _diamond),
    "agentic": Family(8, _all_and_one_wide, _graph(5, 16), scatter=0.6),
    "hot_model": Family(10, _some(10, SMALL + LARGE), _graph(4, 8), _two_are_hot),
    "tiny": Family(6, _some(8, SMALL + LARGE[:1]), _graph(3, 8), times=0.04),
    "huge": Family(4, _some(6), _graph(2, 6), times=40.0),
    "multi_gpu": Family(6, _three_and_wide, _graph(3, 6)),
    "hetero_time": Family(6, _some(8, SMALL + LARGE[:1]), _graph(3, 6), scatter=1.5),
    "tight_chain": Family(3, _some(6, SMALL[2:]), _chain(50, 50)),
    "switch_heavy": Family(10, _two_dozen_large, _graph(3, 6)),
}


IDLE_WATTS: Final = 80.0
LEVELS: Final = (
    WrittenLevel(1.0, 700.0, 1980),
    WrittenLevel(0.93, 560.0, 1755),
    WrittenLevel(0.85, 460.0, 1545),
    WrittenLevel(0.75, 370.0, 1305),
)
"""Assumed, not measured: a GPU of 700 W whose calls wait for memory about half of the time."""


def generate(
    family: str,
    nodes: int,
    gpus: int,
    *,
    seed: int = 0,
    mixed: bool = False,
    pcie_gb_s: float = 25.0,
    levels: bool = False,
) -> Instance:
    """Generate a problem of a family with at least this number of nodes in all.

    `mixed`: half of the GPUs have 40 GB, not 80. `levels`: the GPUs have power levels.
    """
    if family not in FAMILIES:
        raise WrongInput(f"Unknown family {family!r}; available families: {', '.join(FAMILIES)}.")
    if nodes < 1 or gpus < 1:
        raise WrongInput("A problem has at least one node and one GPU.")
    chance, drawn = RandomNumbers(seed), FAMILIES[family]
    small = gpus // 2 if mixed else 0
    memory = [80] * (gpus - small) + [40] * small
    kinds = [kind for kind in drawn.kinds(chance) if _fits(kind, memory)]
    shapes = [_shape(chance, drawn, kinds, nodes if family == "tight_chain" else None) for _ in range(drawn.workflows)]
    used = {kind.name for _, chosen in shapes for kind in chosen}
    return Instance(
        FORMAT,
        {kind.name: WrittenModel(kind.memory_gb, kind.gpus) for kind in kinds if kind.name in used},
        [
            WrittenGpu(i, f"gpu{gb}", gb, idle_watts=IDLE_WATTS if levels else 0.0, levels=LEVELS if levels else ())
            for i, gb in enumerate(memory)
        ],
        {
            f"w{i}": WrittenWorkflow(
                tuple(
                    WrittenNode(f"n{n}", kind.name, kind.seconds, tuple(f"n{d}" for d in waits))
                    for n, (waits, kind) in enumerate(zip(edges, chosen, strict=True))
                )
            )
            for i, (edges, chosen) in enumerate(shapes)
        },
        _requests(chance, drawn, [[kind.seconds for kind in chosen] for _, chosen in shapes], nodes),
        f"{family}-n{nodes}-g{gpus}-s{seed}{'-mixed' if mixed else ''}{f'-pcie{pcie_gb_s:g}' if pcie_gb_s != 25 else ''}",
        family,
        seed,
        pcie_gb_s,
    )


def _fits(kind: ModelKind, memory: list[int]) -> bool:
    return sum(gb >= kind.memory_gb for gb in memory) >= kind.gpus  # the GPUs of 80 GB come first, so they are adjacent


def _shape(
    chance: RandomNumbers, family: Family, kinds: list[ModelKind], nodes: int | None
) -> tuple[WorkflowEdges, list[ModelKind]]:
    """Draw the graph of a workflow and the models of its nodes. Long chains are cut to leave a few requests."""
    edges = family.edges(chance)
    if nodes is not None:
        edges = edges[: max(6, min(len(edges), nodes // 4))]
    return edges, family.choose(chance, kinds, edges)


def _requests(chance: RandomNumbers, family: Family, usual: list[list[float]], nodes: int) -> list[WrittenRequest]:
    """Draw requests until they have enough nodes; all durations are drawn at once."""
    sizes = np.array([len(times) for times in usual])
    most = nodes // int(sizes.min()) + 1
    which = ((chance.words(most) >> np.uint64(32)) * np.uint64(len(usual)) >> np.uint64(32)).astype(np.int64)
    ends = np.cumsum(sizes[which])
    count = int(np.searchsorted(ends, nodes)) + 1
    which, ends = which[:count], ends[:count]
    at = np.concatenate([np.array(times) for times in usual])
    first = np.concatenate(([0], np.cumsum(sizes)))[which]
    begins = ends - sizes[which]
    middle = at[np.repeat(first - begins, sizes[which]) + np.arange(ends[-1])]
    drawn = middle * family.times * _exp(family.scatter * chance.bells(int(ends[-1])))
    times = (np.maximum(1, np.rint(drawn * 100)) / 100).tolist()
    names = [f"w{i}" for i in range(len(usual))]
    return [
        WrittenRequest(f"r{i}", names[w], times[a:b])
        for i, (w, a, b) in enumerate(zip(which.tolist(), begins.tolist(), ends.tolist(), strict=True))
    ]


def _exp(x: Floats) -> Floats:
    """e^x as (1 + x / 4096)^4096: only sums and products, which give the same last digit on any machine."""
    power = 1.0 + x / 4096.0
    for _ in range(12):
        power = power * power
    return power
