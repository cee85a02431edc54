"""Chance that is the same on every machine: xorshift on 64 bits, and whole numbers and straight lines only."""

from typing import Any

import numpy as np

from gpuyard.plan.planner.compiled.jit import compiled


def source_of(seed: int) -> Any:
    """A source of chance: one word of state, mixed so that neighbouring seeds have nothing in common (splitmix64)."""
    word = (seed + 1) * 0x9E3779B97F4A7C15 % 2**64
    word = (word ^ word >> 30) * 0xBF58476D1CE4E5B9 % 2**64
    word = (word ^ word >> 27) * 0x94D049BB133111EB % 2**64
    return np.array([word ^ word >> 31 or 1], dtype=np.uint64)


@compiled
def draw(source: Any) -> Any:
    """The next 64 bits."""
    bits = source[0]
    bits ^= bits << np.uint64(13)
    bits ^= bits >> np.uint64(7)
    bits ^= bits << np.uint64(17)
    source[0] = bits
    return bits


@compiled
def below(source: Any, count: int) -> int:
    """A whole number from 0 to count - 1."""
    return int(draw(source) >> np.uint64(33)) % count


@compiled
def patience(source: Any) -> float:
    """Mostly about one, seldom many: leading zeros of a draw, and a straight line between them.

    Nearly the binary logarithm of one over a chance; the platform's logarithm may differ in its last digit.
    """
    bits = draw(source) | np.uint64(1)
    zeros = 0.0
    while bits < np.uint64(1 << 63):
        bits <<= np.uint64(1)
        zeros += 1.0
    return zeros + 2.0 - np.float64(bits >> np.uint64(11)) / 4503599627370496.0
