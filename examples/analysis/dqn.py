"""Deep Q-learning: a replay memory, an epsilon-greedy policy, a target network, episodes of a small walk."""

import json
import random
from collections import deque

import torch
from torch import nn


class Walk:
    def reset(self):
        self.at = 2
        return self.at

    def step(self, action):
        self.at += 1 if action else -1
        return self.at, float(self.at == 5), self.at in (0, 5)


random.seed(0)
torch.manual_seed(0)
env = Walk()
policy = nn.Embedding(6, 2)
target = nn.Embedding(6, 2)
target.load_state_dict(policy.state_dict())
optimizer = torch.optim.Adam(policy.parameters(), 0.05)
memory = deque(maxlen=200)
rewards = []
for episode in range(15):
    state, total, done = env.reset(), 0.0, False
    while not done:
        if random.random() < 0.3:
            action = random.randrange(2)
        else:
            action = policy(torch.tensor(state)).argmax().item()
        following, reward, done = env.step(action)
        memory.append((state, action, reward, following, done))
        state, total = following, total + reward
        if len(memory) >= 8:
            batch = random.sample(memory, 8)
            s, a, r, f, d = (torch.tensor(part) for part in zip(*batch))
            q = policy(s).gather(1, a[:, None])[:, 0]
            with torch.no_grad():
                goal = r + 0.9 * target(f).max(1).values * ~d
            loss = nn.functional.smooth_l1_loss(q, goal)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    rewards.append(total)
    if episode % 5 == 0:
        target.load_state_dict(policy.state_dict())
with open("rewards.json", "w") as file:
    json.dump(rewards, file)
torch.save(policy.state_dict(), "policy.pt")
