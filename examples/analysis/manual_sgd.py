"""A small network whose parameters are updated by hand."""

import torch
import torch.nn.functional as F

g = torch.Generator().manual_seed(7)
W1 = torch.randn((6, 8), generator=g)
b1 = torch.zeros(8)
W2 = torch.randn((8, 3), generator=g)
parameters = [W1, b1, W2]
for p in parameters:
    p.requires_grad = True
X = torch.randn((64, 6), generator=g)
Y = torch.randint(0, 3, (64,), generator=g)
lossi = []
for i in range(40):
    ix = torch.randint(0, 64, (16,), generator=g)
    h = torch.tanh(X[ix] @ W1 + b1)
    loss = F.cross_entropy(h @ W2, Y[ix])
    for p in parameters:
        p.grad = None
    loss.backward()
    lr = 0.1 if i < 30 else 0.01
    for p in parameters:
        p.data += -lr * p.grad
    lossi.append(loss.log10().item())
torch.save(parameters, "parameters.pt")
torch.save(torch.tensor(lossi), "losses.pt")
