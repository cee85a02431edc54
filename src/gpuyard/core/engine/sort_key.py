"""Who goes before whom: the sort key of the queue. Smaller goes first.

A sort key is (borrowing, tenant's key, key, number). The first item is 1 for every task of a class that uses all of its
part, while borrowing is allowed: what the other class is entitled to is borrowed only when nobody there wants it. It
is the same for all tasks of a class, so within a class borrowing changes no order. The second is -1 for a task that its
tenant's guarantee still covers, which goes before all that no guarantee covers; else it is the policy's, and 0 for
policies that do not look at tenants. The number breaks ties, so no two are alike.
"""

from gpuyard.core.domain.tenant import QuotaMode
from gpuyard.core.domain.values import TaskId
from gpuyard.core.engine.quota import TenantUsage
from gpuyard.core.engine.state import State
from gpuyard.core.engine.task import Task

SortKey = tuple[int, float, float, TaskId]

GUARANTEED = -1.0
"""The tenant's key of a task that its tenant's guarantee covers."""


def sort_key(state: State, task: Task, at: float) -> SortKey:
    """A waiting task's place among all."""
    borrowing = is_borrowing(state, task.class_index)
    need = task.group.line.shape.need_milli if task.group is not None else 0
    return (borrowing, key_of_tenant(state, task.tenant_usage, need, at), task.key, task.id)


def key_of_tenant(state: State, usage: TenantUsage, need_milli: int, at: float) -> float:
    """What a tenant contributes to the sort key of a task that needs so much."""
    if state.guarantees and usage.claims(need_milli):
        return GUARANTEED
    tenant_key = state.policy.tenant_key
    return tenant_key(usage, at, state.settings) if tenant_key else 0.0


def is_borrowing(state: State, class_index: int) -> int:
    """1 if whatever a class uses from now on is borrowed."""
    usage = state.classes[class_index]
    return int(state.split.mode is QuotaMode.BORROW and usage.used >= usage.guarantee)
