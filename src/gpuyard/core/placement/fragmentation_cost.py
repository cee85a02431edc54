"""What the rest of a shared card is worth, given which shares are asked for how often.

Cutting stock: with as many shares of each size as are asked for, what is the fewest cards they can be cut from? The dual
of that linear programme gives each size a price, such that no card holds shares of more than price 1: a share that
always costs a fresh card has price 1 however small it is, and one that fits into rests which are plentiful anyway is free.
A rest is worth the dearest set of shares it holds. A share then goes where the rest loses least.

The prices are found by multiplicative weights: over and over, cut the card that is dearest at the present prices, and
lower the prices of the sizes it serves. A hundred rounds come within some per cent of the best prices, in a time that is
bounded whatever is asked for: some milliseconds, once in so many tasks (see `Demand`).
"""

from collections.abc import Mapping
from math import exp

from gpuyard.core.domain.values import MILLI

STEP_MILLI = 10
"""Rests are told apart in such steps. Shares are rounded down to them, so that three thirds are a card."""
STEPS = MILLI // STEP_MILLI
SIZES = 16
"""Only the sizes that are asked for most take part."""
ROUNDS = 100
PACE = 0.3
"""How far the size that a round serves best gets in it."""


def remainder_values(shares: Mapping[int, int]) -> tuple[float, ...]:
    """By number of steps left, from nothing to the whole card, which is worth 1; `shares` counts them by thousandths."""
    by_steps: dict[int, int] = {}
    for milli, count in shares.items():
        steps = max(1, milli // STEP_MILLI)
        by_steps[steps] = by_steps.get(steps, 0) + count
    wanted = sorted(by_steps.items(), key=lambda size: (-size[1], size[0]))[:SIZES]
    best = tuple(steps / STEPS for steps in range(STEPS + 1))
    most_cards = 0.0
    served = dict.fromkeys((size for size, _ in wanted), 0.0)
    for _ in range(ROUNDS if wanted else 0):
        least = min(served.values())
        prices = {size: size * exp(least - amount) for size, amount in served.items()}
        worth, card = _dearest_card(prices)
        cards = sum(prices[size] * count for size, count in wanted) / worth[-1]
        if cards > most_cards:
            most_cards, best = cards, tuple(value / worth[-1] for value in worth)
        fastest = max(card.get(size, 0) / count for size, count in wanted)
        for size, count in wanted:
            served[size] += PACE * card.get(size, 0) / count / fastest
    return best


def _dearest_card(prices: Mapping[int, float]) -> tuple[list[float], dict[int, int]]:
    """The dearest set of shares for each number of steps, and which ones those are on a whole card."""
    worth, last = [0.0], [0]
    for steps in range(1, STEPS + 1):
        dearest, chosen = worth[-1], 0
        for size, price in prices.items():
            if size <= steps and worth[steps - size] + price > dearest:
                dearest, chosen = worth[steps - size] + price, size
        worth.append(dearest)
        last.append(chosen)
    card: dict[int, int] = {}
    left = STEPS
    while left:
        if size := last[left]:
            card[size] = card.get(size, 0) + 1
        left -= size or 1
    return worth, card
