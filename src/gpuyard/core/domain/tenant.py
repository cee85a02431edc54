"""Tenants with their limits, and the split of the cluster between the two task classes."""

from enum import StrEnum

from gpuyard.core.domain.values import TenantId, Value


class QuotaMode(StrEnum):
    """Whether a class may use GPUs that the other class leaves idle."""

    STRICT = "strict"
    """A class never uses more than its part."""
    BORROW = "borrow"
    """A class may use idle GPUs of the other class, and returns them when the other class needs its part."""
    NONE = "none"
    """There is no split: either class may use every GPU, and neither has a claim against the other."""


class Split(Value, frozen=True):
    """The split of the GPUs between online and batch tasks. It limits numbers; no GPU is tied to a class."""

    online_percent: float = 0.7
    batch_percent: float = 0.3
    mode: QuotaMode = QuotaMode.STRICT

    def online_gpus(self, total: int) -> int:
        """Return the online part of `total` GPUs, rounded half up. Batch gets the rest, so no GPU is unassigned."""
        return int(total * self.online_percent + 0.5)


class Budget(Value, frozen=True):
    """The GPU-hours a tenant may use in each period. Once they are used up, none of its tasks starts."""

    gpu_hours: float
    period_seconds: float


class Tenant(Value, frozen=True):
    """A group of users with common limits."""

    id: TenantId
    max_gpus: int | None = None
    """The maximum number of GPUs in use at the same time; None: no limit."""
    max_gpus_by_model: tuple[tuple[str, int], ...] = ()
    """`max_gpus` for individual GPU models, sorted."""
    guaranteed_gpus: int | None = None
    """GPUs the tenant can reclaim from tenants above their guarantee. None: it reclaims none, and none are reclaimed
    from it."""
    weight: float = 1.0
    """Its weight under fair share."""
    budget: Budget | None = None
    max_open_tasks: int | None = None
    """The maximum number of tasks that have not ended; None: the default of the settings."""
