"""Quota: who may use how much. Every GPU in use is booked to a class and to a tenant, in thousandths.

`check_quota` is the rule: may a tenant and a class use so much more? `closed_by_model` is its second half, for limits that
hold on some device groups only: on GPU models, and for tasks that count for more on some nodes than on others. Scheduling,
reservations, advice and `explain` call these two. Preemption asks `left_for` for what may be taken; elastic pools project usage to
nodes that are not there yet; a request above the own maximum of its tenant is refused at submission (`handlers/tasks.py`).

Each usage record has a *limit* (never above it when a placement is made) and a *guarantee* (what its owner can take back from
others that use more than theirs; a tenant without one has a guarantee of 0). A strict split is a limit on each class; with
borrowing it is a guarantee instead, and the limit is off; without a split there is neither. The two class parts always add up
to all GPUs, so no GPU is left to nobody, at any size of the yard.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

from gpuyard.core.domain import refusals as no
from gpuyard.core.domain.tenant import QuotaMode, Split, Tenant
from gpuyard.core.domain.values import MILLI, TaskClass, TenantId
from gpuyard.core.placement.device_group_mask import DeviceGroupMask
from gpuyard.core.placement.index import Index
from gpuyard.core.placement.shape import Shape

if TYPE_CHECKING:
    from gpuyard.core.engine.task import Task

UNLIMITED = 1 << 62

CLASSES = (TaskClass.ONLINE, TaskClass.BATCH)
ONLINE, BATCH = 0, 1
"""The index of each class in every pair that is kept by class."""


class ClassUsage:
    """What one class uses and may use."""

    __slots__ = ("guarantee", "limit", "task_class", "used")

    def __init__(self, task_class: TaskClass) -> None:
        self.task_class = task_class
        self.used = 0
        self.limit = 0
        self.guarantee = 0

    def fits(self, need_milli: int) -> bool:
        """Whether it may use so much more."""
        return self.used + need_milli <= self.limit


class TenantUsage:
    """What one tenant uses, used, and may use."""

    __slots__ = (
        "awaited",
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
        """Somebody set its limits; else they are the default ones, and change with those."""
        self.open_tasks = 0
        self.used = 0
        self.used_by_model: dict[str, int] = {}
        """Kept only for the models that have a limit."""
        self.decayed_gpu_seconds = 0.0
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

    def fits(self, need_milli: int) -> bool:
        """Whether it may use so much more, its budget aside."""
        return self.used + need_milli <= self.limit

    def can_pay(self, at: float) -> bool:
        """Whether anything is left of its budget, if it has one."""
        return self.tenant.budget is None or self.budget_left(at) > 0

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
        self.decayed_gpu_seconds = self.decayed_gpu_seconds * fade + rate * half_life * 1.4426950408889634 * (
            1.0 - fade
        )
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
        faded: float = self.decayed_gpu_seconds * 2.0 ** (-(at - self.since) / half_life)
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


class Charge(Protocol):
    """A reservation, as far as quotas are concerned: what will be charged to whom once its task starts."""

    task: "Task"
    need_milli: int


class Remaining(NamedTuple):
    """What the quotas of a task have left, in thousandths of a GPU."""

    in_class: int
    in_tenant: int

    @property
    def least(self) -> int:
        """What both of them have left."""
        return min(self)


def left_for(task: "Task", classes: Sequence[ClassUsage], reserved: Sequence[Charge] = ()) -> Remaining:
    """What class and tenant of a task have left, besides reservations that go before it."""
    usage, tenant = classes[task.class_index], task.tenant_usage
    in_class, in_tenant = usage.limit - usage.used, tenant.limit - tenant.used
    for charge in reserved:
        if charge.task.class_index == task.class_index:
            in_class -= charge.need_milli
        if charge.task.tenant_usage is tenant:
            in_tenant -= charge.need_milli
    return Remaining(in_class, in_tenant)


def check_quota(task: "Task", need_milli: int, classes: Sequence[ClassUsage], at: float) -> type[no.Refusal] | None:
    """Whether class and tenant of a task may use so much more; if not, which refusal that is: the one that lasts longest."""
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
    kind: type[no.Refusal], task: "Task", need_milli: int, classes: Sequence[ClassUsage], at: float
) -> no.Refusal:
    """A verdict in words, with the figures of now."""
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
    """Device groups of the GPU models of which a tenant may not use so many more."""
    closed: DeviceGroupMask = 0
    for model, limit in tenant.model_limits.items():
        left = limit - tenant.used_by_model.get(model, 0)
        if shape.need_milli > left:
            closed |= index.by_model.get(model, 0)
        elif shape.needs is not None:
            closed |= index.by_model.get(model, 0) & shape.above_quota(left)
    return closed


def is_at_limit(
    task: "Task", shape: Shape, need_milli: int, classes: Sequence[ClassUsage], index: Index, at: float
) -> bool:
    """Whether a quota stops a task that needs so much, on any of the device groups it could use."""
    if not need_milli:
        return False
    if check_quota(task, need_milli, classes, at) is not None:
        return True
    return bool(task.tenant_usage.model_limits and closed_by_model(task.tenant_usage, shape, index) & shape.eligible)


def set_parts(online: ClassUsage, batch: ClassUsage, split: Split, total_gpus: int) -> None:
    """Divide the GPUs there are between the classes. A part that is all of them limits nothing: there are no others."""
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
