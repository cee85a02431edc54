"""Longest paths through the graphs of all requests: the earliest start of each call, and the least time after it."""

import numpy as np

from gpuyard.plan.planner.compiled.jit import compiled
from gpuyard.plan.planner.problem import Floats, Ints


@compiled
def heads_and_tails(
    order: Ints, before_at: Ints, before: Ints, model: Ints, seconds: Floats, earliest: Floats, delay: Floats
) -> tuple[Floats, Floats]:
    """For each call, the earliest start, and the least time from its end to the end of the plan.

    `order` has every call after those it waits for. `earliest` is the earliest start of a call on its own. `delay[a,
    b]` is the unavoidable time between a call of model a and one of model b that waits for it.
    """
    head = earliest.copy()
    tail = np.zeros(len(model))
    for call in order:
        for edge in range(before_at[call], before_at[call + 1]):
            earlier = before[edge]
            at = head[earlier] + seconds[earlier] + delay[model[earlier], model[call]]
            head[call] = max(head[call], at)
    for call in order[::-1]:
        for edge in range(before_at[call], before_at[call + 1]):
            earlier = before[edge]
            rest = delay[model[earlier], model[call]] + seconds[call] + tail[call]
            tail[earlier] = max(tail[earlier], rest)
    return head, tail
