"""Least squares on paired runs: what is it worth to change a single answer about waiting?

Each workload is run twice: by the rule, and by the rule with a few answers turned round at random: a task that the rule
starts waits, or one that should wait starts. The two runs have the same jobs, so the difference of all completion times
within about twice the run of the task is the effect of the changed answer, plus noise from other changed answers nearby
(gpuyard.learn.training.environment: a run that follows the rule has a difference of exactly zero). A changed answer
should have been worth

    S · (rule + weights · figures + bias)        if the task waits instead of starting, the opposite if it starts

where S is what is at stake (gpuyard.learn.training.network). That is linear in the weights, so they are the solution of
a weighted ridge regression: no learning rate, no network, no target that moves. It is one step of policy iteration from the rule;
Lagoudakis and Parr, "Least-Squares Policy Iteration", 2003, describe the family. The distance of a run from the
reference (`behind`) predicts much of the noise and is part of the regression, but not of the policy. The noise differs by
orders of magnitude between a task of minutes in an idle cluster and one of days in a busy one; so the size of the errors
is fitted, too, and every answer counts by it (feasible generalized least squares). Outliers count linearly instead of
squared (Huber, 1964; by iterated weights).

Each network is fitted to another resample of the workloads (Efron's bootstrap), so their spread says how certain a
correction is. What is exported is the same sum for waiting as that of the evolution strategy (`linear_net`).
"""

from collections.abc import Mapping, Sequence
from math import log1p
from random import Random
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from gpuyard.core.engine.scheduling.advice import FEATURES, Rows
from gpuyard.learn.training.dqn import (
    AT_STAKE,
    EXPLORES,
    HORIZON,
    LEAST_LOOKAHEAD,
    LOOKAHEAD,
    MOST_BEHIND,
    NOISE,
    OWN_NOISE,
    RuleOfThumb,
)
from gpuyard.learn.training.environment import ReferenceRun, RewardMeter
from gpuyard.learn.training.evolution import Scaling
from gpuyard.learn.training.network import GPUS, LEAST_RUN, MOST_RUN, SECONDS_HERE, UNIT, WAITING
from gpuyard.learn.training.network import MOST_BEHIND as MOST_AT_STAKE
from gpuyard.learn.training.regimes import Regime
from gpuyard.simulator.policy_variants import policy_variant
from gpuyard.simulator.run import simulate_policy
from gpuyard.simulator.workloads.job import Job

WAITS, RULE = FEATURES.index("waits"), FEATURES.index("rule")
KEPT = 10
"""Of answers that follow the rule, one in KEPT is kept, to learn how far the noise depends on the distance of the runs."""
RIDGE = 100.0
"""Cost of a weight of 1, in squared units of the noise: before the first workload, weights are expected to be about a tenth."""
PASSES, ROUNDS, LARGE_ERROR, LARGEST_ERROR = 3, 8, 1.5, 3.0
"""Passes that fit the noise, iterations of the robust regression in each, and the errors from which they count linearly,
and not more, in units of the noise."""
DIGITS = 6
"""Weights are rounded, so that the order in which a processor adds up does not change the file."""
LEAST_BEHIND, LEAST_ERROR = 0.02, 1e-3
"""Added before logarithms are taken."""
ADVISED = policy_variant("dqn")

Floats = npt.NDArray[np.float64]
Traces = Mapping[str, Sequence[Job]]


class ChangedAnswers(NamedTuple):
    """Answers of one workload, most of them changed: one row each."""

    waiting: npt.NDArray[np.float32]
    """Figures of the candidate that waits."""
    turned: Floats
    """1 if the task waited although the rule starts it, -1 for the opposite, 0 if the answer is the rule's."""
    at_stake: Floats
    behind: Floats
    worth: Floats
    """Difference of completion times to the run under the rule, positive if less; in units of `network.UNIT`."""
    noise: Floats
    questions: int


class _Explorer:
    """Follows the rule, turns some answers round, and keeps what happened."""

    def __init__(self, reference: ReferenceRun, meter: RewardMeter, gpus: int, seed: int) -> None:
        self._rule, self._reference, self._meter, self._gpus = RuleOfThumb(), reference, meter, gpus
        self._draw = Random(f"changes/{seed}")  # noqa: S311
        self.rows: list[tuple[Sequence[float], Sequence[float]]] = []
        self.turned: list[float] = []
        self.behind: list[float] = []
        self.rewards: list[float] = []
        self.seconds: list[float] = []
        self.potentials: list[float] = []

    def pick(self, rows: Rows) -> int:
        reward, seconds = self._meter.settle()
        waiting = list(self._meter.waiting)
        self.note(reward, seconds, -self._reference.owed(waiting, self._meter.now))
        self.behind.append((len(waiting) - self._reference.waiting(self._meter.now)) / self._gpus)
        self.rows.append((rows[0], rows[-1]))
        usual, last = self._rule.pick(rows), len(rows) - 1
        matters = rows[last][WAITS] > 0 and rows[0][SECONDS_HERE] > log1p(AT_STAKE)
        if not matters or self._draw.random() >= EXPLORES:
            self.turned.append(0.0)
            return usual
        self.turned.append(-1.0 if usual == last else 1.0)
        return 0 if usual == last else last

    def note(self, reward: float, seconds: float, potential: float) -> None:
        """Keep what was charged since the last question, and what is owed from now on in the reference run."""
        self.rewards.append(reward)
        self.seconds.append(seconds)
        self.potentials.append(potential)


def changes(regime: Regime, seed: int, traces: Traces) -> ChangedAnswers | None:
    """Run one workload twice and return what the changed answers were worth; None if there was nothing to answer."""
    workload = regime.workload(seed, traces)
    before, meter = RewardMeter(HORIZON), RewardMeter(HORIZON)
    simulate_policy(workload, ADVISED, watch=before.watch)
    explorer = _Explorer(ReferenceRun(before.task_times, HORIZON), meter, workload.gpus, seed)
    simulate_policy(workload, ADVISED, advisor=explorer, watch=meter.watch)
    if not explorer.rows:
        return None
    explorer.note(*meter.settle(), 0.0)
    return _changes(explorer)


def _changes(explorer: _Explorer) -> ChangedAnswers:
    first, waiting = (np.array(rows, np.float32) for rows in zip(*explorer.rows, strict=True))
    turned = np.array(explorer.turned)
    times = np.cumsum(explorer.seconds)
    run = np.expm1(first[:, SECONDS_HERE].astype(np.float64))
    spans = np.clip(LOOKAHEAD * run, LEAST_LOOKAHEAD, HORIZON)
    gpus, behind_it = np.exp2(first[:, GPUS]) - 1.0, np.expm1(first[:, WAITING])
    at_stake = np.clip(run, LEAST_RUN, MOST_RUN) / UNIT * np.minimum(1.0 + gpus * behind_it, MOST_AT_STAKE)
    ahead = np.clip(np.searchsorted(times, times[:-1] + spans), np.arange(1, len(times)), len(times) - 1)
    owed = _owed(explorer)
    worth = (owed[:-1] - np.exp(-(times[ahead] - times[:-1]) / HORIZON) * owed[ahead]) / UNIT
    kept = (waiting[:, WAITS] > 0) & ((turned != 0) | (np.arange(len(turned)) % KEPT == 0))
    return ChangedAnswers(
        waiting[kept],
        turned[kept],
        at_stake[kept],
        np.clip(explorer.behind, -MOST_BEHIND, MOST_BEHIND)[kept],
        worth[kept],
        _noise(turned, at_stake, times[:-1], spans)[kept],
        len(turned),
    )


def _owed(explorer: _Explorer) -> Floats:
    """Return for each question the discounted difference to the reference run from then on; 0 at the end."""
    owed = np.zeros(len(explorer.rewards))
    discounts = np.exp(-np.array(explorer.seconds) / HORIZON)
    for place in reversed(range(len(owed) - 1)):
        reward = explorer.rewards[place + 1] + discounts[place + 1] * explorer.potentials[place + 1]
        owed[place] = reward - explorer.potentials[place] + discounts[place + 1] * owed[place + 1]
    return owed


def _noise(turned: Floats, at_stake: Floats, times: Floats, spans: Floats) -> Floats:
    """Return the uncertainty of each difference, from all other changed answers around it."""
    squares = np.where(turned != 0, at_stake**2, 0.0)
    until = np.concatenate([[0.0], np.cumsum(squares)])
    first, last = np.searchsorted(times, times - spans), np.searchsorted(times, times + spans, side="right")
    around = np.maximum(0.0, until[last] - until[first] - squares)
    noise: Floats = np.sqrt((NOISE + OWN_NOISE * at_stake) ** 2 + around)
    return noise


def resampled(found: Sequence[ChangedAnswers], seed: int) -> list[ChangedAnswers]:
    """Return as many workloads, drawn with replacement."""
    return [found[place] for place in np.random.default_rng(seed).integers(len(found), size=len(found))]


def fitted(found: Sequence[ChangedAnswers], scaling: Scaling) -> tuple[Floats, float]:
    """Return the weights of the figures with the bias as the last one, and the mean error in units of the noise."""
    waiting, turned, at_stake, behind, worth, noise = (
        np.concatenate([each[place] for each in found]) for place in range(6)
    )
    seen = np.column_stack([(waiting - scaling.mean) / scaling.scale, np.ones(len(turned))]).astype(np.float64)
    by_change = (turned * at_stake)[:, None] * seen
    inputs = np.column_stack([by_change, seen, behind[:, None] * seen, behind * at_stake])
    wanted = worth - turned * at_stake * waiting[:, RULE]
    penalty = np.diag(np.repeat([RIDGE, 1.0], [seen.shape[1], inputs.shape[1] - seen.shape[1]]))
    sizes = np.column_stack([seen, np.log(at_stake), np.log(noise), np.log(np.abs(behind) + LEAST_BEHIND)])
    for _ in range(PASSES):
        solved = _robust(inputs / noise[:, None], wanted / noise, penalty)
        errors: Floats = np.abs(wanted - inputs @ solved)
        noise = _size_of(errors, sizes)
    return solved[: seen.shape[1]].round(DIGITS), float((errors / noise)[turned != 0].mean())


def _robust(inputs: Floats, wanted: Floats, penalty: Floats) -> Floats:
    """Return the solution of a ridge regression in which large errors count linearly."""
    counts = np.ones(len(wanted))
    for _ in range(ROUNDS):
        weighted = inputs * counts[:, None]
        solved: npt.NDArray[Any] = np.linalg.solve(weighted.T @ inputs + penalty, weighted.T @ wanted)
        counts = LARGE_ERROR / np.maximum(np.abs(wanted - inputs @ solved), LARGE_ERROR)
    return solved


def _size_of(errors: Floats, sizes: Floats) -> Floats:
    """Return the expected size of each error, so that their mean square is 1 in its units."""
    solved, *_ = np.linalg.lstsq(sizes, np.log(errors + LEAST_ERROR), rcond=None)
    expected: Floats = np.exp(sizes @ solved)
    limited = np.minimum(errors / expected, LARGEST_ERROR * np.median(errors / expected) / 0.674)
    return expected * float(np.sqrt(np.mean(np.square(limited))))
