"""The loop of the strategy `dynamic`: places one call after another on the group with the least score."""

import numpy as np

from gpuyard.plan.planner.compiled.jit import compiled
from gpuyard.plan.planner.problem import Flags, Floats, Ints


@compiled
def place_all(
    order: Ints,
    model: Ints,
    seconds: Floats,
    earliest: Floats,
    before_at: Ints,
    before: Ints,
    width: Ints,
    switch: Floats,
    may_begin: Flags,
    group_speed: Floats,
    free_first: Floats,
    held_first: Ints,
    weight: float,
) -> tuple[Ints, Floats, Floats]:
    """Return GPU, start and end of each call.

    Score: end of the call + weight × spread × busy seconds of the group so far. The spread is how much less than the
    busiest GPU the least busy one has been busy, as a fraction, before the call.
    """
    gpus = may_begin.shape[1]
    available = free_first.copy()
    busy = np.zeros(gpus)
    holds = held_first.copy()
    gpu = np.zeros(len(model), np.int32)
    start = np.zeros(len(model))
    end = np.zeros(len(model))
    for call in order:
        m = model[call]
        w = width[m]
        ready = earliest[call]
        for i in range(before_at[call], before_at[call + 1]):
            ready = max(ready, end[before[i]])
        least = busy[0]
        most = busy[0]
        for g in range(1, gpus):
            least = min(least, busy[g])
            most = max(most, busy[g])
        balance = weight * (1.0 - least / most) if most > 0.0 else 0.0
        best = np.inf
        best_gpu = 0
        best_start = 0.0
        for g in range(gpus - w + 1):
            if not may_begin[m, g]:
                continue
            free = available[g]
            change = switch[holds[g], m]
            load = busy[g]
            for k in range(g + 1, g + w):
                free = max(free, available[k])
                change = max(change, switch[holds[k], m])
                load += busy[k]
            begin = max(free, ready) + change
            score = begin + seconds[call] / group_speed[m, g] + balance * load / w
            if score < best:
                best = score
                best_gpu = g
                best_start = begin
        gpu[call] = best_gpu
        start[call] = best_start
        end[call] = best_start + seconds[call] / group_speed[m, best_gpu]
        for k in range(best_gpu, best_gpu + w):
            busy[k] += end[call] - best_start + switch[holds[k], m]
            available[k] = end[call]
            holds[k] = m
    return gpu, start, end
