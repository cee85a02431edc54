"""Strategies: a file each, and the table of them.

A strategy is a function of a problem and a budget that returns a valid plan. It loads what it needs when it is called.
"""

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Final

from gpuyard.core.domain.errors import WrongInput
from gpuyard.plan.planner.plan import Plan
from gpuyard.plan.planner.problem import Problem


@dataclass(frozen=True, slots=True)
class SearchBudget:
    """How long to try. With `rounds` the same seed gives the same plan on any machine; with the clock it may not."""

    seed: int = 0
    rounds: int | None = None
    keep_going: Callable[[], bool] = lambda: True
    """Asked every few milliseconds; once it says no, it says no for ever. A first plan is always made."""
    used: Callable[[], float] | None = None
    """Which part of the time is gone, 0 to 1, where the time is limited: a search cools down by it."""
    better: Callable[[Plan], None] = lambda _plan: None
    """Told of each plan that is better than those before."""


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
"""Every strategy: where its function is, as `module:function` below this package."""

MOST_CALLS: Final = {"exact": 60, "pareto": 100_000}
"""Of the strategies that refuse larger problems."""


def strategy(name: str) -> Strategy:
    """The strategy of this name, loaded now."""
    if name not in STRATEGIES:
        raise WrongInput(f"There is no strategy {name!r}; there are {', '.join(STRATEGIES)}.")
    module, _, function = STRATEGIES[name].partition(":")
    found: Strategy = getattr(import_module(f"{__name__}.{module}"), function)
    return found


def can_plan(name: str, problem: Problem) -> None:
    """Refuse a problem that is too large for the strategy, without loading it."""
    most = MOST_CALLS.get(name)
    if most is not None and len(problem.calls) > most:
        raise WrongInput(
            f"{name} plans at most {most:,} calls, and this problem has {len(problem.calls):,}: take search, or auto."
        )
