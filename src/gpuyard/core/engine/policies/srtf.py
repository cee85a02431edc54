"""Shortest remaining time first, by estimate: SJF that also stops running tasks.

Promise: the mean time to completion is close to the least possible when estimates are right and stopping is cheap.
A waiting task outranks a running one that needs at least twice as long still: the margin pays for the stop and keeps
two tasks of like length from stopping each other in turn. What a task has left is counted as if it were on its fastest
GPUs, so that none goes back for being on slow ones. Long tasks can wait for ever while short ones keep coming.
Reference: Schrage, "A Proof of the Optimality of the Shortest Remaining Processing Time Discipline", 1968.
"""

from math import inf, log2

from gpuyard.core.domain.settings import Settings
from gpuyard.core.engine.policies.policy import Policy
from gpuyard.core.engine.task import Task

MARGIN = 2.0
LEAST_SECONDS = 1e-3
"""What is about to end has this long still."""


def _key(task: Task, now: float, settings: Settings) -> float:  # noqa: ARG001
    return task.seconds_at(1.0, now, "likely")


def _rank(task: Task, now: float, settings: Settings) -> float:
    left = _key(task, now, settings)
    return log2(max(left, LEAST_SECONDS)) if left < inf else inf


POLICY: Policy = Policy("srtf", starts_all=False, key=_key, rank=_rank, margin=log2(MARGIN), drifts=True)
