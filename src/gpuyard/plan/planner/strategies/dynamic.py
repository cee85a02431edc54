"""`dynamic`: one call after another, each on the group of GPUs where it ends soonest, with a small penalty for busy
groups while the load is uneven.

Calls are taken by topological level, within a level by the priority of their request, and otherwise in random order. The score of a group is

    end of the call there + 0.1 × spread × time the group has been busy, loading included
    spread = 1 - busy time of the least busy GPU / busy time of the busiest GPU, when the call is placed

so the weight of balance follows the state of the GPUs: 0.1 while some GPU has done nothing, 0 when all have done the
same, and then only the end of the call counts. A group is free when the last of its GPUs is, switches as
slowly as the slowest of them, and its busy time is their mean. The model is switched when the call could start, not
before.

Good with many GPUs; with few it switches models all the time. Cost: N log N + N × G.
"""

from typing import Final

import numpy as np

from gpuyard.plan.planner.levels import levels
from gpuyard.plan.planner.plan import Plan
from gpuyard.plan.planner.problem import Problem
from gpuyard.plan.planner.random_numbers import words
from gpuyard.plan.planner.strategies import SearchBudget
from gpuyard.plan.planner.strategies.multi_model import retimed

WEIGHT: Final = 0.1
"""The weight of the busy time while the load is as uneven as can be."""


def dynamic(problem: Problem, budget: SearchBudget) -> Plan:
    """Plan the calls in one pass; the seed of the budget determines the order within levels."""
    from gpuyard.plan.planner.compiled.dynamic import place_all

    calls = problem.calls
    urgency = -problem.requests.priority[calls.request]
    order = np.lexsort((words(budget.seed, len(calls)), urgency, levels(problem))).astype(np.int32)
    plan = Plan(
        *place_all(
            order,
            calls.model,
            calls.seconds,
            calls.earliest_s,
            calls.before_at,
            calls.before,
            problem.width,
            problem.switch,
            problem.may_begin,
            problem.group_speed,
            problem.free_first,
            problem.held_first,
            WEIGHT,
        )
    )
    return retimed(problem, plan)
