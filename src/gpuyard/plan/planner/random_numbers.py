"""Random numbers from a seed, the same on any machine: splitmix64 (Steele, Lea, Flood: Fast splittable pseudorandom
number generators).

Draw n of a stream depends on seed and n alone, so a million draws are computed at once.
"""

import numpy as np
from numpy.typing import NDArray

from gpuyard.plan.planner.problem import Floats

RandomWords = NDArray[np.uint64]

_STEP, _FIRST, _SECOND = (np.uint64(x) for x in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))


def words(seed: int, count: int) -> RandomWords:
    """Return the first draws of a seed: 64 bits each."""
    state = np.uint64(seed % 2**64) + np.arange(1, count + 1, dtype=np.uint64) * _STEP
    state = (state ^ (state >> np.uint64(30))) * _FIRST
    state = (state ^ (state >> np.uint64(27))) * _SECOND
    mixed: RandomWords = state ^ (state >> np.uint64(31))
    return mixed


class RandomNumbers:
    """A stream of draws."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._drawn = 0

    def words(self, count: int) -> RandomWords:
        """Return the next draws of 64 bits."""
        begins = (self._seed + self._drawn * int(_STEP)) % 2**64
        self._drawn += count
        return words(begins, count)

    def below(self, limit: int) -> int:
        """Return an integer from 0 to `limit` - 1."""
        return int(self.words(1)[0] >> np.uint64(32)) * limit >> 32

    def between(self, least: int, most: int) -> int:
        """Return an integer, both ends included."""
        return least + self.below(most - least + 1)

    def part(self) -> float:
        """Return a number from 0 to below 1."""
        return int(self.words(1)[0] >> np.uint64(11)) / 2**53

    def bells(self, count: int) -> Floats:
        """Return approximately normal numbers, mean 0 and deviation 1: each the sum of twelve draws of 16 bits."""
        drawn = self.words(3 * count).view(np.uint16).reshape(count, 12)
        bells: Floats = (drawn.sum(axis=1, dtype=np.int64) - 6 * 65535) / 65536.0
        return bells
