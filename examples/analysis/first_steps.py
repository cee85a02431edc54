"""The shortest training loop: a linear layer, inline steps, checkpoints, the weights at the end."""

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(4, 4)
opt = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(30):
    x = torch.randn(8, 4)
    loss = model(x).square().mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    if step % 10 == 0:
        torch.save(model.state_dict(), f"ck_{step}.pt")
torch.save(model.state_dict(), "final.pt")
