"""Shortest remaining time first, by estimate: SJF that also stops running tasks.

Promise: the mean time to completion is close to the least possible when estimates are right and stopping is cheap.
A waiting task outranks a running one that needs at least twice as long still: the margin pays for the stop and keeps
two tasks of like length from stopping each other in turn. Long tasks can wait for ever while short ones keep coming.
Reference: Schrage, "A Proof of the Optimality of the Shortest Remaining Processing Time Discipline", 1968.
"""

from gpuyard.domain.settings import Settings
from gpuyard.engine.policies.policy import Policy
from gpuyard.engine.task import Task

MARGIN = 2.0


def _key(task: Task, now: float, settings: Settings) -> float:  # noqa: ARG001
    return task.left_seconds(now, "likely")


def _outranks(waiting: Task, running: Task, now: float, settings: Settings) -> bool:  # noqa: ARG001
    return waiting.left_seconds(now, "likely") * MARGIN < running.left_seconds(now, "likely")


POLICY: Policy = Policy("srtf", starts_all=False, key=_key, outranks=_outranks)
