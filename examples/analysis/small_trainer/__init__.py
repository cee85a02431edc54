"""A stand-in of a few lines with the API shape of the trainer of a well-known library."""

from dataclasses import dataclass

import torch


@dataclass
class TrainingArguments:
    output_dir: str = "out"
    num_train_epochs: int = 1
    learning_rate: float = 0.1


class Trainer:
    def __init__(self, model, args, train_dataset, eval_dataset=None):
        self.model, self.args = model, args
        self.train_dataset, self.eval_dataset = train_dataset, eval_dataset

    def train(self):
        optimizer = torch.optim.SGD(self.model.parameters(), self.args.learning_rate)
        for _ in range(self.args.num_train_epochs):
            for x, y in self.train_dataset:
                loss = (self.model(x) - y).pow(2).mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()

    def evaluate(self):
        with torch.no_grad():
            return {"eval_loss": sum((self.model(x) - y).pow(2).mean().item() for x, y in self.eval_dataset)}

    def save_model(self, path):
        torch.save(self.model.state_dict(), path)
