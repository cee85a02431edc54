"""`dynamic`: one call after another, each on the group of GPUs where it is done soonest, a little away from busy ones.

Calls go by topological level, in an order by chance within a level; the score of a
group is when the call would be done there + 0.1 × how long the group has been busy, loading included. A group is free
when the last of its GPUs is, changes as long as the slowest of them, and is as busy as their mean. The model is changed
when the call could begin, not before.

Good where GPUs are many; where they are few it changes models all the time. N log N + N × G.
"""

from typing import Final

import numpy as np

from gpuyard.plan.planner.chance import words
from gpuyard.plan.planner.levels import levels
from gpuyard.plan.planner.plan import Plan
from gpuyard.plan.planner.problem import Problem
from gpuyard.plan.planner.strategies import SearchBudget
from gpuyard.plan.planner.strategies.residents import by_the_rules

WEIGHT: Final = 0.1


def dynamic(problem: Problem, budget: SearchBudget) -> Plan:
    """One pass over the calls; the seed of the budget is the order within levels."""
    from gpuyard.plan.planner.compiled.dynamic import place_all

    calls = problem.calls
    order = np.lexsort((words(budget.seed, len(calls)), levels(problem))).astype(np.int32)
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
    return by_the_rules(problem, plan)
