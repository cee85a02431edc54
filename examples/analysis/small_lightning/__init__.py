"""A stand-in of a few lines with the API shape of a well-known library: modules with training steps, and a trainer."""

import torch


class LightningModule(torch.nn.Module):
    def log(self, name, value):
        self.trainer.logged.setdefault(name, []).append(float(value))


class Trainer:
    def __init__(self, max_epochs=1):
        self.max_epochs, self.logged = max_epochs, {}

    def fit(self, module, loader):
        module.trainer = self
        optimizer = module.configure_optimizers()
        for _ in range(self.max_epochs):
            for number, batch in enumerate(loader):
                loss = module.training_step(batch, number)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()

    def test(self, module, loader):
        module.trainer = self
        with torch.no_grad():
            for number, batch in enumerate(loader):
                module.test_step(batch, number)
