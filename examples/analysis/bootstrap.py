"""Confidence intervals by resampling with one generator."""

import json

import numpy as np
from scipy import stats

rng = np.random.default_rng(5)
sample = rng.normal(1.0, 2.0, 50)
means = []
for _ in range(100):
    means.append(float(rng.choice(sample, 50).mean()))
low, high = np.quantile(means, [0.025, 0.975])
with open("interval.json", "w") as file:
    json.dump([float(low), float(high), float(stats.sem(sample))], file)
