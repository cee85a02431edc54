"""Confidence intervals for the mean of a few runs, by Student's t: 95 of 100 contain the true mean.

Two policies are compared run by run on the same workloads. The difficulty of a workload cancels out of the difference,
so the difference can be significant where the two means are not.
"""

from collections.abc import Sequence
from math import fsum, sqrt
from typing import NamedTuple

T95_OF_FEW = (12.706, 4.303, 3.182, 2.776)
"""The quantile for one to four degrees of freedom."""
Z95 = 1.959964


class Mean(NamedTuple):
    """A mean with its 95 % confidence interval."""

    mean: float
    ci95: float
    """Half the width of the interval."""


def mean_of(values: Sequence[float]) -> Mean:
    """Return the mean of at least two values with its interval."""
    count = len(values)
    mean = fsum(values) / count
    spread = sqrt(fsum((value - mean) ** 2 for value in values) / (count - 1))
    return Mean(mean, t95(count - 1) * spread / sqrt(count))


def difference(values: Sequence[float], base: Sequence[float]) -> Mean:
    """Return the mean of the paired differences `values - base` with its interval."""
    return mean_of([value - other for value, other in zip(values, base, strict=True)])


def t95(freedom: int) -> float:
    """Return the two-sided 95 % quantile of Student's t; from 5 degrees of freedom on by expansion, to three digits."""
    if freedom <= len(T95_OF_FEW):
        return T95_OF_FEW[freedom - 1]
    z, n = Z95, freedom
    first = (z**3 + z) / 4
    second = (5 * z**5 + 16 * z**3 + 3 * z) / 96
    third = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
    fourth = (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92_160
    return z + first / n + second / n**2 + third / n**3 + fourth / n**4
