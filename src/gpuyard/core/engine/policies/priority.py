"""Online before batch, then by priority, with aging: every `aging_seconds` of waiting are worth one point.

Promise: a task of higher priority is first and may preempt running batch tasks of lower priority that allow it. Every task
starts eventually, because a finite wait makes up for each point of difference (a batch task of priority 0 overtakes new
online tasks of priority 100 after 200 × `aging_seconds`).
Choose it for users who share GPUs and agree on what is urgent. It does not consider run times, and every user may
request the highest priority; tenants and quotas limit that, this policy does not.

All tasks age at the same rate, so their order does not change while they wait, and the submission time minus the points is
a key that is computed once. Aging moves a task up the queue; it does not let the task preempt others.
"""

from gpuyard.core.domain.settings import Settings
from gpuyard.core.domain.values import TaskClass
from gpuyard.core.engine.policies.policy import Policy
from gpuyard.core.engine.task import OpenTask


def _points(task: OpenTask) -> int:
    return task.priority + (100 if task.spec.task_class is TaskClass.ONLINE else 0)


def _key(task: OpenTask, now: float, settings: Settings) -> float:  # noqa: ARG001
    return task.submitted_at - _points(task) * settings.aging_seconds


def _rank(task: OpenTask, now: float, settings: Settings) -> float:  # noqa: ARG001
    return -_points(task)


POLICY: Policy = Policy("priority", starts_all=True, key=_key, rank=_rank)
