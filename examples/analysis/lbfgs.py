"""An optimizer that calls a closure."""

import torch

torch.manual_seed(0)
x = torch.linspace(-1, 1, 32)
y = 2 * x + 0.5
w = torch.zeros(2, requires_grad=True)
optimizer = torch.optim.LBFGS([w], max_iter=5)


def closure():
    optimizer.zero_grad()
    loss = ((w[0] * x + w[1] - y) ** 2).mean()
    loss.backward()
    return loss


for step in range(3):
    optimizer.step(closure)
torch.save(w.detach(), "w.pt")
