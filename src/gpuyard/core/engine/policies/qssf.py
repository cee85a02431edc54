"""Quasi shortest service first: the smallest estimated run time × GPUs first, without preemption.

Promise: tasks that need few GPU-hours finish early, as far as the estimates are right.
Choose it where run times repeat and tasks cannot be preempted; with backfill, tasks that fit overtake others. Large
and long tasks can wait indefinitely while small ones keep arriving. Tasks without an estimate are last, in order of submission.
Reference: Hu et al., "Characterization and Prediction of Deep Learning Workloads in Large-Scale GPU Datacenters", SC 2021.
"""

from gpuyard.core.domain.settings import Settings
from gpuyard.core.engine.policies.policy import Policy
from gpuyard.core.engine.task import OpenTask


def _key(task: OpenTask, now: float, settings: Settings) -> float:  # noqa: ARG001
    return task.estimate.seconds * task.spec.resources.all_gpus if task.estimate else float("inf")


POLICY: Policy = Policy("qssf", starts_all=False, key=_key)
