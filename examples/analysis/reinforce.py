"""Policy gradients: an episode is played, its returns weigh the log-probabilities."""

import torch
from torch import nn
from torch.distributions import Categorical

torch.manual_seed(0)
policy = nn.Linear(3, 2)
optimizer = torch.optim.Adam(policy.parameters(), lr=0.05)


def play():
    log_probs, rewards, state = [], [], torch.zeros(3)
    for t in range(6):
        choice = Categorical(logits=policy(state))
        action = choice.sample()
        log_probs.append(choice.log_prob(action))
        rewards.append(1.0 if action.item() == t % 2 else 0.0)
        state = torch.tensor([t / 6, float(action), 1.0])
    return log_probs, rewards


def finish(log_probs, rewards):
    returns, R = [], 0.0
    for r in reversed(rewards):
        R = r + 0.95 * R
        returns.insert(0, R)
    loss = -(torch.stack(log_probs) * torch.tensor(returns)).sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


running = 0.0
for episode in range(20):
    log_probs, rewards = play()
    running = 0.1 * sum(rewards) + 0.9 * running
    finish(log_probs, rewards)
torch.save({"policy": policy.state_dict(), "running": running}, "policy.pt")
