"""`auto`: runs the other strategies, then improves the best of their plans in the remaining time.

    heft_affinity         if search does not make all its schedules (GPUs preload), or is too slow to (plain Python)
    batch, dynamic        always, while time is left: the plan is never longer than any of theirs
    search                starts with the schedules of heft_affinity, whatever work is allowed, and goes on from the best
                          plan, until the time is up
    exact                 after a third of the work, if there are few enough calls to prove optimality

Choose it unless you want to see the result of a single strategy. With a million calls there is only time for the first
schedules of heft_affinity; dynamic and batch come after them, if time is left.
"""

from dataclasses import replace
from typing import Final

from gpuyard.plan.planner.compiled.jit import INTERPRETED
from gpuyard.plan.planner.plan import Plan
from gpuyard.plan.planner.problem import Problem
from gpuyard.plan.planner.strategies import SearchBudget
from gpuyard.plan.planner.strategies.batch import batch
from gpuyard.plan.planner.strategies.dynamic import dynamic
from gpuyard.plan.planner.strategies.heft_affinity import heft_affinity, schedules
from gpuyard.plan.planner.strategies.search import MOST_CALLS, Objective, improved, objective

FEW_CALLS: Final = 16
"""`exact` usually proves the optimum within seconds for up to this number of calls."""
FOR_SEARCH: Final = 1 / 3
"""The fraction of the work that `search` gets before `exact`."""


def auto(problem: Problem, budget: SearchBudget) -> Plan:
    """Return a plan at least as good as that of any strategy that fits in the time."""
    known: list[Plan] = []
    told: list[Objective] = []

    def tell(plan: Plan) -> None:
        said = objective(problem, plan)
        if not told or said < told[-1]:
            told.append(said)
            budget.better(plan)

    telling = replace(budget, better=tell)
    many = len(problem.calls) > MOST_CALLS
    # Alone, heft_affinity has all the time; so it comes first.
    for strategy in (heft_affinity, dynamic, batch) if many or problem.preload or INTERPRETED else (batch, dynamic):
        if known and many and not budget.keep_going():
            break
        known.append(strategy(problem, replace(telling, rounds=None)))
        tell(known[-1])
    at_least = 1 if many else schedules(len(problem.calls))
    if budget.rounds is not None:
        at_least = min(at_least, budget.rounds)
    if len(problem.calls) > FEW_CALLS:
        return improved(problem, telling, known, at_least=at_least)
    from gpuyard.plan.planner.strategies import exact

    known.append(improved(problem, _first_part(telling), known, at_least=at_least))
    best = min(known, key=lambda plan: objective(problem, plan))
    return min(exact.improved(problem, best, telling), best, key=lambda plan: objective(problem, plan))


def _first_part(budget: SearchBudget) -> SearchBudget:
    """Return a budget with a third of the work."""
    return replace(
        budget,
        rounds=None if budget.rounds is None else max(1, int(budget.rounds * FOR_SEARCH)),
        work_s=None if budget.work_s is None else budget.work_s * FOR_SEARCH,
    )
