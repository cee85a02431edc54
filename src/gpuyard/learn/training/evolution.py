"""Direct policy search: an evolution strategy adjusts when a task waits for faster GPUs.

The policy is one sum: waiting is worth `rule + weights · figures + bias`, and every other candidate what the rule says. The
weights start at zero, which is the rule itself. Each generation draws a population of weights, simulates each of them on
the same new workloads, and ranks them by the average completion time relative to the rule on the same workload. CMA-ES
(Hansen and Ostermeier, "Completely Derandomized Self-Adaptation in Evolution Strategies", 2001; the library `cma`) moves
and reshapes the distribution from which the next generation is drawn.

There is no value function and no return to attribute to single answers, which is the difficulty of DQN here
(docs/decisions/0028-trained-advisor.md): what is optimized is what is reported. The price is that a generation needs
hundreds of simulations, and that the policy must have few parameters; Salimans et al., "Evolution Strategies as a Scalable
Alternative to Reinforcement Learning", 2017, and Mania et al., "Simple random search of static linear policies is
competitive for reinforcement learning", 2018, describe the trade.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import cma
import numpy as np
import numpy.typing as npt

from gpuyard.core.engine.scheduling.advice import FEATURES, Rows
from gpuyard.learn.policy_network import AdvantageAdvisor, Layer, PolicyModel
from gpuyard.learn.training.dqn import RuleOfThumb
from gpuyard.learn.training.regimes import Regime
from gpuyard.simulator.policy_variants import policy_variant
from gpuyard.simulator.run import simulate_policy
from gpuyard.simulator.workloads.job import Job

WAITS = FEATURES.index("waits")
SPREAD = 0.04
"""First standard deviation of a weight; the rule's threshold is three tenths."""
LARGEST = 1.0
"""A larger difference between two logarithms of completion times counts as this one: one bad workload must not decide."""
SHRINKS = 0.02
"""Cost of a sum of squared weights of 1, so that weights without an effect stay at zero."""
GATE = 100.0
"""More than any sum of weights and figures: closes the network for candidates that do not wait."""

Floats = npt.NDArray[np.float32]
AtOnce = Callable[[Callable[..., Any], Sequence[tuple[Any, ...]]], Iterator[Any]]
Traces = Mapping[str, Sequence[Job]]
ADVISED = policy_variant("dqn")


class Scaling(NamedTuple):
    """Mean, scale and range of the figures that the rule saw."""

    mean: Floats
    scale: Floats
    low: Floats
    high: Floats
    questions: int


class Generation(NamedTuple):
    """One generation of a search."""

    number: int
    mean: float
    """Mean over the population: logarithm of the completion time relative to the rule's."""
    best: float


class _Recorder(RuleOfThumb):
    """The rule, which keeps the figures of every question."""

    def __init__(self) -> None:
        self.seen: list[Floats] = []

    def pick(self, rows: Rows) -> int:
        self.seen.append(np.asarray(rows, np.float32))
        return super().pick(rows)


def rows_seen(regime: Regime, seed: int, traces: Traces) -> list[Floats]:
    """Return the figures of all questions of one workload under the rule."""
    recorder = _Recorder()
    simulate_policy(regime.workload(seed, traces), ADVISED, advisor=recorder)
    return recorder.seen


def linear_net(weights: Sequence[float] | npt.NDArray[Any], scaling: Scaling) -> tuple[Layer, ...]:
    """Return a network of two units that is `weights · figures + bias` for waiting, and 0 for every other candidate.

    The last weight is the bias. A unit that must not be negative stands for the positive part of the sum, another for
    the negative one; both are closed by the figure that says whether the candidate waits.
    """
    *by_figure, bias = (float(each) for each in weights)
    column = np.array(by_figure, np.float64)
    gate = np.zeros(len(FEATURES))
    gate[WAITS] = GATE * float(scaling.scale[WAITS])
    closed = -GATE * (1.0 - float(scaling.mean[WAITS]))
    first = np.stack([column + gate, gate - column], axis=1).astype(np.float32)
    biases = np.array([bias + closed, closed - bias], np.float32)
    return Layer(first, biases), Layer(np.array([[1.0], [-1.0]], np.float32), np.zeros(1, np.float32))


def average(model: PolicyModel | None, regime: Regime, seed: int, traces: Traces) -> float:
    """Return the average completion time of one workload, under a model without its guard or under the rule (None)."""
    advisor = RuleOfThumb() if model is None else AdvantageAdvisor(model, guarded=False)
    return simulate_policy(regime.workload(seed, traces), ADVISED, advisor=advisor).measures.avg_jct_s


def evolve(
    seed: int,
    base: PolicyModel,
    scaling: Scaling,
    regimes: Sequence[Regime],
    traces: Traces,
    sizes: tuple[int, int, int],
    first_workload: int,
    at_once: AtOnce,
) -> Iterator[tuple[Generation, tuple[Layer, ...]]]:
    """Yield each generation and the network at the center of the distribution after it.

    `sizes`: generations, population, and workloads of each regime in a generation.
    """
    generations, population, workloads = sizes
    options = {"seed": seed + 1, "popsize": population, "verbose": -9, "CMA_diagonal": True}
    search = cma.CMAEvolutionStrategy([0.0] * (len(FEATURES) + 1), SPREAD, options)
    for number in range(generations):
        seeds = range(first_workload + number * workloads, first_workload + (number + 1) * workloads)
        asked = search.ask()
        models = [None, *(base._replace(nets=(linear_net(each, scaling),)) for each in asked)]
        wanted = [
            (model, regime, at, traces if regime.trace else {})
            for model in models
            for regime in regimes
            for at in seeds
        ]
        times = np.array(list(at_once(average, wanted))).reshape(len(models), -1)
        ratios = np.clip(np.log(times[1:] / times[0]), -LARGEST, LARGEST).mean(axis=1)
        costs = ratios + SHRINKS * np.array([float(np.square(each).sum()) for each in asked])
        search.tell(asked, costs.tolist())
        yield Generation(number + 1, float(ratios.mean()), float(ratios.min())), linear_net(search.mean, scaling)


def scaling_of(found: Sequence[Floats], outside: float) -> Scaling:
    """Return mean, scale and range of these figures; `outside`: the share of rows beyond either end of the range."""
    rows = np.concatenate(found)
    low, high = np.quantile(rows, (outside, 1 - outside), axis=0).astype(np.float32)
    scale = np.maximum(rows.std(axis=0), 0.05).astype(np.float32)
    return Scaling(rows.mean(axis=0).astype(np.float32), scale, low, high, len(found))
