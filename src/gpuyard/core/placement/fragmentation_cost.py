"""The value of the remainder of a shared GPU, given the demand for shares of each size.

This is a cutting-stock problem: what is the smallest number of GPUs that holds all requested shares? The dual of its
linear program gives each size a price, such that no GPU holds shares worth more than 1. A share that always needs a
fresh GPU has price 1 however small it is; one that fits into remainders that are plentiful anyway is free. The value of
a remainder is the most expensive set of shares it can hold. A share is then placed where the remainder loses least.

Multiplicative weights find the prices: repeatedly cut the GPU that is most expensive at the current prices, and lower
the prices of the sizes it serves. A hundred rounds come within a few percent of the optimal prices. The time is bounded
for any demand: some milliseconds, and only after enough tasks have changed (see `Demand`).
"""

from collections.abc import Mapping
from math import exp

from gpuyard.core.domain.values import MILLI

STEP_MILLI = 10
"""The resolution of remainders, in thousandths. Shares are rounded down to it, so that three thirds fit on a GPU."""
STEPS = MILLI // STEP_MILLI
SIZES = 16
"""Only this many sizes, the most requested ones, are considered."""
ROUNDS = 100
PACE = 0.3
"""The step size: how much the progress of the size that a round serves best grows in that round."""


def remainder_values(shares: Mapping[int, int]) -> tuple[float, ...]:
    """Return the value of a remainder by its number of steps, from 0 to the whole GPU, which is worth 1.

    `shares` maps a size in thousandths to the number of requested shares. Without any, the value is proportional.
    """
    by_steps: dict[int, int] = {}
    for milli, count in shares.items():
        steps = max(1, milli // STEP_MILLI)
        by_steps[steps] = by_steps.get(steps, 0) + count
    wanted = sorted(by_steps.items(), key=lambda size: (-size[1], size[0]))[:SIZES]
    best = tuple(steps / STEPS for steps in range(STEPS + 1))
    most_gpus = 0.0
    served = dict.fromkeys((size for size, _ in wanted), 0.0)
    for _ in range(ROUNDS if wanted else 0):
        least = min(served.values())  # keeps `exp` in range; a common factor of all prices cancels out
        prices = {size: size * exp(least - amount) for size, amount in served.items()}
        worth, shares_on_gpu = _most_valuable_gpu(prices)
        # Prices scaled so that no GPU is worth more than 1 are feasible for the dual: a lower bound of the GPUs needed.
        gpus = sum(prices[size] * count for size, count in wanted) / worth[-1]
        if gpus > most_gpus:
            most_gpus, best = gpus, tuple(value / worth[-1] for value in worth)
        fastest = max(shares_on_gpu.get(size, 0) / count for size, count in wanted)
        for size, count in wanted:
            served[size] += PACE * shares_on_gpu.get(size, 0) / count / fastest
    return best


def _most_valuable_gpu(prices: Mapping[int, float]) -> tuple[list[float], dict[int, int]]:
    """Return the highest value of a set of shares for each number of steps, and the best set for a whole GPU.

    Solves an unbounded knapsack by dynamic programming.
    """
    worth, last = [0.0], [0]
    for steps in range(1, STEPS + 1):
        dearest, chosen = worth[-1], 0
        for size, price in prices.items():
            if size <= steps and worth[steps - size] + price > dearest:
                dearest, chosen = worth[steps - size] + price, size
        worth.append(dearest)
        last.append(chosen)
    shares_on_gpu: dict[int, int] = {}
    left = STEPS
    while left:
        if size := last[left]:
            shares_on_gpu[size] = shares_on_gpu.get(size, 0) + 1
        left -= size or 1
    return worth, shares_on_gpu
