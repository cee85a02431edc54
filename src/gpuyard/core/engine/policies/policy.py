"""What a policy is."""

from collections.abc import Callable
from dataclasses import dataclass

from gpuyard.core.domain.settings import Settings
from gpuyard.core.engine.quota import TenantUsage
from gpuyard.core.engine.task import Task


@dataclass(frozen=True, slots=True)
class Policy:
    """One way to order a queue; gpuyard.core.engine.policies says what each question means."""

    name: str
    starts_all: bool
    """The promise of liveness: every task that could run starts in the end, if the cluster keeps freeing GPUs."""
    key: Callable[[Task, float, Settings], float]
    tenant_key: Callable[[TenantUsage, float, Settings], float] | None = None
    rank: Callable[[Task, float, Settings], float] | None = None
    margin: float = 0.0
    changes_at: Callable[[Task, float, Settings], float | None] | None = None
    drifts: bool = False
    """Ranks of running tasks change all the time and may rise: no wake-up says when a task has the right to stop another."""
    advised: bool = False
    """Whether the engine's advisor, if it has one, is asked where there is a choice (gpuyard.core.engine.scheduling.advice)."""
