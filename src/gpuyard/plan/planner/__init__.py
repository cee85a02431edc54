"""Planner: plans offline AI workflows on GPUs that must load and unload models, for the shortest makespan.

    file ─► problem_file ─► Problem ─► a strategy ─► Plan ─► checker (shares no code with the strategies)
                               └─────► lower bounds           └─► measures, pictures, the executor

The entry points are in `api`: `read`, `solve`, `compare`, `check`. The rest is pure: the budget of a strategy (a seed,
a number of rounds, `keep_going`) is a parameter. Numba, OR-Tools and pymoo are imported only where they are used.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gpuyard.plan.planner.api import Solution as Solution
    from gpuyard.plan.planner.api import check as check
    from gpuyard.plan.planner.api import compare as compare
    from gpuyard.plan.planner.api import read as read
    from gpuyard.plan.planner.api import read_plan as read_plan
    from gpuyard.plan.planner.api import solve as solve
else:

    def __getattr__(name: str) -> object:
        """Import the functions of `api` on first use."""
        if name in {"Solution", "check", "compare", "read", "read_plan", "solve"}:
            from gpuyard.plan.planner import api

            return getattr(api, name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
