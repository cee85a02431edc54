"""Strategies: one file per strategy, and the registry.

A strategy is a function that takes a problem and a budget and returns a valid plan. Its module is imported on first
use.
"""

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Final

from gpuyard.core.domain.errors import WrongInput
from gpuyard.input.error_location import shortened
from gpuyard.plan.planner.plan import Plan
from gpuyard.plan.planner.problem import Problem


@dataclass(frozen=True, slots=True)
class SearchBudget:
    """Limits of a search. With `rounds` a seed gives the same plan on any machine; with a time limit it may not."""

    seed: int = 0
    rounds: int | None = None
    keep_going: Callable[[], bool] = lambda: True
    """Called every few milliseconds; once False, it must stay False. A first plan is always made."""
    used: Callable[[], float] | None = None
    """Returns the fraction of the time that is used, 0 to 1. Searches cool down by it. None: there is no time limit."""
    better: Callable[[Plan], None] = lambda _plan: None
    """Called with each plan that is better than all before."""


Strategy = Callable[[Problem, SearchBudget], Plan]

STRATEGIES: Final[dict[str, str]] = {
    "batch": "batch:batch",
    "dynamic": "dynamic:dynamic",
    "exact": "exact:exact",
    "pareto": "pareto:pareto",
    "heft_affinity": "heft_affinity:heft_affinity",
    "search": "search:search",
    "auto": "auto:auto",
}
"""All strategies: the location of the function, as `module:function` below this package."""

MOST_CALLS: Final = {"exact": 60, "pareto": 100_000}
"""The most calls that a strategy accepts. A generation of larger plans does not fit in memory with `pareto`."""


def strategy(name: str) -> Strategy:
    """Import the strategy of this name and return it."""
    if name not in STRATEGIES:
        raise WrongInput(f"Unknown strategy {shortened(name)!r}; available strategies: {', '.join(STRATEGIES)}.")
    module, _, function = STRATEGIES[name].partition(":")
    found: Strategy = getattr(import_module(f"{__name__}.{module}"), function)
    return found


def can_plan(name: str, problem: Problem) -> None:
    """Raise an error if the problem is too large for the strategy, without importing it."""
    most = MOST_CALLS.get(name)
    if most is not None and len(problem.calls) > most:
        raise WrongInput(
            f"{name} plans at most {most:,} calls, and this problem has {len(problem.calls):,}; use search or auto."
        )
