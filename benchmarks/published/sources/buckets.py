"""Families of operations."""

import numpy as np

from gpuyard.learn.performance.arrays import FloatArray, TextArray


def buckets(words: TextArray, one: FloatArray, other: FloatArray) -> TextArray:
    """Operations whose sizes are the same are a family."""
    return np.array([f"{w} {a:g}x{b:g}" for w, a, b in zip(words.tolist(), one.tolist(), other.tolist(), strict=True)])
