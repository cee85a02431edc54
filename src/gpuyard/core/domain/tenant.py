"""Who pays: tenants, and how the yard is split between the two classes."""

from enum import StrEnum

from gpuyard.core.domain.values import TenantId, Value


class QuotaMode(StrEnum):
    """What the split between online and batch means while the other class leaves GPUs idle."""

    STRICT = "strict"
    """A class never uses more than its part."""
    BORROW = "borrow"
    """It may, and gives the GPUs back when the other class wants its part."""
    NONE = "none"
    """There is no split: either class may use every GPU, and neither has a claim against the other."""


class Split(Value, frozen=True):
    """How the GPUs are divided between online and batch work. It caps counts; it does not own cards."""

    online_percent: float = 0.7
    batch_percent: float = 0.3
    mode: QuotaMode = QuotaMode.STRICT

    def online_gpus(self, total: int) -> int:
        """The online part of `total` GPUs, rounded half up; batch gets all others, so no GPU is left to nobody."""
        return int(total * self.online_percent + 0.5)


class Budget(Value, frozen=True):
    """GPU-hours a tenant may use in each period; nothing new of it starts once they are spent."""

    gpu_hours: float
    period_seconds: float


class Tenant(Value, frozen=True):
    """A group of users with common limits."""

    id: TenantId
    max_gpus: int | None = None
    """Never more than these at once."""
    max_gpus_by_model: tuple[tuple[str, int], ...] = ()
    """The same for single GPU models, sorted."""
    guaranteed_gpus: int | None = None
    """GPUs it can take back from tenants that use more than theirs; none: it has no such claim and nothing is claimed from it."""
    weight: float = 1.0
    """Its part under fair share."""
    budget: Budget | None = None
    max_open_tasks: int | None = None
    """Tasks that have not ended; none: as many as the settings say."""
