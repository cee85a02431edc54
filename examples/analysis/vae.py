"""A variational autoencoder in a class, with a function for each epoch."""

import torch
from torch import nn, optim
from torch.nn import functional as F


class VAE(nn.Module):
    def __init__(self):
        super().__init__()
        self.encode = nn.Linear(8, 4)
        self.decode = nn.Linear(2, 8)

    def forward(self, x):
        mu, logvar = self.encode(x).chunk(2, 1)
        z = mu + torch.exp(0.5 * logvar) * torch.randn_like(mu)
        return torch.sigmoid(self.decode(z)), mu, logvar


def loss_function(recon, x, mu, logvar):
    return F.binary_cross_entropy(recon, x) - 0.5 * torch.mean(1 + logvar - mu.pow(2) - logvar.exp())


def train(epoch):
    model.train()
    for batch in data.split(16):
        optimizer.zero_grad()
        recon, mu, logvar = model(batch)
        loss = loss_function(recon, batch, mu, logvar)
        loss.backward()
        optimizer.step()


def test(epoch):
    model.eval()
    with torch.no_grad():
        recon, mu, logvar = model(data[:8])
        torch.save(recon, f"reconstruction_{epoch}.pt")


torch.manual_seed(1)
data = torch.rand(64, 8)
model = VAE()
optimizer = optim.Adam(model.parameters(), lr=1e-2)
for epoch in range(1, 4):
    train(epoch)
    test(epoch)
    with torch.no_grad():
        torch.save(model.decode(torch.randn(4, 2)), f"sample_{epoch}.pt")
