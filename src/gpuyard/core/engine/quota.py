"""Quota: limits of tenants and classes. Every GPU in use is charged to a class and to a tenant, in thousandths.

`check_quota` is the rule: may a tenant and a class use this much more? `closed_by_model` complements it for limits that
apply to some device groups only: limits on GPU models, and tasks that are charged more on some nodes than on others.
Scheduling, reservations, advice and `explain` call these two. Preemption calls `left_for` to find what may be taken;
elastic pools project usage to nodes that have not joined yet; a request above its tenant's own maximum is refused at
submission (`handlers/tasks.py`).

Each usage record has a *limit* (never exceeded when a placement is made) and a *guarantee* (what its owner can reclaim
from others that use more than theirs; a tenant without one has a guarantee of 0). A strict split is a limit on each
class; with borrowing it is a guarantee instead, and there is no limit; without a split there is neither. The two class
parts always add up to all GPUs, so every GPU belongs to a class, at any size of the cluster.
"""

from collections.abc import Sequence
from math import inf
from typing import TYPE_CHECKING, NamedTuple, Protocol

from gpuyard.core.domain import refusals as no
from gpuyard.core.domain.tenant import QuotaMode, Split, Tenant
from gpuyard.core.domain.values import MILLI, TaskClass, TenantId
from gpuyard.core.placement.device_group_mask import DeviceGroupMask, without
from gpuyard.core.placement.index import Index
from gpuyard.core.placement.shape import Shape

if TYPE_CHECKING:
    from gpuyard.core.engine.task import OpenTask

UNLIMITED = 1 << 62
ROUNDING = 1e-3
"""Seconds after which a budget is checked again that is not quite spent when it should be."""

CLASSES = (TaskClass.ONLINE, TaskClass.BATCH)
ONLINE, BATCH = 0, 1
"""Index of each class in every pair that is kept by class."""


class ClassUsage:
    """Usage, limit and guarantee of one class, in thousandths of a GPU."""

    __slots__ = ("guarantee", "limit", "task_class", "used")

    def __init__(self, task_class: TaskClass) -> None:
        self.task_class = task_class
        self.used = 0
        self.limit = 0
        self.guarantee = 0

    def fits(self, need_milli: int) -> bool:
        """Whether the class may use `need_milli` more."""
        return self.used + need_milli <= self.limit


class TenantUsage:
    """Current and past usage, limits and guarantee of one tenant; GPUs in thousandths."""

    __slots__ = (
        "checked_at",
        "decayed_gpu_seconds",
        "given",
        "guarantee",
        "limit",
        "model_limits",
        "open_tasks",
        "period_began",
        "since",
        "spent_gpu_seconds",
        "tenant",
        "used",
        "used_by_model",
    )  # fmt: skip

    def __init__(self, tenant: Tenant, at: float) -> None:
        self.given = False
        """Limits were set for this tenant; otherwise it has the default limits, and follows their changes."""
        self.open_tasks = 0
        self.used = 0
        self.used_by_model: dict[str, int] = {}
        """Usage by GPU model; kept only for models that have a limit."""
        self.decayed_gpu_seconds = 0.0
        """GPU-seconds used, exponentially decayed; for fair share."""
        self.spent_gpu_seconds = 0.0
        """GPU-seconds used in the current budget period, up to `since`."""
        self.period_began = at
        self.since = at
        self.checked_at = inf
        """Instant of the timer that checks whether the budget is spent; infinity: none is set."""
        self.set(tenant)

    @property
    def id(self) -> TenantId:
        """The tenant's name."""
        return self.tenant.id

    def set(self, tenant: Tenant) -> None:
        """Set new limits."""
        self.tenant = tenant
        self.limit = UNLIMITED if tenant.max_gpus is None else tenant.max_gpus * MILLI
        self.guarantee = (tenant.guaranteed_gpus or 0) * MILLI
        self.model_limits = {model: limit * MILLI for model, limit in tenant.max_gpus_by_model}

    def fits(self, need_milli: int) -> bool:
        """Whether the tenant may use `need_milli` more, regardless of its budget."""
        return self.used + need_milli <= self.limit

    def can_pay(self, at: float) -> bool:
        """Whether the budget is not used up; true if there is no budget."""
        return self.tenant.budget is None or self.budget_left(at) > 0

    def claims(self, need_milli: int) -> bool:
        """Whether the guarantee covers `need_milli` in addition to the present usage."""
        return 0 < need_milli <= self.guarantee - self.used

    def settle(self, at: float, half_life: float) -> None:
        """Bring decayed usage and spending up to `at`; must be called before `used` changes."""
        passed = at - self.since
        if passed <= 0:
            return
        self.since = at
        rate = self.used / MILLI
        fade = 2.0 ** (-passed / half_life)
        # integral of the usage over time, each second decayed by its age; 1.4427 is 1 / ln 2
        self.decayed_gpu_seconds = self.decayed_gpu_seconds * fade + rate * half_life * 1.4426950408889634 * (
            1.0 - fade
        )
        if self.tenant.budget is not None:
            self._spend(at, passed, rate, self.tenant.budget.period_seconds)

    def _spend(self, at: float, passed: float, rate: float, period: float) -> None:
        """Add the usage of the last `passed` seconds; after the end of a period, only that of the new period."""
        if at < self.period_began + period:
            self.spent_gpu_seconds += rate * passed
            return
        self.period_began += (at - self.period_began) // period * period
        self.spent_gpu_seconds = rate * (at - self.period_began)

    def is_forgettable(self, at: float, half_life: float) -> bool:
        """Whether the record can be deleted: default limits, no open tasks, negligible past usage."""
        if self.given or self.open_tasks:
            return False
        if self.tenant.budget is not None and self.budget_left(at) < self.tenant.budget.gpu_hours * 3600:
            return False
        faded: float = self.decayed_gpu_seconds * 2.0 ** (-(at - self.since) / half_life)
        return faded < 1.0

    def budget_left(self, at: float) -> float:
        """Return the GPU-seconds left in the current budget period; infinity: there is no budget."""
        budget = self.tenant.budget
        if budget is None:
            return float("inf")
        if at >= self.period_began + budget.period_seconds:
            into_the_period = (at - self.period_began) % budget.period_seconds
            return budget.gpu_hours * 3600 - self.used / MILLI * into_the_period
        return budget.gpu_hours * 3600 - self.spent_gpu_seconds - self.used / MILLI * max(0.0, at - self.since)

    def spent_at(self, at: float) -> float | None:
        """Return when the present usage will have spent the budget of this period or the next; None: it will not."""
        budget, rate = self.tenant.budget, self.used / MILLI
        if budget is None or rate <= 0:
            return None
        renews_at, left, whole = self.renews_at(at), self.budget_left(at), budget.gpu_hours * 3600
        if left > 0 and at + left / rate < renews_at:
            return at + max(left / rate, ROUNDING)
        return renews_at + whole / rate if whole / rate < budget.period_seconds else None

    def renews_at(self, at: float) -> float:
        """Return when the next budget period begins."""
        assert self.tenant.budget is not None
        period = self.tenant.budget.period_seconds
        return self.period_began + ((at - self.period_began) // period + 1) * period


class Charge(Protocol):
    """The part of a reservation that quotas need: what its task will be charged once it starts."""

    task: "OpenTask"
    need_milli: int


class Remaining(NamedTuple):
    """What the quotas of a task have left, in thousandths of a GPU."""

    in_class: int
    in_tenant: int

    @property
    def least(self) -> int:
        """The smaller of the two."""
        return min(self)


def left_for(task: "OpenTask", classes: Sequence[ClassUsage], reserved: Sequence[Charge] = ()) -> Remaining:
    """Return what the quotas of a task's class and tenant have left after the given reservations."""
    usage, tenant = classes[task.class_index], task.tenant_usage
    in_class, in_tenant = usage.limit - usage.used, tenant.limit - tenant.used
    for charge in reserved:
        if charge.task.class_index == task.class_index:
            in_class -= charge.need_milli
        if charge.task.tenant_usage is tenant:
            in_tenant -= charge.need_milli
    return Remaining(in_class, in_tenant)


def check_quota(task: "OpenTask", need_milli: int, classes: Sequence[ClassUsage], at: float) -> type[no.Refusal] | None:
    """Return the refusal if class or tenant may not use `need_milli` more (the most lasting one); None: they may."""
    if not need_milli:
        return None
    usage, tenant = classes[task.class_index], task.tenant_usage
    if usage.used + need_milli > usage.limit:
        if need_milli > usage.limit:
            return no.ClassQuotaTooSmall
        return no.TenantQuotaTooSmall if need_milli > tenant.limit else no.ClassQuotaFull
    if tenant.tenant.budget is not None and need_milli <= tenant.limit and not tenant.can_pay(at):
        return no.BudgetSpent
    if tenant.used + need_milli > tenant.limit:
        return no.TenantQuotaTooSmall if need_milli > tenant.limit else no.TenantQuotaFull
    return None


def refusal(
    kind: type[no.Refusal], task: "OpenTask", need_milli: int, classes: Sequence[ClassUsage], at: float
) -> no.Refusal:
    """Build a refusal of this kind with the current figures."""
    usage, tenant, needed = classes[task.class_index], task.tenant_usage, need_milli / MILLI
    if kind is no.ClassQuotaTooSmall:
        return no.ClassQuotaTooSmall(usage.task_class, usage.limit // MILLI, needed)
    if kind is no.TenantQuotaTooSmall:
        return no.TenantQuotaTooSmall(tenant.id, tenant.limit // MILLI, needed, -(-need_milli // MILLI))
    if kind is no.ClassQuotaFull:
        return no.ClassQuotaFull(usage.task_class, usage.limit // MILLI, usage.used / MILLI, needed)
    if kind is no.BudgetSpent:
        assert tenant.tenant.budget is not None
        return no.BudgetSpent(tenant.id, tenant.tenant.budget.gpu_hours, tenant.renews_at(at))
    assert kind is no.TenantQuotaFull, f"{kind.__name__} is not about a quota"
    return no.TenantQuotaFull(tenant.id, tenant.limit // MILLI, tenant.used / MILLI, needed)


def closed_by_model(tenant: TenantUsage, shape: Shape, index: Index) -> DeviceGroupMask:
    """Return the device groups of GPU models on which the tenant's limit does not admit the shape."""
    closed: DeviceGroupMask = 0
    for model, limit in tenant.model_limits.items():
        left = limit - tenant.used_by_model.get(model, 0)
        if shape.need_milli > left:
            closed |= index.by_model.get(model, 0)
        elif shape.needs is not None:
            closed |= index.by_model.get(model, 0) & shape.above_quota(left)
    return closed


def is_stopped_by_quota(task: "OpenTask", shape: Shape, classes: Sequence[ClassUsage], index: Index, at: float) -> bool:
    """Whether a quota stops a task on so many of the device groups it could use that it cannot start."""
    need, tenant = shape.need_milli, task.tenant_usage
    if not need:
        return False
    if check_quota(task, need, classes, at) is not None:
        return True
    if not tenant.model_limits:
        return False
    allowed = without(shape.eligible, closed_by_model(tenant, shape, index))
    return not allowed or (shape.nodes > 1 and len(index.hosts_of(allowed)) < shape.nodes)


def is_at_limit(
    task: "OpenTask", shape: Shape, need_milli: int, classes: Sequence[ClassUsage], index: Index, at: float
) -> bool:
    """Whether a quota stops a task that needs `need_milli`, on any of the device groups it could use."""
    if not need_milli:
        return False
    if check_quota(task, need_milli, classes, at) is not None:
        return True
    return bool(task.tenant_usage.model_limits and closed_by_model(task.tenant_usage, shape, index) & shape.eligible)


def set_parts(online: ClassUsage, batch: ClassUsage, split: Split, total_gpus: int) -> None:
    """Divide the GPUs between the classes. A part that includes all GPUs is not a limit: there are no others."""
    if split.mode is QuotaMode.NONE:
        for usage in (online, batch):
            usage.guarantee = usage.limit = UNLIMITED
        return
    all_of_them = total_gpus * MILLI
    online.guarantee = split.online_gpus(total_gpus) * MILLI
    batch.guarantee = all_of_them - online.guarantee
    for usage in (online, batch):
        is_limited = split.mode is QuotaMode.STRICT and usage.guarantee < all_of_them
        usage.limit = usage.guarantee if is_limited else UNLIMITED
