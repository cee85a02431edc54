"""Online before batch, then by priority, and waiting counts: every `aging_seconds` are worth one point.

Promise: a task of higher priority goes first and may stop running batch work of lower priority that allows it; nobody
waits for ever, because each point of difference is made up for by a finite wait (a batch task of priority 0 overtakes
fresh online work of priority 100 after 200 × `aging_seconds`).
Choose it for people who share GPUs and agree on what is urgent. It does not know how long tasks run, and a user who
asks for the highest priority always gets it: tenants and quotas are the answer to that, not this policy.

All tasks age at the same rate, so their order never changes while they wait and "since when, less its points" is a key
that can be computed once. Ageing moves a task up the queue; it never gives it the right to stop another.
"""

from gpuyard.core.domain.settings import Settings
from gpuyard.core.domain.values import TaskClass
from gpuyard.core.engine.policies.policy import Policy
from gpuyard.core.engine.task import Task


def _points(task: Task) -> int:
    return task.priority + (100 if task.spec.task_class is TaskClass.ONLINE else 0)


def _key(task: Task, now: float, settings: Settings) -> float:  # noqa: ARG001
    return task.submitted_at - _points(task) * settings.aging_seconds


def _rank(task: Task, now: float, settings: Settings) -> float:  # noqa: ARG001
    return -_points(task)


POLICY: Policy = Policy("priority", starts_all=True, key=_key, rank=_rank)
