"""The sort key that orders the queue. Smaller keys go first.

A sort key is (borrowing, tenant key, key, number). The first item is 1 for every task of a class that uses all of its
part, while borrowing is allowed: GPUs the other class is entitled to are borrowed only when no task there wants them.
It is the same for all tasks of a class, so borrowing does not change the order within a class. The second item is -1
for a task that its tenant's guarantee still covers, which therefore goes before all tasks without such a guarantee;
otherwise the policy sets it, and it is 0 for policies that ignore tenants. The number breaks ties, so all keys are
different.
"""

from gpuyard.core.domain.tenant import QuotaMode
from gpuyard.core.domain.values import TaskId
from gpuyard.core.engine.quota import TenantUsage
from gpuyard.core.engine.state import State
from gpuyard.core.engine.task import OpenTask

SortKey = tuple[int, float, float, TaskId]

GUARANTEED = -1.0
"""Tenant key of a task that its tenant's guarantee covers."""


def sort_key(state: State, task: OpenTask, at: float) -> SortKey:
    """Return the sort key of a waiting task."""
    borrowing = is_borrowing(state, task.class_index)
    need = task.group.line.shape.need_milli if task.group is not None else 0
    return (borrowing, key_of_tenant(state, task.tenant_usage, need, at), task.key, task.id)


def key_of_tenant(state: State, usage: TenantUsage, need_milli: int, at: float) -> float:
    """Return the tenant's item of the sort key for a task that needs `need_milli`."""
    if state.guarantees and usage.claims(need_milli):
        return GUARANTEED
    tenant_key = state.policy.tenant_key
    return tenant_key(usage, at, state.settings) if tenant_key else 0.0


def is_borrowing(state: State, class_index: int) -> int:
    """Return 1 if all further usage of a class is borrowed, else 0."""
    usage = state.classes[class_index]
    return int(state.split.mode is QuotaMode.BORROW and usage.used >= usage.guarantee)
