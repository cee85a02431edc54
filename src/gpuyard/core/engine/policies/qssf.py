"""Quasi shortest service first: the least estimated run time × GPUs goes first, and nobody is stopped for it.

Promise: what takes little of the cluster finishes early, as far as the estimates are right.
Choose it where run times repeat and nothing can be stopped; with backfill whatever fits overtakes. Wide and long tasks
can wait for ever while small ones keep coming. Tasks without an estimate come last, in order of submission.
Reference: Hu et al., "Characterization and Prediction of Deep Learning Workloads in Large-Scale GPU Datacenters", SC 2021.
"""

from gpuyard.core.domain.settings import Settings
from gpuyard.core.engine.policies.policy import Policy
from gpuyard.core.engine.task import Task


def _key(task: Task, now: float, settings: Settings) -> float:  # noqa: ARG001
    return task.estimate.seconds * task.spec.resources.all_gpus if task.estimate else float("inf")


POLICY: Policy = Policy("qssf", starts_all=False, key=_key)
