"""`auto`: runs the other strategies, then improves the best of their plans in the remaining time.

    batch, dynamic, heft_affinity    always, while time is left: the plan is never longer than any of theirs
    search                           starts from the best of these, until the time is up
    exact                            after a third of the time, if there are few enough calls to prove optimality

Choose it unless you want to see the result of a single strategy. With a million calls there is only time for the first
schedules; the slow ones are skipped once a fifth of the time is used.
"""

from dataclasses import replace
from typing import Final

from gpuyard.plan.planner.plan import Plan
from gpuyard.plan.planner.problem import Problem
from gpuyard.plan.planner.strategies import SearchBudget
from gpuyard.plan.planner.strategies.batch import batch
from gpuyard.plan.planner.strategies.dynamic import dynamic
from gpuyard.plan.planner.strategies.heft_affinity import heft_affinity
from gpuyard.plan.planner.strategies.search import MOST_CALLS, improved, objective

FEW_CALLS: Final = 16
"""`exact` usually proves the optimum within seconds for up to this number of calls."""
FOR_SEARCH: Final = 1 / 3
"""The fraction of the time that `search` gets before `exact`."""
ENOUGH: Final = 0.2


def auto(problem: Problem, budget: SearchBudget) -> Plan:
    """Return a plan at least as good as that of any strategy that fits in the time."""
    known: list[Plan] = []

    def tell(plan: Plan) -> None:
        if not known or objective(problem, plan) < min(objective(problem, one) for one in known):
            budget.better(plan)

    telling = replace(budget, better=tell)
    for strategy in (heft_affinity, dynamic, batch):
        if known and not _has_time(problem, budget):
            break
        known.append(strategy(problem, replace(telling, rounds=None)))
    if len(problem.calls) > FEW_CALLS:
        return improved(problem, telling, known)
    from gpuyard.plan.planner.strategies import exact

    known.append(improved(problem, _first_part(telling), known))
    best = min(known, key=lambda plan: objective(problem, plan))
    return min(exact.improved(problem, best, telling), best, key=lambda plan: objective(problem, plan))


def _has_time(problem: Problem, budget: SearchBudget) -> bool:
    """Whether there is time for another quick strategy; they take long only for a very large number of calls."""
    if len(problem.calls) <= MOST_CALLS:
        return True
    return budget.keep_going() and (budget.used is None or budget.used() < ENOUGH)


def _first_part(budget: SearchBudget) -> SearchBudget:
    """Return a budget with the first third of the time."""
    used, rounds = budget.used, budget.rounds
    if used is None:
        return budget if rounds is None else replace(budget, rounds=max(1, rounds // 3))
    return replace(
        budget, keep_going=lambda: budget.keep_going() and used() < FOR_SEARCH, used=lambda: used() / FOR_SEARCH
    )
