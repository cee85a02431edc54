"""A model is made and saved, then applied to shards without gradients, one file for each."""

import numpy as np
import torch
from torch import nn


def make_model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))


model = make_model()
model.eval()
inputs = torch.arange(48, dtype=torch.float32).reshape(12, 4) / 48
for shard in range(3):
    with torch.no_grad():
        output = model(inputs[shard * 4 : shard * 4 + 4])
    np.save(f"output_{shard}.npy", output.numpy())
np.save("all.npy", np.concatenate([np.load(f"output_{shard}.npy") for shard in range(3)]))
