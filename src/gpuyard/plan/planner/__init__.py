"""WHAT WOULD BE BEST: offline AI workflows on GPUs that must load and unload models, planned for the shortest makespan.

    file ─► problem_file ─► Problem ─► a strategy ─► Plan ─► checker (shares no code with the strategies)
                               └─────► bounds: what no plan can beat          └─► measures, pictures, the executor

The functions of `api` are the way in: `read`, `solve`, `compare`, `check`. The rest is pure: the budget of a strategy (a
seed, a number of rounds, `keep_going`) is handed in. Numba, OR-Tools and pymoo load only where they are used.
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
        """The functions of `api`, loaded when they are asked for."""
        if name in {"Solution", "check", "compare", "read", "read_plan", "solve"}:
            from gpuyard.plan.planner import api

            return getattr(api, name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
