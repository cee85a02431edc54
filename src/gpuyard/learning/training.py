"""From nothing to a model that can be used: a few nets are trained apart, a guard is set, and both are put to the test.

Three sets of seeds never meet: those that nets learn from, those that the guard is chosen on, and, in benchmarks/dqn.py,
those that are reported. Of a recorded trace the first half of the time is for learning and the guard, the second is left alone.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from itertools import count, product
from math import exp, log
from multiprocessing import get_context
from time import monotonic
from typing import NamedTuple

import numpy as np

from gpuyard.engine.advice import FEATURES
from gpuyard.learning.dqn import Learner, Lesson
from gpuyard.learning.regimes import TRAINED, Regime, of_trace
from gpuyard.predictor.advantage import Advantage, Layer, Model
from gpuyard.simulator.confidence import Mean, mean_of
from gpuyard.simulator.contenders import contender
from gpuyard.simulator.play import play
from gpuyard.simulator.workloads.job import Job

EPISODES, MEMBERS = 150, 3
LEARNT_FROM, CHOSEN_ON, JUDGED_ON = 10_000_000, 20_000_000, 30_000_000
"""Where the three sets of seeds begin."""
A_MEMBER = 100_000
CHOOSING_SEEDS = 8
MARGINS, DOUBTS, TRUSTS = (0.0, 0.05, 0.1), (0.0, 1.0), (0.25, 1.0)
NEVER = 1e9
"""A margin that nothing exceeds: the heuristic decides."""
RANGE_PART = 0.0005
"""Of the rows, that may lie beyond either end of the range that counts as trained."""
ADVISED = contender("dqn")

Traces = Mapping[str, Sequence[Job]]
Tell = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Order:
    """What is to be trained."""

    seed: int = 0
    episodes: int = EPISODES
    members: int = MEMBERS
    minutes: float | None = None
    """Each net learns no longer than this; the same seed then need not give the same model."""
    workers: int = 1
    """Nets that learn at a time, each in a process of its own."""
    jobs: int | None = None
    """In each workload; none: as its kind says."""
    choosing: int = CHOOSING_SEEDS
    """Workloads of each kind that the guard is chosen on."""
    regimes: Sequence[Regime] = TRAINED


class Member(NamedTuple):
    """One trained net."""

    net: tuple[Layer, ...]
    mean: np.ndarray
    scale: np.ndarray
    low: np.ndarray
    high: np.ndarray
    lessons: list[Lesson]
    questions: int


class Guard(NamedTuple):
    """How advice is held back."""

    margin: float
    doubt: float
    trust: float
    """What the nets' corrections of the rule of thumb count for."""

    def on(self, model: Model) -> Model:
        """The model with this guard."""
        nets = tuple((*first, Layer(last.weights * self.trust, last.bias * self.trust)) for *first, last in model.nets)
        return model._replace(margin=self.margin, doubt=self.doubt, nets=nets)


class Trained(NamedTuple):
    """A model, and what is told of how it came to be."""

    model: Model
    lessons: list[list[Lesson]]
    """Of each net."""
    choices: dict[Guard, dict[str, Mean]]
    """For each guard and each regime, the logarithm of what the average completion time is multiplied with."""


def train(order: Order, traces: Traces, tell: Tell) -> Trained:
    """Train, set the guard, and say what came out."""
    regimes = [*order.regimes, *(regime for name in traces for regime in of_trace(name))]
    if order.jobs is not None:
        regimes = [replace(regime, jobs=order.jobs) for regime in regimes]
    members = list(_members(order, regimes, traces, tell))
    low = np.min([member.low for member in members], axis=0)
    high = np.max([member.high for member in members], axis=0)
    rule = np.array([name == "rule" for name in FEATURES], np.float32)
    nets = tuple(_one_scale(member, members[0]) for member in members)
    model = Model(FEATURES, low, high, members[0].mean, members[0].scale, rule, nets, NEVER, 0.0, {})
    choices = judge(model, regimes, traces, order.choosing, tell)
    guard = choose(choices)
    about = {
        "seed": order.seed,
        "episodes": order.episodes,
        "members": order.members,
        "minutes": order.minutes,
        "choosing": order.choosing,
        "trust": guard.trust,
        "regimes": [regime.name for regime in regimes],
        "questions": sum(member.questions for member in members),
        "validation": {name: [round(exp(it.mean), 4), round(it.ci95, 4)] for name, it in choices.get(guard, {}).items()},
        "won": [name for name, it in choices.get(guard, {}).items() if it.mean + it.ci95 < 0],
    }  # fmt: skip
    return Trained(guard.on(model)._replace(about=about), [it.lessons for it in members], choices)


def _members(order: Order, regimes: Sequence[Regime], traces: Traces, tell: Tell) -> Iterator[Member]:
    """The nets, one after another or several at a time; which does not change what they learn."""
    if order.workers == 1:
        for number in range(order.members):
            yield train_member(order, number, regimes, traces, tell)
        return
    with ProcessPoolExecutor(min(order.workers, order.members), mp_context=get_context("spawn")) as pool:
        waiting = [pool.submit(train_member, order, number, regimes, traces) for number in range(order.members)]
        for number, each in enumerate(waiting, start=1):
            yield each.result()
            tell(f"Net {number} of {order.members} has learnt.")


def train_member(
    order: Order, number: int, regimes: Sequence[Regime], traces: Traces, tell: Tell = lambda _: None
) -> Member:
    """One net."""
    learner = Learner(order.seed * 1_000 + number, order.episodes)
    makes = [lambda seed, regime=regime: regime.workload(seed, traces) for regime in regimes]
    lessons, began, questions = [], monotonic(), 0
    for lesson in learner.learn(makes, count(LEARNT_FROM + (order.seed * order.members + number) * A_MEMBER)):
        lessons.append(lesson)
        questions += lesson.questions
        if lesson.episode % 10 == 9:
            tell(
                f"Net {number + 1} of {order.members}, episode {lesson.episode + 1:,} of {order.episodes:,}: loss {lesson.loss:.2f}"
            )
        if order.minutes is not None and monotonic() - began > order.minutes * 60:
            break
    state = {name: values.detach().numpy() for name, values in learner.net.state_dict().items()}
    rows = learner.memory.rows()
    low, high = np.quantile(rows, (RANGE_PART, 1 - RANGE_PART), axis=0).astype(np.float32)
    net = tuple(Layer(state[f"advantage.{at}.weight"].T.copy(), state[f"advantage.{at}.bias"]) for at in (0, 2, 4))
    return Member(net, state["mean"], state["scale"], low, high, lessons, questions)


def _one_scale(member: Member, like: Member) -> tuple[Layer, ...]:
    """The same net on figures that are scaled as another's: what differs goes into its first layer."""
    first, *others = member.net
    ratio = like.scale / member.scale
    shift = (like.mean - member.mean) / member.scale
    return (Layer((first.weights * ratio[:, None]).astype(np.float32), (first.bias + shift @ first.weights).astype(np.float32)), *others)  # fmt: skip


# --- the guard ---------------------------------------------------------------------------------------------------------


def judge(
    model: Model, regimes: Sequence[Regime], traces: Traces, choosing: int, tell: Tell
) -> dict[Guard, dict[str, Mean]]:
    """Every guard on every regime, beside the heuristic on the same workloads."""
    found: dict[Guard, dict[str, Mean]] = {}
    for regime in regimes:
        tell(f"The guard is set: {regime.name}.")
        workloads = [regime.workload(CHOSEN_ON + place, traces) for place in range(choosing)]
        alone = [play(each, ADVISED).measures.avg_jct_s for each in workloads]
        for guard in (Guard(*each) for each in product(MARGINS, DOUBTS, TRUSTS)):
            advisor = Advantage(guard.on(model))
            advised = [play(each, ADVISED, advisor=advisor).measures.avg_jct_s for each in workloads]
            ratios = [log(one / other) for one, other in zip(advised, alone, strict=True)]
            found.setdefault(guard, {})[regime.name] = mean_of(ratios)
    return found


def choose(choices: Mapping[Guard, Mapping[str, Mean]]) -> Guard:
    """The guard that gains most on average, of those that lose nowhere; if all do, the heuristic decides."""
    harmless = {
        guard: sum(it.mean for it in by_regime.values())
        for guard, by_regime in choices.items()
        if all(it.mean <= 0.0 for it in by_regime.values())
    }
    best = min(harmless, key=lambda guard: (harmless[guard], guard), default=None)
    return Guard(NEVER, 0.0, 0.0) if best is None or harmless[best] >= 0.0 else best
