"""Shards that are made one by one, transformed one by one, and merged: every shard has files of its own."""

import numpy as np


def make(shard, path):
    np.save(path, np.arange(10) + 10 * shard)


def transform(source, target):
    values = np.load(source)
    np.save(target, values**2 % 97)


def merge(pattern, count, target):
    parts = [np.load(pattern.format(shard)) for shard in range(count)]
    np.save(target, np.concatenate(parts))


for shard in range(4):
    make(shard, f"raw_{shard}.npy")
for shard in range(4):
    transform(f"raw_{shard}.npy", f"clean_{shard}.npy")
merge("clean_{}.npy", 4, "all.npy")
