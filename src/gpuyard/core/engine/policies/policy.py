"""The type of a policy."""

from collections.abc import Callable
from dataclasses import dataclass

from gpuyard.core.domain.settings import Settings
from gpuyard.core.engine.quota import TenantUsage
from gpuyard.core.engine.task import OpenTask


@dataclass(frozen=True, slots=True)
class Policy:
    """One way to order the queue; gpuyard.core.engine.policies describes the functions."""

    name: str
    starts_all: bool
    """Liveness: every task that fits the cluster starts eventually, if GPUs keep becoming free."""
    key: Callable[[OpenTask, float, Settings], float]
    tenant_key: Callable[[TenantUsage, float, Settings], float] | None = None
    rank: Callable[[OpenTask, float, Settings], float] | None = None
    margin: float = 0.0
    gained: Callable[[OpenTask, Settings], float] | None = None
    """By how much the rank of a task that keeps its progress falls when it starts; None: it does not fall."""
    spares: Callable[[OpenTask, OpenTask], bool] | None = None
    """Whether a waiting task (the first) never preempts a running one for its rank; None: the rank alone decides."""
    changes_at: Callable[[OpenTask, float, Settings], float | None] | None = None
    drifts: bool = False
    """Ranks of running tasks change continuously and may rise, so no wake-up marks the time at which a task may preempt another."""
    waits_for_faster_gpus: bool = False
    """A task that declares its speeds and cannot be moved later waits if that ends it much earlier than slow GPUs that are free."""
    advised: bool = False
    """Consult the advisor of the engine, if it has one, when there are several candidates (gpuyard.core.engine.scheduling.advice)."""
