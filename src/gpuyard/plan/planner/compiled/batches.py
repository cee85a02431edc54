"""The loop of the strategy `batch`: places one batch after another on the group that can begin it soonest."""

import numpy as np

from gpuyard.plan.planner.compiled.jit import compiled
from gpuyard.plan.planner.problem import Flags, Floats, Ints


@compiled
def place_batches(
    order: Ints,
    batch_at: Ints,
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
) -> tuple[Ints, Floats, Floats]:
    """Return GPU, start and end of each call; batch i is `order[batch_at[i]:batch_at[i + 1]]`, one call after another.

    A batch goes to the group where its first call begins soonest; of several, to one that needs the shortest switch, and
    of these to the one that was free last.
    """
    gpus = may_begin.shape[1]
    available = free_first.copy()
    holds = held_first.copy()
    gpu = np.zeros(len(model), np.int32)
    start = np.zeros(len(model))
    end = np.zeros(len(model))
    for batch in range(len(batch_at) - 1):
        m = model[order[batch_at[batch]]]
        w = width[m]
        ready = np.inf
        for place in range(batch_at[batch], batch_at[batch + 1]):
            call = order[place]
            at = earliest[call]
            for i in range(before_at[call], before_at[call + 1]):
                at = max(at, end[before[i]])
            start[call] = at
            ready = min(ready, at)
        best = np.inf
        best_change = np.inf
        best_free = -1.0
        first = 0
        loaded = 0.0
        for g in range(gpus - w + 1):
            if not may_begin[m, g]:
                continue
            free = 0.0
            change = 0.0
            on = 0.0
            for k in range(g, g + w):
                free = max(free, available[k])
                change = max(change, switch[holds[k], m])
                on = max(on, available[k] + switch[holds[k], m])
            begin = max(ready, on)
            if begin < best or (
                begin == best and (change < best_change or (change == best_change and free > best_free))
            ):
                best, best_change, best_free, first, loaded = begin, change, free, g, on
        done = loaded
        for place in range(batch_at[batch], batch_at[batch + 1]):
            call = order[place]
            gpu[call] = first
            start[call] = max(start[call], done)
            done = start[call] + seconds[call] / group_speed[m, first]
            end[call] = done
        for k in range(first, first + w):
            available[k] = done
            holds[k] = m
    return gpu, start, end
