"""The network of the DQN: the value of each candidate of a question.

Double and dueling. The value of a state is that of following the reference, a rule of thumb that is one of the features
(waiting is good as far as it saves more than three tenths of the run), and the other stream gives the advantage of
another candidate:

    Q(s, a) = V(first row) + S · (A(row of a) − A(row of the rule's choice))

A starts as the rule itself, and the network learns its error. S is what is at stake: the expected run of the first task
on its placement, for itself and for all tasks that wait for a GPU that it takes. So advantages are fractions of a run,
and what is learned on tasks of minutes holds for tasks of hours. All candidates go through the same small networks, one
row each, so any number of tasks and GPUs is possible. V is used in training only, so it may use the distance of the
episode from the one that the rule ran. A is exported (gpuyard.learn.policy_network).
"""

from typing import cast

import torch
from torch import Tensor, nn

from gpuyard.core.engine.scheduling.advice import FEATURES

WIDTH = 48
SECONDS_HERE = FEATURES.index("log_seconds_here")
GPUS, WAITING = FEATURES.index("log2_gpus"), FEATURES.index("log_tasks_waiting")
MOST_BEHIND, USUAL = 30.0, 0.1
RULE = FEATURES.index("rule")
LEAST_RUN, MOST_RUN = 300.0, 2 * 86_400.0
"""Limits to which the run of the first task is clamped."""
UNIT = 86_400.0
"""Seconds of one unit of reward and value."""


class Net(nn.Module):
    """Both streams: value and advantage."""

    mean: Tensor
    scale: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(len(FEATURES)))
        self.register_buffer("scale", torch.ones(len(FEATURES)))
        self.advantage = _stack(len(FEATURES))
        self.value = _stack(len(FEATURES) + 1)
        for stream in (self.advantage, self.value):
            nn.init.zeros_(cast("nn.Linear", stream[-1]).weight)
            nn.init.zeros_(cast("nn.Linear", stream[-1]).bias)

    def look_at(self, rows: Tensor) -> None:
        """Set the normalization of features from some rows."""
        self.mean.copy_(rows.mean(dim=0))
        self.scale.copy_(rows.std(dim=0).clamp(min=0.05))

    def forward(self, candidates: Tensor, behind: Tensor) -> Tensor:
        """Return Q of every candidate, in units, including masked candidates."""
        seen = (candidates - self.mean) / self.scale
        worth = self.advantage(seen)[..., 0] + candidates[..., RULE]
        value = self.value(torch.cat([seen[:, 0], behind[:, None]], dim=1))[:, 0] * USUAL
        usual = worth.gather(1, candidates[..., RULE].argmax(dim=1, keepdim=True))
        return cast("Tensor", value[:, None] + stakes(candidates[:, 0])[:, None] * (worth - usual))


def stakes(first: Tensor) -> Tensor:
    """Return S, in units: the run of the first task, for itself and for the tasks that wait behind it."""
    run = torch.expm1(first[:, SECONDS_HERE]).clamp(LEAST_RUN, MOST_RUN) / UNIT
    gpus = torch.exp2(first[:, GPUS]) - 1.0
    return run * (1.0 + gpus * torch.expm1(first[:, WAITING])).clamp(max=MOST_BEHIND)


def _stack(inputs: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(inputs, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 1))
