"""Quota: who may use how much. Every GPU in use is booked to a class and to a tenant, in thousandths.

A book has a *limit* (never above it when a placement is made) and a *guarantee* (what its owner can take back from
others that use more than theirs; a tenant without one has a guarantee of 0). A strict split is a limit on each class; with
borrowing it is a guarantee instead, and the limit is off; without a split there is neither. The two class parts always add up
to all GPUs, so no GPU is left to nobody, at any size of the yard.
"""

from gpuyard.core.domain.tenant import QuotaMode, Split, Tenant
from gpuyard.core.domain.values import MILLI, TaskClass, TenantId

UNLIMITED = 1 << 62

CLASSES = (TaskClass.ONLINE, TaskClass.BATCH)
ONLINE, BATCH = 0, 1
"""The index of each class in every pair that is kept by class."""


class ClassBook:
    """What one class uses and may use."""

    __slots__ = ("guarantee", "limit", "task_class", "used")

    def __init__(self, task_class: TaskClass) -> None:
        self.task_class = task_class
        self.used = 0
        self.limit = 0
        self.guarantee = 0


class TenantBook:
    """What one tenant uses, used, and may use."""

    __slots__ = (
        "awaited", "given", "guarantee", "limit", "model_limits", "open_tasks", "period_began", "since", "spent_gpu_seconds",
        "tenant", "usage", "used", "used_by_model",
    )  # fmt: skip

    def __init__(self, tenant: Tenant, at: float) -> None:
        self.given = False
        """Somebody set its limits; else they are the default ones, and change with those."""
        self.open_tasks = 0
        self.used = 0
        self.used_by_model: dict[str, int] = {}
        """Kept only for the models that have a limit."""
        self.usage = 0.0
        """Decayed GPU-seconds, for fair share."""
        self.spent_gpu_seconds = 0.0
        """GPU-seconds of this budget period."""
        self.period_began = at
        self.awaited = 0.0
        """The beginning of a period that somebody waits for already."""
        self.since = at
        self.set(tenant)

    @property
    def id(self) -> TenantId:
        """The tenant's name."""
        return self.tenant.id

    def set(self, tenant: Tenant) -> None:
        """Take over new limits."""
        self.tenant = tenant
        self.limit = UNLIMITED if tenant.max_gpus is None else tenant.max_gpus * MILLI
        self.guarantee = (tenant.guaranteed_gpus or 0) * MILLI
        self.model_limits = {model: limit * MILLI for model, limit in tenant.max_gpus_by_model}

    def claims(self, need_milli: int) -> bool:
        """Whether its guarantee covers so much more than it uses."""
        return 0 < need_milli <= self.guarantee - self.used

    def settle(self, at: float, half_life: float) -> None:
        """Bring usage and spending up to now; called before `used` changes."""
        passed = at - self.since
        if passed <= 0:
            return
        self.since = at
        rate = self.used / MILLI
        fade = 2.0 ** (-passed / half_life)
        # the integral of what runs, each second faded by its age
        self.usage = self.usage * fade + rate * half_life * 1.4426950408889634 * (1.0 - fade)
        if self.tenant.budget is not None:
            self._spend(at, passed, rate, self.tenant.budget.period_seconds)

    def _spend(self, at: float, passed: float, rate: float, period: float) -> None:
        if at < self.period_began + period:
            self.spent_gpu_seconds += rate * passed
            return
        self.period_began += (at - self.period_began) // period * period
        self.spent_gpu_seconds = rate * (at - self.period_began)

    def is_forgettable(self, at: float, half_life: float) -> bool:
        """Whether nothing would change if it came again as a new tenant: nobody set it, nothing runs, hardly any use counts."""
        if self.given or self.open_tasks:
            return False
        if self.tenant.budget is not None and self.budget_left(at) < self.tenant.budget.gpu_hours * 3600:
            return False
        faded: float = self.usage * 2.0 ** (-(at - self.since) / half_life)
        return faded < 1.0

    def budget_left(self, at: float) -> float:
        """GPU-seconds it may still use in this period."""
        budget = self.tenant.budget
        if budget is None:
            return float("inf")
        if at >= self.period_began + budget.period_seconds:
            into_the_period = (at - self.period_began) % budget.period_seconds
            return budget.gpu_hours * 3600 - self.used / MILLI * into_the_period
        return budget.gpu_hours * 3600 - self.spent_gpu_seconds - self.used / MILLI * max(0.0, at - self.since)

    def renews_at(self, at: float) -> float:
        """When the next budget period begins."""
        assert self.tenant.budget is not None
        period = self.tenant.budget.period_seconds
        return self.period_began + ((at - self.period_began) // period + 1) * period


def set_parts(online: ClassBook, batch: ClassBook, split: Split, total_gpus: int) -> None:
    """Divide the GPUs there are between the classes. A part that is all of them limits nothing: there are no others."""
    if split.mode is QuotaMode.NONE:
        for book in (online, batch):
            book.guarantee = book.limit = UNLIMITED
        return
    all_of_them = total_gpus * MILLI
    online.guarantee = split.online_gpus(total_gpus) * MILLI
    batch.guarantee = all_of_them - online.guarantee
    for book in (online, batch):
        is_limited = split.mode is QuotaMode.STRICT and book.guarantee < all_of_them
        book.limit = book.guarantee if is_limited else UNLIMITED
