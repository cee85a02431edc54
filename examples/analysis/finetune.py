"""A pretrained body is frozen, a new head is trained, then everything with a smaller rate."""

import torch
from torch import nn


def pretrain():
    torch.manual_seed(0)
    body = nn.Sequential(nn.Linear(6, 8), nn.ReLU())
    torch.save(body.state_dict(), "body.pt")


def fit(model, params, lr, steps):
    optimizer = torch.optim.SGD(params, lr)
    for _ in range(steps):
        x = torch.randn(16, 6)
        loss = (model(x)[:, 0] - x.sum(1)).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


pretrain()
body = nn.Sequential(nn.Linear(6, 8), nn.ReLU())
body.load_state_dict(torch.load("body.pt"))
for p in body.parameters():
    p.requires_grad = False
head = nn.Linear(8, 1)
model = nn.Sequential(body, head)
fit(model, head.parameters(), 0.05, 10)
torch.save(model.state_dict(), "head_only.pt")
for p in body.parameters():
    p.requires_grad = True
fit(model, model.parameters(), 0.005, 10)
torch.save(model.state_dict(), "all.pt")
