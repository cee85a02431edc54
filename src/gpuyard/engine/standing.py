"""Who goes before whom. Smaller goes first.

A standing is (borrowing, tenant's key, key, number). The first item is 1 for every task of a class that uses all of its
part, while borrowing is allowed: what the other class is entitled to is borrowed only when nobody there wants it. It
is the same for all tasks of a class, so within a class borrowing changes no order. The second is 0 for policies that do not look at tenants. The number breaks ties, so no two are alike.
"""

from gpuyard.domain.tenant import QuotaMode
from gpuyard.domain.values import TaskId
from gpuyard.engine.state import State
from gpuyard.engine.task import Task

Standing = tuple[int, float, float, TaskId]


def standing(state: State, task: Task, at: float) -> Standing:
    """A waiting task's place among all."""
    borrowing = is_borrowing(state, task.class_index)
    tenant_key = state.policy.tenant_key
    by_tenant = tenant_key(task.book, at, state.settings) if tenant_key else 0.0
    return (borrowing, by_tenant, task.key, task.id)


def is_borrowing(state: State, class_index: int) -> int:
    """1 if whatever a class uses from now on is borrowed."""
    book = state.classes[class_index]
    return int(state.split.mode is QuotaMode.BORROW and book.used >= book.guarantee)
