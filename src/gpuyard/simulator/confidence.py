"""How sure is a mean of a few runs? The interval of Student's t, which holds the true mean in 95 of 100 such series.

Two policies are compared run by run on the same workloads: what is easy or hard about a workload falls out of the
difference, so that it can be sure where the two means are not.
"""

from collections.abc import Sequence
from math import fsum, sqrt
from typing import NamedTuple

T95_OF_FEW = (12.706, 4.303, 3.182, 2.776)
"""The quantile for one to four degrees of freedom."""
Z95 = 1.959964


class Mean(NamedTuple):
    """A mean, and how far from it the true one may lie."""

    mean: float
    ci95: float
    """Half of the interval."""


def mean_of(values: Sequence[float]) -> Mean:
    """Of two values at least."""
    count = len(values)
    mean = fsum(values) / count
    spread = sqrt(fsum((value - mean) ** 2 for value in values) / (count - 1))
    return Mean(mean, t95(count - 1) * spread / sqrt(count))


def difference(values: Sequence[float], base: Sequence[float]) -> Mean:
    """How much larger values are than those they are paired with."""
    return mean_of([value - other for value, other in zip(values, base, strict=True)])


def t95(freedom: int) -> float:
    """The two-sided 95 % quantile of Student's t; from five on by its expansion, good to three digits."""
    if freedom <= len(T95_OF_FEW):
        return T95_OF_FEW[freedom - 1]
    z, n = Z95, freedom
    first = (z**3 + z) / 4
    second = (5 * z**5 + 16 * z**3 + 3 * z) / 96
    third = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
    fourth = (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92_160
    return z + first / n + second / n**2 + third / n**3 + fourth / n**4
