"""`heft_affinity`: upward rank, model affinity, look-ahead and preloading; the best of some thirty list schedules.

A GPU goes on with the model it holds while that has work, and changes to where most work waits for each GPU there; how
much that takes, how far it looks ahead and which call goes first are settings (`compiled/decoding.py`). No settings
are the best for every problem, and a schedule takes about a microsecond a call, so all of
`portfolio.csv` are tried; they were chosen as `benchmarks/choose_portfolio.py` does. Very
large problems get the first few of them only.

Good at any size, alone where problems are so large that no search gets anywhere, and as the start of searches. The seed
does nothing here; `rounds` is how many settings are tried.
"""

import csv
from importlib.resources import files
from typing import Final

from gpuyard.plan.planner.compiled.decoding import ListSettings
from gpuyard.plan.planner.compiled.list_scheduler import ListScheduler
from gpuyard.plan.planner.compiled.timing import order_of, timed
from gpuyard.plan.planner.plan import Plan
from gpuyard.plan.planner.problem import Problem
from gpuyard.plan.planner.strategies import SearchBudget

WEIGHTS: Final = ListSettings._fields[:-1]


def _portfolio() -> tuple[ListSettings, ...]:
    """The rows of `portfolio.csv`, which is a part of this module as its text is."""
    rows = csv.DictReader(files(__package__).joinpath("portfolio.csv").read_text("utf-8").splitlines())
    return tuple(
        ListSettings(**{name: float(row[name]) for name in WEIGHTS}, backwards=row["backwards"] == "yes")
        for row in rows
    )


PORTFOLIO: Final = _portfolio()
"""The settings that are tried, each the best addition to those before it over problems of all families and many sizes."""

MOST_CALLS: Final = 8_000_000
"""So many calls are scheduled in all, though every call twice at least."""


def schedules(calls: int) -> int:
    """How many of the portfolio are tried."""
    return min(len(PORTFOLIO), max(2, MOST_CALLS // max(1, calls)))


def heft_affinity(problem: Problem, budget: SearchBudget) -> Plan:
    """The shortest plan of the portfolio."""
    scheduler = ListScheduler(problem)
    many = schedules(len(problem.calls)) if budget.rounds is None else budget.rounds
    best: Plan | None = None
    for settings in PORTFOLIO[:many]:
        if best is not None and not budget.keep_going():
            break
        plan = scheduler.plan(settings)
        if best is None or plan.makespan_s < best.makespan_s:
            best = plan
            budget.better(plan)
    assert best is not None
    return timed(problem, best.gpu, order_of(problem, best))
