"""Who goes before whom. Smaller goes first.

A standing is (borrowing, tenant's key, key, number). The first item is 1 for a task that would use more than its
class's part while borrowing is allowed: GPUs that somebody is entitled to are borrowed only when no one entitled wants
them. The second is 0 for policies that do not look at tenants. The number breaks ties, so no two are alike.
"""

from gpuyard.domain.tenant import QuotaMode
from gpuyard.domain.values import TaskId
from gpuyard.engine.state import State
from gpuyard.engine.task import Task

Standing = tuple[int, float, float, TaskId]


def standing(state: State, task: Task, need_milli: int, at: float) -> Standing:
    """A waiting task's place among all."""
    borrowing = is_borrowing(state, task.place, need_milli)
    tenant_key = state.policy.tenant_key
    by_tenant = tenant_key(task.book, at, state.settings) if tenant_key else 0.0
    return (borrowing, by_tenant, task.key, task.id)


def is_borrowing(state: State, place: int, need_milli: int) -> int:
    """1 if a class would use more than its part with this."""
    book = state.classes[place]
    return int(state.split.mode is QuotaMode.BORROW and book.used + need_milli > book.guarantee)
