"""Shortest remaining time first, with a trained advisor that may delay a task until GPUs are free on which it is faster.

Promise: for tasks that cannot be preempted it is `srtf`, with a lower mean completion time on clusters with several GPU
models: a task does not start on slow GPUs if it would finish much earlier by waiting for fast ones (gpuyard.core.engine.scheduling.advice).
A rule decides that, which `default` uses as well, and a trained model corrects the rule; a guard keeps to the rule where
the advantage is uncertain; with the model that ships, the rule decides everything. docs/manual/learning.md has figures for
both and shows how to train a model.
Tasks that can be preempted start at once. Preemption among them depends on GPU-seconds: the estimated ones of a task, or those
it has used if they are more, in steps of a factor of sixteen. A task on a lower step may preempt one on a higher step. Small
differences between estimates therefore preempt nothing, a task that exceeds its estimate moves back, and a step only rises.
In the queue, a task that has exceeded its estimate is expected to need as much time again as it has run.
Choose it on clusters with several GPU models and tasks that state their speeds (`gpu_speeds`), with backfill `greedy`;
the advisor is not consulted while nodes are reserved. Long tasks can wait indefinitely while short ones keep arriving.
Without a trained model a rule decides: a task waits if that saves three tenths of its run.
Reference: Mnih et al., "Human-level control through deep reinforcement learning", 2015; Wang et al., "Dueling Network
Architectures for Deep Reinforcement Learning", 2016.
"""

from math import floor, inf, log2

from gpuyard.core.domain.settings import Settings
from gpuyard.core.domain.values import MILLI
from gpuyard.core.engine.phases import Running
from gpuyard.core.engine.policies.policy import Policy
from gpuyard.core.engine.task import OpenTask

STEP = 16.0
ROUNDING = 1e-3
"""GPU-seconds: a task checked at the instant it reaches a step has reached it despite rounding errors."""

LAST_STEP = 12
"""More GPU-seconds than any task uses; a simulated task that never ends stays on this step."""


def _key(task: OpenTask, now: float, settings: Settings) -> float:  # noqa: ARG001
    """Return the remaining seconds on the fastest GPUs of the task."""
    left, served = task.seconds_at(1.0, now, "likely"), task.served_at(now)
    if task.estimate is None or served < task.estimate.seconds:
        return left
    timeout = task.spec.timeout_seconds
    return min(max(left, served), inf if timeout is None else max(0.0, timeout - task.ran_at(now)))


def _rank(task: OpenTask, now: float, settings: Settings) -> float:  # noqa: ARG001
    """Return the step of the task; without an estimate, only the GPU-seconds it has used count."""
    thought = task.estimate.seconds * task.spec.resources.all_gpus if task.estimate else 0.0
    step = log2(max(task.gpu_seconds_at(now) + ROUNDING, thought, 1.0)) / log2(STEP)
    return float(floor(min(step, LAST_STEP)))


def _changes_at(running: OpenTask, now: float, settings: Settings) -> float | None:
    """Return the time at which the used GPU-seconds reach the next step."""
    if not isinstance(running.phase, Running):
        return None
    gpus, step = running.phase.placement.charge_milli / MILLI, _rank(running, now, settings)
    if not gpus or step >= LAST_STEP:
        return None
    until: float = STEP ** (step + 1)
    return now + (until - running.gpu_seconds_at(now)) / gpus


POLICY: Policy = Policy(
    "dqn", starts_all=False, key=_key, rank=_rank, changes_at=_changes_at, waits_for_faster_gpus=True, advised=True
)
