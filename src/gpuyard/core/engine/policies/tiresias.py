"""Least attained service with two queues: tasks that have used few GPU-seconds are before the others and may preempt them.

Promise: short tasks finish early although no run times are given. A task starts in the first queue and moves to the
second when it has used `tiresias_threshold_gpu_seconds`; within a queue, first come, first served. Only tasks of the first
queue preempt, and only tasks of the second are preempted, so no two tasks preempt each other in turn.
Choose it without predictions, if tasks can be suspended cheaply. Long tasks can wait indefinitely while new ones
keep arriving.
Reference: Gu et al., "Tiresias: A GPU Cluster Manager for Distributed Deep Learning", NSDI 2019 (discretized 2D-LAS).
"""

from gpuyard.core.domain.settings import Settings
from gpuyard.core.domain.values import MILLI
from gpuyard.core.engine.phases import Running
from gpuyard.core.engine.policies.policy import Policy
from gpuyard.core.engine.task import OpenTask

SECOND_QUEUE = 1e12
"""Seconds that put every task of the second queue behind every task of the first."""

ROUNDING = 1e-3
"""GPU-seconds: a task checked at the instant it reaches the threshold has reached it despite rounding errors."""


def _fell(task: OpenTask, now: float, settings: Settings) -> bool:
    return task.gpu_seconds_at(now) >= settings.tiresias_threshold_gpu_seconds - ROUNDING


def _key(task: OpenTask, now: float, settings: Settings) -> float:
    return task.submitted_at + (SECOND_QUEUE if _fell(task, now, settings) else 0.0)


def _rank(task: OpenTask, now: float, settings: Settings) -> float:
    return float(_fell(task, now, settings))


def _changes_at(running: OpenTask, now: float, settings: Settings) -> float | None:
    if not isinstance(running.phase, Running) or _fell(running, now, settings):
        return None
    gpus = running.phase.placement.charge_milli / MILLI
    return now + (settings.tiresias_threshold_gpu_seconds - running.gpu_seconds_at(now)) / gpus if gpus else None


POLICY: Policy = Policy("tiresias", starts_all=False, key=_key, rank=_rank, changes_at=_changes_at)
