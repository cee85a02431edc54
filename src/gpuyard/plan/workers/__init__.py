"""WHO HOLDS THE MODELS: workers that load, hold, unload and call models for a plan: local processes, Ray actors.

    follow ──── Executor (pure) ──── what to do, in numbers
      │
      ├─ orders ──► Pool.send   ──► a worker for each GPU: a process, a Ray actor
      │                                   └─ ModelHost: the models it holds, each in a runtime
      └─ events ◄── Pool.wait   ◄── replies, and workers that are gone     (python, command, openai, virtual)

`run_plan` is the way in. `plans` speaks with the planner, `leases` with a yard that lends the GPUs.
"""

from enum import StrEnum
from typing import TYPE_CHECKING


class On(StrEnum):
    """Where workers live: processes of this machine, or actors of a Ray cluster."""

    LOCAL = "local"
    RAY = "ray"


if TYPE_CHECKING:
    from gpuyard.plan.workers.running import PlanRun as PlanRun
    from gpuyard.plan.workers.running import RunWatch as RunWatch
    from gpuyard.plan.workers.running import run_plan as run_plan
else:

    def __getattr__(name: str) -> object:
        """The function that runs plans, loaded when it is asked for."""
        if name in {"PlanRun", "RunWatch", "run_plan"}:
            from gpuyard.plan.workers import running

            return getattr(running, name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
