"""Two-queue least attained service: what has used little goes before what has used much, and may stop it.

Promise: short tasks finish early although nobody says how long anything runs. A task starts in the first queue and
falls into the second when its GPUs × seconds pass `tiresias_threshold_gpu_seconds`; within a queue, first come, first
served. Only tasks of the first queue stop others, and only those of the second, so no two stop each other in turn.
Choose it when there are no predictions and tasks can be suspended cheaply. Long tasks can wait for ever behind a
stream of new ones.
Reference: Gu et al., "Tiresias: A GPU Cluster Manager for Distributed Deep Learning", NSDI 2019 (discretised 2D-LAS).
"""

from gpuyard.core.domain.settings import Settings
from gpuyard.core.domain.values import MILLI
from gpuyard.core.engine.phases import Running
from gpuyard.core.engine.policies.policy import Policy
from gpuyard.core.engine.task import Task

SECOND_QUEUE = 1e12
"""Seconds that put every task of the second queue behind every task of the first."""

ROUNDING = 1e-3
"""GPU-seconds: a task looked at in the very instant it falls has fallen, whatever the last bit says."""


def _fell(task: Task, now: float, settings: Settings) -> bool:
    return task.gpu_seconds_at(now) >= settings.tiresias_threshold_gpu_seconds - ROUNDING


def _key(task: Task, now: float, settings: Settings) -> float:
    return task.submitted_at + (SECOND_QUEUE if _fell(task, now, settings) else 0.0)


def _rank(task: Task, now: float, settings: Settings) -> float:
    return float(_fell(task, now, settings))


def _changes_at(running: Task, now: float, settings: Settings) -> float | None:
    if not isinstance(running.phase, Running) or _fell(running, now, settings):
        return None
    gpus = running.phase.placement.charge_milli / MILLI
    return now + (settings.tiresias_threshold_gpu_seconds - running.gpu_seconds_at(now)) / gpus if gpus else None


POLICY: Policy = Policy("tiresias", starts_all=False, key=_key, rank=_rank, changes_at=_changes_at)
