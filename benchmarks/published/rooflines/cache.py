"""How fast a GPU moves bytes that may still be in its cache from the last run."""

import numpy as np

from gpuyard.learn.performance.arrays import FloatArray
from gpuyard.learn.performance.rooflines.chips import GpuColumns

CACHE_BYTES = 6.0
"""Bytes that a processor gets from L2 in a cycle."""


def cycles(chips: GpuColumns) -> FloatArray:
    """Cycles of all processors together, in a millisecond."""
    return chips.sm * chips.clock * 1e6


def memory_ms(chips: GpuColumns, moved: FloatArray) -> FloatArray:
    """Milliseconds for so many bytes: those that fit into the cache are still there from the last run."""
    kept = 1.0 / (1.0 + (moved / (0.7 * chips.cache)) ** 4)
    cache_speed = np.maximum(CACHE_BYTES * cycles(chips), chips.bytes)
    return moved * (kept / cache_speed + (1.0 - kept) / chips.bytes)
