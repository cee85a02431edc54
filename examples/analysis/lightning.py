"""A module with its training step, fitted and tested by a trainer."""

import json

import small_lightning as L
import torch


class Regression(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(3, 1)

    def training_step(self, batch, number):
        x, y = batch
        loss = (self.layer(x) - y).pow(2).mean()
        self.log("train_loss", loss)
        return loss

    def test_step(self, batch, number):
        x, y = batch
        self.log("test_loss", (self.layer(x) - y).pow(2).mean())

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), 1e-2)


def main():
    torch.manual_seed(0)
    loader = [(torch.randn(4, 3), torch.randn(4, 1)) for _ in range(5)]
    module = Regression()
    trainer = L.Trainer(max_epochs=2)
    trainer.fit(module, loader)
    trainer.test(module, loader)
    with open("logged.json", "w") as file:
        json.dump(trainer.logged, file)
    torch.save(module.state_dict(), "module.pt")


if __name__ == "__main__":
    main()
