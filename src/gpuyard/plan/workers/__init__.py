"""Workers: load, hold, unload and call models for a plan, as local processes, in tasks of a cluster, or as Ray actors.

    follow ──── Executor (pure) ──── commands, with calls, models and GPUs as numbers
      │
      ├─ orders ──► Pool.send   ──► a worker for each GPU: a process here or in a task, a Ray actor
      │                                   └─ ModelHost: the models it holds, each in a runtime
      └─ events ◄── Pool.wait   ◄── replies, and lost workers             (python, command, openai, virtual)

`run_plan` is the entry point. `plans` is the interface to the planner, `leases` borrows GPUs from a cluster,
`remote` and `remote_worker` are the two ends of the workers on them.
"""

from enum import StrEnum
from typing import TYPE_CHECKING


class On(StrEnum):
    """Where workers run: as processes of this machine, or as actors of a Ray cluster."""

    LOCAL = "local"
    RAY = "ray"


if TYPE_CHECKING:
    from gpuyard.plan.workers.running import PlanRun as PlanRun
    from gpuyard.plan.workers.running import RunWatch as RunWatch
    from gpuyard.plan.workers.running import run_plan as run_plan
else:

    def __getattr__(name: str) -> object:
        """Import the function that runs plans on first use."""
        if name in {"PlanRun", "RunWatch", "run_plan"}:
            from gpuyard.plan.workers import running

            return getattr(running, name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
