"""Two networks with an optimizer each, trained in turns."""

import torch
from torch import nn

torch.manual_seed(0)
G = nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 1))
D = nn.Sequential(nn.Linear(1, 8), nn.ReLU(), nn.Linear(8, 1))
opt_g = torch.optim.Adam(G.parameters(), 1e-2)
opt_d = torch.optim.Adam(D.parameters(), 1e-2)
bce = nn.BCEWithLogitsLoss()
for it in range(20):
    real = torch.randn(16, 1) * 0.5 + 2
    fake = G(torch.randn(16, 2))
    loss_d = bce(D(real), torch.ones(16, 1)) + bce(D(fake.detach()), torch.zeros(16, 1))
    opt_d.zero_grad()
    loss_d.backward()
    opt_d.step()
    loss_g = bce(D(fake), torch.ones(16, 1))
    opt_g.zero_grad()
    loss_g.backward()
    opt_g.step()
torch.save(G.state_dict(), "generator.pt")
torch.save(D.state_dict(), "discriminator.pt")
