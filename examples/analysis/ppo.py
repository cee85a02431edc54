"""Clipped policy optimization: rollouts, advantages, several epochs over minibatches."""

import numpy as np
import torch
from torch import nn

torch.manual_seed(0)
rng = np.random.default_rng(0)
actor, critic = nn.Linear(4, 2), nn.Linear(4, 1)
opt = torch.optim.Adam([*actor.parameters(), *critic.parameters()], 1e-2)
history = []
for update in range(5):
    obs = torch.tensor(rng.normal(size=(32, 4)), dtype=torch.float32)
    with torch.no_grad():
        dist = torch.distributions.Categorical(logits=actor(obs))
        act = dist.sample()
        old = dist.log_prob(act)
        reward = (act == (obs[:, 0] > 0)).float()
        adv = reward - critic(obs)[:, 0]
    for epoch in range(2):
        for idx in torch.randperm(32).split(8):
            dist = torch.distributions.Categorical(logits=actor(obs[idx]))
            ratio = (dist.log_prob(act[idx]) - old[idx]).exp()
            clipped = torch.clamp(ratio, 0.8, 1.2) * adv[idx]
            loss = -torch.min(ratio * adv[idx], clipped).mean()
            loss = loss + (critic(obs[idx])[:, 0] - reward[idx]).pow(2).mean()
            opt.zero_grad()
            loss.backward()
            opt.step()
    history.append(reward.mean().item())
np.savetxt("history.csv", history)
torch.save(actor.state_dict(), "actor.pt")
