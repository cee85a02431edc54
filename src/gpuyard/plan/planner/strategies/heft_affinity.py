"""`heft_affinity`: upward rank, model affinity, look-ahead and preloading; the best of about thirty list schedules.

A GPU keeps its model while there is work for it, then switches to the model with the most waiting work per GPU that
holds it. The threshold for a switch, the look-ahead and the order of calls are settings (`compiled/decoding.py`). No
settings are best for every problem, and a schedule takes about a microsecond per call, so all rows of `portfolio.csv`
are tried; they were chosen with `benchmarks/choose_portfolio.py`. Very large problems only try the first few.

Good at any size: on its own for problems too large to search, and as the start of searches. The seed has no effect;
`rounds` is the number of settings that are tried.
"""

import csv
from importlib.resources import files
from itertools import product
from typing import Final

from gpuyard.plan.planner.compiled.decoding import ListSettings
from gpuyard.plan.planner.compiled.list_scheduler import ListScheduler
from gpuyard.plan.planner.compiled.timing import order_of, timed
from gpuyard.plan.planner.plan import Plan
from gpuyard.plan.planner.problem import Problem
from gpuyard.plan.planner.strategies import SearchBudget

WEIGHTS: Final = ListSettings._fields[:-1]


def _portfolio() -> tuple[ListSettings, ...]:
    """Read the rows of `portfolio.csv`, which ships with this module."""
    rows = csv.DictReader(files(__package__).joinpath("portfolio.csv").read_text("utf-8").splitlines())
    return tuple(
        ListSettings(**{name: float(row[name]) for name in WEIGHTS}, backwards=row["backwards"] == "yes")
        for row in rows
    )


PORTFOLIO: Final = _portfolio()
"""The settings to try, each the best addition to those before it over problems of all families and many sizes."""

MOST_CALLS: Final = 8_000_000
"""The total number of calls scheduled over all settings; at least two settings are tried."""


def schedules(calls: int) -> int:
    """Return how many settings of the portfolio are tried."""
    return min(len(PORTFOLIO), max(2, MOST_CALLS // max(1, calls)))


def heft_affinity(problem: Problem, budget: SearchBudget) -> Plan:
    """Return the shortest plan of the portfolio."""
    # With preloading every setting is also tried as without it and timed with it: that is never longer than without.
    schedulers = [ListScheduler(problem, preload=ahead) for ahead in ((False, True) if problem.preload else (False,))]
    many = schedules(len(problem.calls)) if budget.rounds is None else budget.rounds
    best: Plan | None = None
    for settings, scheduler in product(PORTFOLIO[:many], schedulers):
        if best is not None and not budget.keep_going():
            break
        plan = scheduler.plan(settings)
        if best is None or plan.makespan_s < best.makespan_s:
            best = plan
            budget.better(plan)
    assert best is not None
    return timed(problem, best.gpu, order_of(problem, best))
