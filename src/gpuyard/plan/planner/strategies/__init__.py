"""Strategies: one file per strategy, and the registry.

A strategy is a function that takes a problem and a budget and returns a valid plan. Its module is imported on first
use.
"""

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from math import inf
from typing import Final

from gpuyard.core.domain.errors import WrongInput
from gpuyard.input.error_location import shortened
from gpuyard.plan.planner.plan import Plan
from gpuyard.plan.planner.problem import Problem


@dataclass(frozen=True, slots=True)
class SearchBudget:
    """Limits of a search.

    A search is one fixed sequence of steps for each seed, and a limit only says where it ends. So more time never gives
    a worse plan, and the same work gives the same plan. `work_s` counts work, not time: a second is what a core did in
    a second when the steps were measured (`search.WORK`). `keep_going` is what the clock and the user say; a search
    that it ends depends on the machine.
    """

    seed: int = 0
    rounds: int | None = None
    """The work of so many list schedules of the problem; other strategies have their own rounds."""
    keep_going: Callable[[], bool] = lambda: True
    """Called every few milliseconds; once False, it must stay False. A first plan is always made."""
    work_s: float | None = None
    """None: no limit but `rounds`, and without that each strategy has its own."""
    better: Callable[[Plan], None] = lambda _plan: None
    """Called with each plan that is better than all before."""
    left_s: Callable[[], float] = lambda: inf
    """Returns the seconds that are left on the clock, for steps that cannot be interrupted."""
    idle_rate: float | None = None
    """How idle the GPUs are, which determines the weights of `pareto`; None: as idle as the shortest plan leaves them."""


OF_A_SECOND: Final = 0.7
"""The work that a search does in a second of its time limit. The rest is reserve: a slower or busier core does the same work
in the time, and returns the same plan."""


def within(
    seconds: float,
    elapsed_s: Callable[[], float],
    *,
    seed: int = 0,
    stopped: Callable[[], bool] = lambda: False,
    better: Callable[[Plan], None] = lambda _plan: None,
) -> SearchBudget:
    """Return the budget of a search that may take so many seconds of a clock."""
    return SearchBudget(
        seed,
        keep_going=lambda: not stopped() and elapsed_s() < seconds,
        work_s=OF_A_SECOND * seconds,
        better=better,
        left_s=lambda: max(0.0, seconds - elapsed_s()),
    )


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
    check_name(name)
    module, _, function = STRATEGIES[name].partition(":")
    found: Strategy = getattr(import_module(f"{__name__}.{module}"), function)
    return found


def check_name(name: str) -> None:
    """Raise an error if there is no strategy of this name, without importing any."""
    if name not in STRATEGIES:
        raise WrongInput(f"Unknown strategy {shortened(name)!r}; available strategies: {', '.join(STRATEGIES)}.")


def can_plan(name: str, problem: Problem) -> None:
    """Raise an error if the problem is too large for the strategy, without importing it."""
    most = MOST_CALLS.get(name)
    if most is not None and len(problem.calls) > most:
        raise WrongInput(
            f"{name} plans at most {most:,} calls, and this problem has {len(problem.calls):,}; use search or auto."
        )
