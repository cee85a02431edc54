"""Checkpoints are written by a training loop and judged afterwards, one report for each."""

import json

import torch
from torch import nn


def judge(path, target):
    model = nn.Linear(2, 1)
    model.load_state_dict(torch.load(path))
    x = torch.arange(20, dtype=torch.float32).reshape(10, 2) / 20
    with torch.no_grad():
        error = (model(x)[:, 0] - x.sum(1)).abs().mean().item()
    with open(target, "w") as file:
        json.dump(error, file)


torch.manual_seed(0)
model = nn.Linear(2, 1)
opt = torch.optim.SGD(model.parameters(), 0.1)
for step in range(30):
    x = torch.rand(8, 2)
    loss = (model(x)[:, 0] - x.sum(1)).pow(2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    if step % 10 == 9:
        torch.save(model.state_dict(), f"step_{step}.pt")
for step in [9, 19, 29]:
    judge(f"step_{step}.pt", f"report_{step}.json")
