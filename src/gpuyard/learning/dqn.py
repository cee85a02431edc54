"""Deep Q-learning in the yard: episodes are played, remembered, and learnt from.

What is usual: a memory from which steps are drawn at random; a second net that follows slowly and says what the future is
worth, at the candidate that the first net would take there (double DQN). What is
particular: time between questions differs, so the future counts exp(−seconds / HORIZON) (a semi-Markov decision process);
what a wait was worth shows only hours and many questions about other tasks later, so a return is what really followed within
`LOOKAHEAD`; candidates that are not there are masked; rewards are shaped with what the same workload would owe from there on without advice,
so that what others submit later does not drown what the answer was worth; and some of the episodes are played by a rule written by hand, another with each episode, and some by the
heuristic, each with little that is left to chance: what follows an answer is then mostly due to it, and not to all the others.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import exp
from random import Random
from typing import NamedTuple

import numpy as np
import torch

from gpuyard.engine.advice import FEATURES
from gpuyard.learning.environment import MOST, YardEnv
from gpuyard.learning.network import HIDDEN, UNIT, Net
from gpuyard.simulator.workloads.arrival import Workload

HORIZON = 3 * 86_400.0
LOOKAHEAD = 12 * 3_600.0
"""Seconds of what really followed that a return is made of; what comes later is the net's own opinion."""
NEVER = 2.0
"""Of a run, that no wait can save."""
MEMORY = 120_000
BATCH = 256
STEPS_A_LESSON = 4
"""Questions for each time something is learnt."""
RATE, LAST_RATE = 1e-3, 1e-4
FOLLOWS = 0.005
"""How far the second net comes nearer with each lesson."""
EXPLORES, LAST_EXPLORES = 0.08, 0.02
BY_RULE, ALONE = 1 / 3, 1 / 4
"""Which part of the episodes are played by a rule, and by the heuristic."""
WARM_UP = 3
"""Episodes before anything is learnt."""
WAITS, SAVED = FEATURES.index("waits"), FEATURES.index("saved")

Make = Callable[[int], Workload]


class Lesson(NamedTuple):
    """What is told of an episode."""

    episode: int
    ratio: float
    """Average completion time, over that without advice."""
    loss: float
    by_rule: bool
    questions: int


class Memory:
    """The last steps, one ring; of each the state, and what followed within a few questions."""

    def __init__(self) -> None:
        self._seen = np.zeros((MEMORY, MOST, len(FEATURES)), np.float32)
        self._mask = np.zeros((MEMORY, MOST), bool)
        self._action = np.zeros(MEMORY, np.int64)
        self._reward = np.zeros(MEMORY, np.float32)
        self._next = np.zeros(MEMORY, np.int64)
        self._discount = np.zeros(MEMORY, np.float32)
        """0 where the episode ended."""
        self._gpus = np.zeros(MEMORY, np.float32)
        self._hidden = np.zeros((MEMORY, HIDDEN), np.float32)
        self.count = 0
        self._at = 0

    def add(self, episode: Sequence["Step"], gpus: int) -> None:
        """All steps of an episode, in order."""
        times = np.cumsum([0.0, *(step.seconds for step in episode)])
        owed = [0.0] * (len(episode) + 1)
        for place in reversed(range(len(episode))):
            owed[place] = episode[place].reward + exp(-episode[place].seconds / HORIZON) * owed[place + 1]
        for place, step in enumerate(episode):
            ahead = min(len(episode), max(place + 1, int(np.searchsorted(times, times[place] + LOOKAHEAD))))
            discount = exp(-(times[ahead] - times[place]) / HORIZON)
            reward = owed[place] - discount * owed[ahead]
            at = self._at
            self._seen[at], self._mask[at], self._action[at] = step.seen, step.mask, step.action
            self._reward[at], self._gpus[at], self._hidden[at] = reward, gpus, step.hidden
            self._next[at] = (at + ahead - place) % MEMORY
            self._discount[at] = discount if ahead < len(episode) else 0.0
            self._at = (at + 1) % MEMORY
            self.count = min(self.count + 1, MEMORY)

    def sample(self, draw: np.random.Generator) -> tuple[torch.Tensor, ...]:
        """A batch: states, actions, returns, discounts, and the states after, with their masks."""
        at = draw.integers(self.count, size=BATCH)
        after = self._next[at]
        found = (
            self._seen[at],
            self._action[at],
            self._reward[at],
            self._discount[at],
            self._seen[after],
            self._mask[after],
            self._gpus[at],
            self._hidden[at],
            self._hidden[after],
        )
        return tuple(torch.from_numpy(each) for each in found)

    def rows(self) -> np.ndarray:
        """Every row of every candidate that was there."""
        seen: np.ndarray = self._seen[: self.count][self._mask[: self.count]]
        return seen


class Step(NamedTuple):
    """A question, its answer, and what came of it until the next."""

    seen: np.ndarray
    mask: np.ndarray
    action: int
    reward: float
    seconds: float
    hidden: tuple[float, float, float, float]
    """By a rule or not, by which, how much by chance, and how far behind the same workload without advice."""


@dataclass(slots=True)
class _Behaviour:
    """Who answers in an episode: the net, or the rule that waits whenever it would save this part of the run; and chance."""

    net: Net
    rule: float | None
    explores: float
    draw: Random

    def answer(self, seen: np.ndarray, mask: np.ndarray) -> int:
        there = int(mask.sum())
        if self.draw.random() < self.explores:
            return self.draw.randrange(there)
        if self.rule is not None:
            waits = bool(seen[there - 1, WAITS]) and seen[0, SAVED] > self.rule
            return there - 1 if waits else 0
        with torch.no_grad():
            worth = self.net(torch.from_numpy(seen[None, :there]), torch.ones(1), torch.zeros(1, HIDDEN))[0]
        return int(worth.argmax())


class Learner:
    """One net and all that it needs to learn."""

    def __init__(self, seed: int, episodes: int) -> None:
        torch.set_num_threads(1)
        torch.manual_seed(seed)
        self.net, self._target = Net(), Net()
        self._optimiser = torch.optim.Adam(self.net.parameters(), RATE)
        self.memory = Memory()
        self._draw = Random(f"policy/{seed}")  # noqa: S311
        self._batches = np.random.default_rng(seed)
        self._episodes = episodes

    def learn(self, makes: Sequence[Make], seeds: Iterator[int]) -> Iterator[Lesson]:
        """Episode after episode, each kind of workload in turn."""
        for episode in range(self._episodes):
            done = episode / max(1, self._episodes - 1)
            explores = EXPLORES + (LAST_EXPLORES - EXPLORES) * min(1.0, 2 * done)
            luck = self._draw.random()
            by_rule = episode < WARM_UP or luck < BY_RULE + ALONE
            rule = (self._draw.uniform(0.0, 0.6) if luck < BY_RULE else NEVER) if by_rule else None
            behaviour = _Behaviour(self.net, rule, explores, self._draw)
            steps, ratio, gpus = _play(makes[episode % len(makes)], next(seeds), behaviour)
            self.memory.add(steps, gpus)
            if episode == WARM_UP - 1:
                self.net.look_at(torch.from_numpy(self.memory.rows()))
                self._target.load_state_dict(self.net.state_dict())
            loss = 0.0
            if episode >= WARM_UP - 1:
                for group in self._optimiser.param_groups:
                    group["lr"] = RATE * (LAST_RATE / RATE) ** done
                lessons = max(1, len(steps) // STEPS_A_LESSON)
                for _ in range(lessons):
                    loss += self._lesson() / lessons
            yield Lesson(episode, ratio, loss, by_rule, len(steps))

    def _lesson(self) -> float:
        seen, action, reward, discount, after, mask, gpus, hidden, later = self.memory.sample(self._batches)
        with torch.no_grad():
            best = self.net(after, gpus, later).masked_fill(~mask, -torch.inf).argmax(dim=1, keepdim=True)
            worth = self._target(after, gpus, later).gather(1, best)[:, 0]
            wanted = reward / UNIT + discount * torch.where(discount > 0, worth, 0.0)
        thought = self.net(seen, gpus, hidden).gather(1, action[:, None])[:, 0]
        loss = torch.nn.functional.smooth_l1_loss((thought - wanted) / self.net.noise(seen, gpus), torch.zeros(BATCH))
        self._optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(self.net.parameters(), 10.0)
        self._optimiser.step()
        with torch.no_grad():
            for slow, fast in zip(self._target.parameters(), self.net.parameters(), strict=True):
                slow.lerp_(fast, FOLLOWS)
        return loss.item()


def _play(make: Make, seed: int, behaviour: _Behaviour) -> tuple[list[Step], float, int]:
    """One episode: its steps, its average completion time over that without advice, and the GPUs there were."""
    env = YardEnv(make, horizon=HORIZON)
    seen, info = env.reset(seed=seed)
    gpus, potential, behind = info["gpus"], info["potential"], info["behind"]
    by_rule, rule = behaviour.rule is not None, behaviour.rule or 0.0
    steps: list[Step] = []
    over = not seen["mask"].any()
    while not over:
        action = behaviour.answer(seen["candidates"], seen["mask"])
        after, reward, over, _, info = env.step(action)
        discount = exp(-info["seconds"] / HORIZON)
        hidden = (float(by_rule), rule, behaviour.explores, max(-3.0, min(3.0, behind)))
        shaped = float(reward) + discount * info["potential"] - potential
        steps.append(Step(seen["candidates"], seen["mask"].astype(bool), action, shaped, info["seconds"], hidden))
        potential, behind = info["potential"], info["behind"]
        seen = after
    env.close()
    return steps, info["avg_jct_s"] / info["unadvised_jct_s"] if steps else 1.0, gpus
