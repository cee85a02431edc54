"""Shortest job first, by estimate.

Promise: the lowest mean completion time that a policy without preemption can achieve, as far as the estimates are right.
Choose it where predictions are good and fairness to long tasks does not matter, because these can wait indefinitely
while short ones keep arriving. Tasks without an estimate are last, in order of submission.
"""

from gpuyard.core.domain.settings import Settings
from gpuyard.core.engine.policies.policy import Policy
from gpuyard.core.engine.task import OpenTask


def _key(task: OpenTask, now: float, settings: Settings) -> float:  # noqa: ARG001
    return task.estimate.seconds if task.estimate else float("inf")


POLICY: Policy = Policy("sjf", starts_all=False, key=_key)
