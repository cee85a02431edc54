"""Plans: offline workflows of model calls, planned, executed and served by workers. See README.md.

from gpuyard import plan

problem = plan.read("problem.yaml")
solution = plan.solve(problem, seconds=10)
print(solution.makespan_s, solution.gap)
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gpuyard.plan.planner.api import Solution as Solution
    from gpuyard.plan.planner.api import check as check
    from gpuyard.plan.planner.api import compare as compare
    from gpuyard.plan.planner.api import read as read
    from gpuyard.plan.planner.api import read_plan as read_plan
    from gpuyard.plan.planner.api import solve as solve
    from gpuyard.plan.workers import run_plan as run_plan
else:

    def __getattr__(name: str) -> object:
        """Import the planner or the workers on first use."""
        if name in {"Solution", "check", "compare", "read", "read_plan", "solve"}:
            return getattr(import_module("gpuyard.plan.planner.api"), name)
        if name == "run_plan":
            return import_module("gpuyard.plan.workers").run_plan
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
