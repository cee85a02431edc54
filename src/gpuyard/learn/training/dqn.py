"""Deep Q-learning on a simulated cluster: episodes are run, stored in a replay buffer, and learned from.

Standard parts: a replay buffer that is sampled at random; a second network that follows slowly and estimates future
rewards, at the candidate that the first network would take there (double DQN); missing candidates are masked. Specific
parts:

- The time between questions differs, so future rewards are discounted by exp(−seconds / HORIZON): a semi-Markov
  decision process. The effect of an answer shows only when its task has run, many questions about other tasks later. A
  return is therefore the observed reward within `LOOKAHEAD` times the task's run; after that the network's own estimate
  is used.
- An average completion time depends on thousands of answers and on what others submit; one answer about one task
  changes it by a few hours. So episodes are run by a rule of thumb with occasional random answers, and rewards are
  shaped by the same workload run by the rule alone: the difference is the effect of those answers. The network learns
  the value of departing from the rule, and a policy that departs where the value is positive is better than the rule.
  The network does not influence the episodes, so they can be run on many cores in parallel.
- Exploration happens only where something is at stake. The uncertainty of a return depends on the other random answers
  at about the same time, and errors are weighted by it, so that the outcome of a task of days does not hide that of a
  task of minutes.
- Only few of the answers that follow the rule are stored: they say nothing about departing from it.
"""

from collections.abc import Callable, Iterator, Sequence
from math import exp, log1p
from random import Random
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from gpuyard.core.engine.scheduling.advice import FEATURES, Rows
from gpuyard.learn.training.environment import ClusterEnv
from gpuyard.learn.training.network import SECONDS_HERE, UNIT, Net, stakes
from gpuyard.simulator.workloads.arrival import Workload

HORIZON = 3 * 86_400.0
LOOKAHEAD, LEAST_LOOKAHEAD = 2.0, 1_800.0
"""A return has the observed rewards within this multiple of the task's run, at least this number of seconds."""
BATCH = 256
RATE, LAST_RATE = 3e-4, 1e-5
DECAY = 0.01
"""Weight decay, which pulls the network towards the rule."""
FOLLOWS = 0.002
"""Rate at which the second network follows the first, for each update."""
EXPLORES, AT_STAKE = 0.15, 600.0
"""Probability of a random answer, and the shortest run in seconds of the tasks for which it applies."""
NOISE, OWN_NOISE = 0.1, 2.0
"""Noise of a return: a constant in units, and a multiple of what is at stake."""
ONE_OF = 20
"""Of answers that follow the rule, one in ONE_OF is stored."""
PART = 0.8
"""Share of transitions each network learns from; the parts differ, so that networks differ where data is sparse."""
MOST_BEHIND = 3.0
RULE = FEATURES.index("rule")

WorkloadFactory = Callable[[int], Workload]
AnyArray = npt.NDArray[Any]


class RuleOfThumb:
    """Answers the questions in episodes; implements `gpuyard.core.engine.scheduling.advice.Advisor`."""

    def pick(self, rows: Rows) -> int:
        """Return the candidate with the highest rule value: the first, or waiting if that saves enough."""
        return max(range(len(rows)), key=lambda place: (rows[place][RULE], -place))


class EpisodeStep(NamedTuple):
    """A question, its answer, and the reward until the next question."""

    seen: AnyArray
    mask: AnyArray
    action: int
    departs: bool
    reward: float
    seconds: float
    behind: float
    """Difference in waiting tasks to the reference; see `gpuyard.learn.training.environment`."""


class Transition(NamedTuple):
    """A stored step: a question, its answer, the reward within its lookahead, and the question after that."""

    seen: AnyArray
    mask: AnyArray
    action: int
    reward: float
    """In units of `network.UNIT`."""
    discount: float
    """Discount of the next question's value; 0 if the episode ended."""
    after: AnyArray
    after_mask: AnyArray
    behind: float
    after_behind: float
    noise: float


# --- episodes ----------------------------------------------------------------------------------------------------------


def transitions(make: WorkloadFactory, seed: int) -> tuple[list[Transition], int]:
    """Run one episode; return its stored transitions and its number of questions."""
    steps = run_episode(make, seed)
    return _remembered(steps), len(steps)


def run_episode(make: WorkloadFactory, seed: int) -> list[EpisodeStep]:
    """Run one episode by the rule, with random answers where something is at stake."""
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
    """Return the uncertainty of each return in units, from all random answers around it."""
    at_stake = stakes(torch.from_numpy(np.stack([step.seen[0] for step in steps]))).numpy().astype(np.float64)
    squares = np.where([step.departs for step in steps], at_stake**2, 0.0)
    until = np.concatenate([[0.0], np.cumsum(squares)])
    first, last = np.searchsorted(times, times - spans), np.searchsorted(times, times + spans, side="right")
    around = np.maximum(0.0, until[last] - until[first] - squares)
    noise: AnyArray = np.sqrt((NOISE + OWN_NOISE * at_stake) ** 2 + around)
    return noise


# --- learning ----------------------------------------------------------------------------------------------------------


class ReplayBuffer:
    """The stored transitions of all episodes."""

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
        """Return a random batch, with a tensor for each field of a transition."""
        at = draw.choice(among, BATCH)
        return [torch.from_numpy(column[at]) for column in self._columns]

    def rows(self) -> AnyArray:
        """Return the rows of all candidates that were not masked."""
        seen: AnyArray = self._columns[0][self._columns[1]]
        return seen


class Learner:
    """A network with its training state; `slow` is the second one, an average over many updates, to be exported."""

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

    def learn(self, training_steps: int) -> Iterator[float]:
        """Train for this number of updates and yield the loss of each."""
        for lesson in range(training_steps):
            for group in self._optimizer.param_groups:
                group["lr"] = RATE * (LAST_RATE / RATE) ** (lesson / training_steps)
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
