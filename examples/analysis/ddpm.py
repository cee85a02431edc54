"""Diffusion: noise is added by a schedule, a network predicts it, an average of the weights is kept, samples are drawn."""

import copy

import torch
from torch import nn

torch.manual_seed(0)
T = 20
betas = torch.linspace(1e-4, 0.02, T)
alphas = torch.cumprod(1 - betas, 0)
net = nn.Sequential(nn.Linear(3, 16), nn.SiLU(), nn.Linear(16, 2))
ema = copy.deepcopy(net)
opt = torch.optim.Adam(net.parameters(), lr=1e-3)
points = torch.randn(128, 2) * 0.1 + 1
for step in range(25):
    x0 = points[torch.randint(0, 128, (16,))]
    t = torch.randint(0, T, (16,))
    noise = torch.randn_like(x0)
    a = alphas[t][:, None]
    xt = a.sqrt() * x0 + (1 - a).sqrt() * noise
    pred = net(torch.cat([xt, t[:, None] / T], 1))
    loss = (pred - noise).pow(2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    with torch.no_grad():
        for p, q in zip(net.parameters(), ema.parameters()):
            q.lerp_(p, 0.1)
x = torch.randn(8, 2)
with torch.no_grad():
    for t in reversed(range(T)):
        eps = ema(torch.cat([x, torch.full((8, 1), t / T)], 1))
        x = (x - betas[t] / (1 - alphas[t]).sqrt() * eps) / (1 - betas[t]).sqrt()
torch.save(x, "samples.pt")
torch.save(ema.state_dict(), "ema.pt")
