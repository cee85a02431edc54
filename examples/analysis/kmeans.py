"""Clusters by alternating assignment and means."""

import numpy as np

rng = np.random.default_rng(3)
points = np.concatenate([rng.normal(c, 0.3, (30, 2)) for c in (0, 2, 4)])
centers = points[:3].copy()
for _ in range(10):
    distance = ((points[:, None] - centers[None]) ** 2).sum(2)
    label = distance.argmin(1)
    for k in range(3):
        if (label == k).any():
            centers[k] = points[label == k].mean(0)
np.save("centers.npy", centers)
np.save("labels.npy", label)
