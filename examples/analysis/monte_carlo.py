"""Estimates of pi with a generator for each round, and their mean."""

import json

import numpy as np


def estimate(seed, path):
    rng = np.random.default_rng(seed)
    points = rng.random((1000, 2))
    inside = int(((points**2).sum(1) < 1).sum())
    with open(path, "w") as file:
        json.dump(4 * inside / 1000, file)


for seed in range(4):
    estimate(seed, f"estimate_{seed}.json")
found = []
for seed in range(4):
    with open(f"estimate_{seed}.json") as file:
        found.append(json.load(file))
with open("mean.json", "w") as file:
    json.dump(sum(found) / len(found), file)
