"""The net of the DQN: how good is each candidate of a question?

Double and dueling. The value of a state is that of doing what the reference does there, a rule of thumb that is among the
figures (waiting is good as far as it saves more than three tenths of the run), and the other stream says by how much another
candidate is better:

    Q(s, a) = V(first row) + S · (A(row of a) − A(row of what the rule does))

A begins as the rule itself, and the net learns by how much that is wrong. S is what is at stake: how long the first task is
thought to run where it would be placed, once for itself and once for all who wait for a GPU that it takes. So advantages are parts
of a run, and what is learnt on tasks of minutes holds for tasks of hours. All candidates go through the same small nets, one
row each, so there may be any number of tasks and GPUs. V is used in training only, so it may know how far the episode is from
the one that the rule played. A is what is served (gpuyard.learn.policy_network).
"""

from typing import cast

import torch
from torch import Tensor, nn

from gpuyard.core.engine.advice import FEATURES

WIDTH = 48
SECONDS_HERE = FEATURES.index("log_seconds_here")
GPUS, WAITING = FEATURES.index("log2_gpus"), FEATURES.index("log_tasks_waiting")
MOST_BEHIND, USUAL = 30.0, 0.1
RULE = FEATURES.index("rule")
LEAST_RUN, MOST_RUN = 300.0, 2 * 86_400.0
"""Between these the run of the first task is counted."""
UNIT = 86_400.0
"""Seconds that count as one in all that is learnt."""


class Net(nn.Module):
    """Both streams."""

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
        """Learn from some rows what figures are usual."""
        self.mean.copy_(rows.mean(dim=0))
        self.scale.copy_(rows.std(dim=0).clamp(min=0.05))

    def forward(self, candidates: Tensor, behind: Tensor) -> Tensor:
        """Q of every candidate, in units; of candidates that are not there too."""
        seen = (candidates - self.mean) / self.scale
        worth = self.advantage(seen)[..., 0] + candidates[..., RULE]
        value = self.value(torch.cat([seen[:, 0], behind[:, None]], dim=1))[:, 0] * USUAL
        usual = worth.gather(1, candidates[..., RULE].argmax(dim=1, keepdim=True))
        return cast("Tensor", value[:, None] + stakes(candidates[:, 0])[:, None] * (worth - usual))


def stakes(first: Tensor) -> Tensor:
    """S, in units: the run of the first task, for itself and for those who wait behind it."""
    run = torch.expm1(first[:, SECONDS_HERE]).clamp(LEAST_RUN, MOST_RUN) / UNIT
    gpus = torch.exp2(first[:, GPUS]) - 1.0
    return run * (1.0 + gpus * torch.expm1(first[:, WAITING])).clamp(max=MOST_BEHIND)


def _stack(inputs: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(inputs, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 1))
