"""Deep Q-learning in the yard: episodes are played, remembered, and learnt from.

What is usual: a memory from which steps are drawn at random; a second net that follows slowly and says what the future is
worth, at the candidate that the first net would take there (double DQN); candidates that are not there are masked. What is
particular:

- Time between questions differs, so the future counts exp(−seconds / HORIZON): a semi-Markov decision process. What an answer
  was worth shows only when its task has run, many questions about other tasks later, so a return is what really followed within
  `LOOKAHEAD` times its run; after that the net's own opinion counts.
- An average completion time is made by thousands of answers and by what others submit; one answer about one task is worth a few
  hours of it. So episodes are played by a rule of thumb, with another answer here and there by chance, and rewards are
  shaped by the same workload played by the rule alone: what is left is what those answers changed. What is learnt is
  the worth of departing from the rule, and whoever departs where it is above zero is better than the rule. Since the net has
  no say in the episodes, they can be played on many cores at once.
- Only where something is at stake is anything left to chance, and how much a return says depends on what else was left to chance
  at about the same time: errors count in units of that, so that what came of a task of minutes is not read out of what
  came of a task of days.
- Of answers that do as the rule does few are remembered: they say nothing about departing from it.
"""

from collections.abc import Callable, Iterator, Sequence
from math import exp, log1p
from random import Random
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from gpuyard.core.engine.advice import FEATURES, Rows
from gpuyard.learn.training.environment import ClusterEnv
from gpuyard.learn.training.network import SECONDS_HERE, UNIT, Net, stakes
from gpuyard.simulator.workloads.arrival import Workload

HORIZON = 3 * 86_400.0
LOOKAHEAD, LEAST_LOOKAHEAD = 2.0, 1_800.0
"""What really followed within so many times the run of the task, and so many seconds at least, is what a return is made of."""
BATCH = 256
RATE, LAST_RATE = 3e-4, 1e-5
DECAY = 0.01
"""What pulls weights towards nothing, and so the net towards the rule."""
FOLLOWS = 0.002
"""How far the second net comes nearer with each lesson."""
EXPLORES, AT_STAKE = 0.15, 600.0
"""How many answers are left to chance, of those about tasks that run for so many seconds at least."""
NOISE, OWN_NOISE = 0.1, 2.0
"""By how many units returns differ anyway, and by how many times what is at stake."""
ONE_OF = 20
"""Answers as the rule's, of which one is remembered."""
PART = 0.8
"""Of what is remembered, that each net learns from: another part for each, so that they differ where little is known."""
MOST_BEHIND = 3.0
RULE = FEATURES.index("rule")

WorkloadFactory = Callable[[int], Workload]
AnyArray = npt.NDArray[Any]


class RuleOfThumb:
    """Who plays the episodes: see gpuyard.core.engine.advice.Advisor."""

    def pick(self, rows: Rows) -> int:
        """The first, or to wait if that saves enough."""
        return max(range(len(rows)), key=lambda place: (rows[place][RULE], -place))


class EpisodeStep(NamedTuple):
    """A question, its answer, and what came of it until the next."""

    seen: AnyArray
    mask: AnyArray
    action: int
    departs: bool
    reward: float
    seconds: float
    behind: float
    """See gpuyard.learn.training.environment."""


class Transition(NamedTuple):
    """What is remembered: a question, its answer, all that followed within its time, and the question after that."""

    seen: AnyArray
    mask: AnyArray
    action: int
    reward: float
    """In units."""
    discount: float
    """Of the question after; 0: the episode ended."""
    after: AnyArray
    after_mask: AnyArray
    behind: float
    after_behind: float
    noise: float


# --- episodes ----------------------------------------------------------------------------------------------------------


def transitions(make: WorkloadFactory, seed: int) -> tuple[list[Transition], int]:
    """Play one episode: what is remembered of it, and how many questions it had."""
    steps = play_episode(make, seed)
    return _remembered(steps), len(steps)


def play_episode(make: WorkloadFactory, seed: int) -> list[EpisodeStep]:
    """By the rule, with something left to chance."""
    rule, draw = RuleOfThumb(), Random(f"episode/{seed}")  # noqa: S311
    env = ClusterEnv(make, horizon=HORIZON, reference=rule)
    seen, info = env.reset(seed=seed)
    steps: list[EpisodeStep] = []
    over = not seen["mask"].any()
    while not over:
        there, potential, behind = int(seen["mask"].sum()), info["potential"], info["behind"]
        usual = rule.pick(seen["candidates"][:there])  # type: ignore[arg-type] # an array is rows, too
        matters = seen["candidates"][0, SECONDS_HERE] > log1p(AT_STAKE)
        action = draw.randrange(there) if matters and draw.random() < EXPLORES else usual
        after, reward, over, _, info = env.step(action)
        shaped = float(reward) + exp(-info["seconds"] / HORIZON) * info["potential"] - potential
        far = max(-MOST_BEHIND, min(MOST_BEHIND, behind))
        mask = seen["mask"].astype(bool)
        steps.append(EpisodeStep(seen["candidates"], mask, action, action != usual, shaped, info["seconds"], far))
        seen = after
    env.close()
    return steps


def _remembered(steps: Sequence[EpisodeStep]) -> list[Transition]:
    if not steps:
        return []
    times = np.cumsum([0.0, *(step.seconds for step in steps)])
    spans = np.clip(LOOKAHEAD * np.expm1([step.seen[0, SECONDS_HERE] for step in steps]), LEAST_LOOKAHEAD, HORIZON)
    noise = _noise(steps, times[:-1], spans)
    owed = [0.0] * (len(steps) + 1)
    for place in reversed(range(len(steps))):
        owed[place] = steps[place].reward + exp(-steps[place].seconds / HORIZON) * owed[place + 1]
    found = []
    for place, step in enumerate(steps):
        if not step.departs and place % ONE_OF:
            continue
        ahead = min(len(steps), max(place + 1, int(np.searchsorted(times, times[place] + spans[place]))))
        discount = exp(-(times[ahead] - times[place]) / HORIZON)
        reward = (owed[place] - discount * owed[ahead]) / UNIT
        after = steps[min(ahead, len(steps) - 1)]
        counts = discount if ahead < len(steps) else 0.0
        found.append(Transition(step.seen, step.mask, step.action, reward, counts, after.seen, after.mask, step.behind, after.behind, noise[place]))  # fmt: skip
    return found


def _noise(steps: Sequence[EpisodeStep], times: AnyArray, spans: AnyArray) -> AnyArray:
    """By how many units each return of an episode is uncertain: for all that was left to chance around it."""
    at_stake = stakes(torch.from_numpy(np.stack([step.seen[0] for step in steps]))).numpy().astype(np.float64)
    squares = np.where([step.departs for step in steps], at_stake**2, 0.0)
    until = np.concatenate([[0.0], np.cumsum(squares)])
    first, last = np.searchsorted(times, times - spans), np.searchsorted(times, times + spans, side="right")
    around = np.maximum(0.0, until[last] - until[first] - squares)
    noise: AnyArray = np.sqrt((NOISE + OWN_NOISE * at_stake) ** 2 + around)
    return noise


# --- learning ----------------------------------------------------------------------------------------------------------


class ReplayBuffer:
    """All that is remembered of all episodes."""

    def __init__(self, found: Sequence[Transition]) -> None:
        columns = zip(*found, strict=True)
        kinds = (
            np.float32,
            bool,
            np.int64,
            np.float32,
            np.float32,
            np.float32,
            bool,
            np.float32,
            np.float32,
            np.float32,
        )
        self._columns = [np.array(column, kind) for column, kind in zip(columns, kinds, strict=True)]
        self.count = len(found)

    def sample(self, among: AnyArray, draw: np.random.Generator) -> list[torch.Tensor]:
        """A batch, a tensor for each field of a transition."""
        at = draw.choice(among, BATCH)
        return [torch.from_numpy(column[at]) for column in self._columns]

    def rows(self) -> AnyArray:
        """Every row of every candidate that was there."""
        seen: AnyArray = self._columns[0][self._columns[1]]
        return seen


class Learner:
    """One net and all that it needs to learn; `slow` is the second one, a mean over many lessons, and the one to be used."""

    def __init__(self, seed: int, memory: ReplayBuffer) -> None:
        torch.set_num_threads(1)
        torch.manual_seed(seed)
        self._memory = memory
        self._draw = np.random.default_rng(seed)
        self._among = self._draw.choice(memory.count, max(1, int(PART * memory.count)), replace=False)
        self.net, self.slow = Net(), Net()
        self.net.look_at(torch.from_numpy(memory.rows()))
        self.slow.load_state_dict(self.net.state_dict())
        self._optimizer = torch.optim.AdamW(self.net.parameters(), RATE, weight_decay=DECAY)

    def learn(self, lessons: int) -> Iterator[float]:
        """Lesson after lesson, each with its loss."""
        for lesson in range(lessons):
            for group in self._optimizer.param_groups:
                group["lr"] = RATE * (LAST_RATE / RATE) ** (lesson / lessons)
            yield self._lesson()

    def _lesson(self) -> float:
        batch = self._memory.sample(self._among, self._draw)
        seen, _, action, reward, discount, after, mask, behind, after_behind, noise = batch
        with torch.no_grad():
            best = self.net(after, after_behind).masked_fill(~mask, -torch.inf).argmax(dim=1, keepdim=True)
            worth = self.slow(after, after_behind).gather(1, best)[:, 0]
            wanted = reward + discount * torch.where(discount > 0, worth, 0.0)
        thought = self.net(seen, behind).gather(1, action[:, None])[:, 0]
        loss = torch.nn.functional.smooth_l1_loss((thought - wanted) / noise, torch.zeros(BATCH))
        self._optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(self.net.parameters(), 10.0)
        self._optimizer.step()
        with torch.no_grad():
            for slow, fast in zip(self.slow.parameters(), self.net.parameters(), strict=True):
                slow.lerp_(fast, FOLLOWS)
        return loss.item()
