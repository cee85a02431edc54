"""Decodes plans from arbitrary numbers: keys into a valid order, weights into an assignment."""

import numpy as np

from gpuyard.plan.planner.compiled.jit import compiled
from gpuyard.plan.planner.problem import Flags, Floats, Ints


@compiled
def topological_keys(rank: Ints, before_at: Ints, before: Ints, key: Floats) -> Floats:
    """Return the keys, each raised to those of its predecessors: sorted by them, no call comes before a predecessor.

    `rank` numbers the calls so that each is above its predecessors; it also breaks ties.
    """
    high = key.copy()
    for call in np.argsort(rank):
        for edge in range(before_at[call], before_at[call + 1]):
            high[call] = max(high[call], high[before[edge]])
    return high


@compiled
def weighted_assignment(
    order: Ints,
    seconds: Floats,
    model: Ints,
    earliest: Floats,
    before_at: Ints,
    before: Ints,
    width: Ints,
    may_begin: Flags,
    group_speed: Floats,
    switch: Floats,
    held: Ints,
    free: Floats,
    reluctance: float,
    balance: float,
) -> Ints:
    """Return the group of each call, with the least end + reluctance × switch time + balance × busy time so far."""
    holds, free_at = held.copy(), free.copy()
    busy = np.zeros(len(free))
    gpu = np.zeros(len(order), dtype=np.int32)
    end = np.zeros(len(order))
    for call in order:
        m = model[call]
        ready = earliest[call]
        for edge in range(before_at[call], before_at[call + 1]):
            ready = max(ready, end[before[edge]])
        least, first, ends = np.inf, -1, 0.0
        for g in range(len(free) - width[m] + 1):
            if not may_begin[m, g]:
                continue
            begins, worst, did = ready, 0.0, 0.0
            for h in range(g, g + width[m]):
                change = switch[holds[h], m]
                begins = max(begins, free_at[h] + change)
                worst = max(worst, change)
                did += busy[h]
            until = begins + seconds[call] / group_speed[m, g]
            score = until + reluctance * worst + balance * did / width[m]
            if score < least:
                least, first, ends = score, g, until
        gpu[call] = first
        end[call] = ends
        for h in range(first, first + width[m]):
            holds[h] = m
            free_at[h] = ends
            busy[h] += seconds[call]
    return gpu
