"""Shortest remaining time first, by estimate: SJF with preemption.

Promise: the mean completion time is close to the minimum if the estimates are right and preemption is cheap.
A waiting task may preempt a running one that needs at least twice as long: the margin outweighs the cost of a preemption
and prevents two tasks of similar length from preempting each other in turn. The remaining time is computed for the fastest
GPUs of a task, so that a task on slow GPUs keeps its position. Long tasks can wait indefinitely while short ones keep arriving.
Reference: Schrage, "A Proof of the Optimality of the Shortest Remaining Processing Time Discipline", 1968.
"""

from math import inf, log2

from gpuyard.core.domain.settings import Settings
from gpuyard.core.engine.policies.policy import Policy
from gpuyard.core.engine.task import OpenTask

MARGIN = 2.0
LEAST_SECONDS = 1e-3
"""The smallest remaining time that is assumed."""


def _key(task: OpenTask, now: float, settings: Settings) -> float:  # noqa: ARG001
    return task.seconds_at(1.0, now, "likely")


def _rank(task: OpenTask, now: float, settings: Settings) -> float:
    left = _key(task, now, settings)
    return log2(max(left, LEAST_SECONDS)) if left < inf else inf


POLICY: Policy = Policy("srtf", starts_all=False, key=_key, rank=_rank, margin=log2(MARGIN), drifts=True)
