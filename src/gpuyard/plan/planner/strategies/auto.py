"""`auto`: the best of the others, and then the search for a better one with the time that is left.

    batch, dynamic, heft_affinity    always, while there is time: never longer than any of them
    search                           from the best of these on, until the time is up
    exact                            after a third of the time, where there are so few calls that it can mostly prove the best

Choose it unless you want to see what one strategy does. At a million calls the first schedules are all there is
time for; what takes long there is left out when a fifth of the time is gone.
"""

from dataclasses import replace
from typing import Final

from gpuyard.plan.planner.plan import Plan
from gpuyard.plan.planner.problem import Problem
from gpuyard.plan.planner.strategies import SearchBudget
from gpuyard.plan.planner.strategies.batch import batch
from gpuyard.plan.planner.strategies.dynamic import dynamic
from gpuyard.plan.planner.strategies.heft_affinity import heft_affinity
from gpuyard.plan.planner.strategies.search import MOST_CALLS, improved, worth

FEW_CALLS: Final = 16
"""Of these exact can mostly prove the best plan within seconds."""
FOR_SEARCH: Final = 1 / 3
"""What part of the time search gets before exact."""
ENOUGH: Final = 0.2


def auto(problem: Problem, budget: SearchBudget) -> Plan:
    """As good as any strategy that could have been run in the time, or better."""
    known: list[Plan] = []

    def tell(plan: Plan) -> None:
        if not known or worth(problem, plan) < min(worth(problem, one) for one in known):
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
    best = min(known, key=lambda plan: worth(problem, plan))
    return min(exact.improved(problem, best, telling), best, key=lambda plan: worth(problem, plan))


def _has_time(problem: Problem, budget: SearchBudget) -> bool:
    """For one more of the quick ones, which take long only where calls are very many."""
    if len(problem.calls) <= MOST_CALLS:
        return True
    return budget.keep_going() and (budget.used is None or budget.used() < ENOUGH)


def _first_part(budget: SearchBudget) -> SearchBudget:
    """A third of it."""
    used, rounds = budget.used, budget.rounds
    if used is None:
        return budget if rounds is None else replace(budget, rounds=max(1, rounds // 3))
    return replace(
        budget, keep_going=lambda: budget.keep_going() and used() < FOR_SEARCH, used=lambda: used() / FOR_SEARCH
    )
