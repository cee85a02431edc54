"""First come, first served.

Promise: tasks are placed in order of submission; with backfill `none`, no task overtakes another one on the same nodes.
Choose it as the baseline of comparisons. Short tasks wait for long ones.
"""

from gpuyard.core.domain.settings import Settings
from gpuyard.core.engine.policies.policy import Policy
from gpuyard.core.engine.task import OpenTask


def _key(task: OpenTask, now: float, settings: Settings) -> float:  # noqa: ARG001
    return task.submitted_at


POLICY: Policy = Policy("fifo", starts_all=True, key=_key)
