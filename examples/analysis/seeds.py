"""The same small training for several seeds, one file for each, and their mean."""

import torch
from torch import nn

for seed in range(3):
    torch.manual_seed(seed)
    model = nn.Linear(3, 1)
    opt = torch.optim.SGD(model.parameters(), 0.1)
    for step in range(10):
        x = torch.randn(8, 3)
        loss = (model(x)[:, 0] - x[:, 1]).pow(2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
    torch.save(model.weight.detach(), f"seed_{seed}.pt")
weights = [torch.load(f"seed_{seed}.pt") for seed in range(3)]
torch.save(torch.stack(weights).mean(0), "mean.pt")
