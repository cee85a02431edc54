"""Train a small convolutional network on the digits; on a GPU where there is one."""

import argparse

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def make_model():
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(32 * 4 * 4, 10),
    )


def train_epoch(model, loader, optimizer, device):
    for images, labels in loader:
        loss = nn.functional.cross_entropy(model(images.to(device)), labels.to(device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", default="work/digits.npz")
    parser.add_argument("--out", default="work/model.pt")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--epochs", type=int, default=3)
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    torch.set_num_threads(1)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    data = np.load(args.data)
    images, labels = torch.from_numpy(data["images"])[:, None], torch.from_numpy(data["labels"])
    loader = DataLoader(TensorDataset(images, labels), batch_size=64, shuffle=True)
    model = make_model().to(device)
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    for _ in range(args.epochs):
        train_epoch(model, loader, optimizer, device)
    torch.save(model.state_dict(), args.out)


if __name__ == "__main__":
    main()
