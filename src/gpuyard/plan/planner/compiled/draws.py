"""Random numbers that are the same on every machine: 64-bit xorshift, with integers and linear interpolation only."""

from typing import Any

import numpy as np

from gpuyard.plan.planner.compiled.jit import compiled


def source_of(seed: int) -> Any:
    """Return a generator: one word of state, mixed so that adjacent seeds give unrelated streams (splitmix64)."""
    word = (seed + 1) * 0x9E3779B97F4A7C15 % 2**64
    word = (word ^ word >> 30) * 0xBF58476D1CE4E5B9 % 2**64
    word = (word ^ word >> 27) * 0x94D049BB133111EB % 2**64
    return np.array([word ^ word >> 31 or 1], dtype=np.uint64)


@compiled
def draw(source: Any) -> Any:
    """Return the next 64 bits."""
    bits = source[0]
    bits ^= bits << np.uint64(13)
    bits ^= bits >> np.uint64(7)
    bits ^= bits << np.uint64(17)
    source[0] = bits
    return bits


@compiled
def below(source: Any, count: int) -> int:
    """Return an integer from 0 to count - 1."""
    return int(draw(source) >> np.uint64(33)) % count


@compiled
def threshold_draw(source: Any) -> float:
    """Return approximately -log2 of a uniform random number: usually about one, rarely large.

    It counts the leading zeros of a draw and interpolates linearly; the platform's logarithm may differ in its last
    digit.
    """
    bits = draw(source) | np.uint64(1)
    zeros = 0.0
    while bits < np.uint64(1 << 63):
        bits <<= np.uint64(1)
        zeros += 1.0
    return zeros + 2.0 - np.float64(bits >> np.uint64(11)) / 4503599627370496.0
