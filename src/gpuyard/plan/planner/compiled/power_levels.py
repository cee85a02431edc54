"""Slack of a plan with a fixed order, and its use: one pass forward, one pass back, each linear in calls and edges."""

import numpy as np

from gpuyard.plan.planner.compiled.jit import compiled
from gpuyard.plan.planner.problem import Floats, Ints


@compiled
def earliest_starts(order: Ints, at_least: Floats, at: Ints, before: Ints, lag: Floats, took: Floats) -> Floats:
    """Return when each call can start with these durations."""
    start = at_least.copy()
    for call in order:
        for edge in range(at[call], at[call + 1]):
            start[call] = max(start[call], start[before[edge]] + took[before[edge]] + lag[edge])
    return start


@compiled
def choose_power_levels(
    order: Ints,
    at_least: Floats,
    at: Ints,
    before: Ints,
    lag: Floats,
    seconds: Floats,
    joules: Floats,
    until: float,
    lowest: int,
    level: Ints,
) -> None:
    """Give each call the level with the least energy, down to level `lowest`, such that all calls still end by `until`.

    Goes back from the last call: the successors of a call have chosen already and determine how late it may end; its
    predecessors count with their current level. So keeping the current level is always possible.
    """
    took = np.empty(len(order))
    for call in range(len(order)):
        took[call] = seconds[call, level[call]]
    start = earliest_starts(order, at_least, at, before, lag, took)
    latest = np.full(len(order), until)
    for turn in range(len(order) - 1, -1, -1):
        call = order[turn]
        for choice in range(lowest + 1):
            fits = latest[call] - seconds[call, choice] >= start[call]
            if fits and joules[call, choice] < joules[call, level[call]]:
                level[call] = choice
        begins = latest[call] - seconds[call, level[call]]
        for edge in range(at[call], at[call + 1]):
            latest[before[edge]] = min(latest[before[edge]], begins - lag[edge])
