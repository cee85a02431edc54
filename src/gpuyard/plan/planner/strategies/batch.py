"""`batch`: all calls of one model on one level run together, one after another on one group of GPUs.

Batches are ordered by level, and within a level by work, largest first. Each goes to the group that is free and has
loaded the model soonest. The model is loaded as soon as the group is free, and each call starts when the previous one
and all its dependencies have ended.

There are few model switches, but no more groups are busy than there are batches on a level: good on few GPUs only.
"""

import numpy as np

from gpuyard.plan.planner.levels import levels
from gpuyard.plan.planner.plan import Plan
from gpuyard.plan.planner.problem import Floats, Ints, Problem
from gpuyard.plan.planner.strategies import SearchBudget
from gpuyard.plan.planner.strategies.multi_model import retimed


def batch(problem: Problem, _: SearchBudget) -> Plan:
    """Plan the batches in one pass; deterministic."""
    calls = problem.calls
    available, holds = problem.free_first.copy(), problem.held_first.copy()
    gpu, start, end = np.zeros(len(calls), dtype=np.int32), np.zeros(len(calls)), np.zeros(len(calls))
    for chosen in _batches(problem):
        model = int(calls.model[chosen[0]])
        width = int(problem.width[model])
        change = problem.switch[holds, model]
        cost = _most_of_groups(available, width) + _most_of_groups(change, width)
        first = int(np.argmin(np.where(problem.may_begin[model, : len(cost)], cost, np.inf)))
        group = slice(first, first + width)
        lasts = calls.seconds[chosen] / problem.group_speed[model, first]
        loaded = float((available[group] + change[group]).max())
        end[chosen] = _one_after_another(np.maximum(_ready(problem, chosen, end), loaded), lasts)
        start[chosen] = end[chosen] - lasts
        gpu[chosen] = first
        available[group], holds[group] = end[chosen[-1]], model
    return retimed(problem, Plan(gpu, start, end))


def _batches(problem: Problem) -> list[Ints]:
    """Return the calls of each model and level as one batch; by level, then by work, largest first."""
    calls = problem.calls
    if not len(calls):
        return []
    level = levels(problem)
    order = np.lexsort((calls.model, level)).astype(np.int32)
    changes = (np.diff(level[order]) != 0) | (np.diff(calls.model[order]) != 0)
    found = np.split(order, np.flatnonzero(changes) + 1)
    return sorted(found, key=lambda chosen: (int(level[chosen[0]]), -float(calls.seconds[chosen].sum())))


def _most_of_groups(of_gpus: Floats, width: int) -> Floats:
    """For each group, the maximum over its GPUs."""
    most: Floats = np.lib.stride_tricks.sliding_window_view(of_gpus, width).max(axis=1)
    return most


def _ready(problem: Problem, chosen: Ints, end: Floats) -> Floats:
    """For each call, when its request has arrived and all its dependencies have ended."""
    at, before = problem.calls.before_at, problem.calls.before
    counts = at[chosen + 1] - at[chosen]
    ready = problem.calls.earliest_s[chosen].copy()
    waiting = np.flatnonzero(counts)
    if len(waiting):
        counts = counts[waiting]
        begins = np.concatenate(([0], np.cumsum(counts)[:-1]))
        edges = np.arange(counts.sum()) + np.repeat(at[chosen[waiting]] - begins, counts)
        ready[waiting] = np.maximum(ready[waiting], np.maximum.reduceat(end[before[edges]], begins))
    return ready


def _one_after_another(ready: Floats, lasts: Floats) -> Floats:
    """Return the ends of calls that start when they are ready and the previous one has ended (vectorized)."""
    done = np.cumsum(lasts)
    ends: Floats = done + np.maximum.accumulate(ready - (done - lasts))
    return ends
