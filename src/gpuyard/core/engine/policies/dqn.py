"""Shortest remaining time first, with a learned advisor who may hold a task back for GPUs on which it is faster.

Promise: where tasks cannot be stopped it is `srtf`, and where GPUs are of several models, too, the mean time to completion is
lower: a task does not begin on slow GPUs what it would have finished sooner on fast ones, and tasks that want the same GPUs are
weighed against each other (gpuyard.core.engine.scheduling.advice). A model says which choice is better, and a guard keeps to the order of the
queue where that is not sure. docs/manual/learning.md has the figures, and how to train a model on workloads of your own.
Tasks that may be stopped begin at once. Which of them stops another goes by what a task takes of the cluster: GPU-seconds that it is
thought to need, or has had if that is more, in steps of sixteen; whoever stands on a lower step may stop one on a higher. So nobody
is stopped for a guess that is a little better, whoever turns out longer than thought goes back for it, and a step only ever rises.
In the queue, too, a task that has outrun what was thought of it has as long still as it has run.
Choose it for clusters with several GPU models and tasks that say how fast they are there (`gpu_speeds`), with backfill
`greedy`: while nodes are promised to anybody nobody is asked. Long tasks can wait for ever while short ones keep coming.
Without a model nobody is asked.
Reference: Mnih et al., "Human-level control through deep reinforcement learning", 2015; Wang et al., "Dueling Network
Architectures for Deep Reinforcement Learning", 2016.
"""

from math import floor, inf, log2

from gpuyard.core.domain.settings import Settings
from gpuyard.core.domain.values import MILLI
from gpuyard.core.engine.phases import Running
from gpuyard.core.engine.policies.policy import Policy
from gpuyard.core.engine.task import Task

STEP = 16.0
ROUNDING = 1e-3
"""GPU-seconds: a task checked at the instant it reaches a step has reached it despite rounding errors."""

LAST_STEP = 12
"""More GPU-seconds than any task uses; a simulated task that never ends stays on this step."""


def _key(task: Task, now: float, settings: Settings) -> float:  # noqa: ARG001
    """Seconds it has left on its fastest GPUs."""
    left, served = task.seconds_at(1.0, now, "likely"), task.served_at(now)
    if task.estimate is None or served < task.estimate.seconds:
        return left
    timeout = task.spec.timeout_seconds
    return min(max(left, served), inf if timeout is None else max(0.0, timeout - task.ran_at(now)))


def _rank(task: Task, now: float, settings: Settings) -> float:  # noqa: ARG001
    """The step it stands on; of whom nobody has an idea, by what it has had."""
    thought = task.estimate.seconds * task.spec.resources.all_gpus if task.estimate else 0.0
    step = log2(max(task.gpu_seconds_at(now) + ROUNDING, thought, 1.0)) / log2(STEP)
    return float(floor(min(step, LAST_STEP)))


def _changes_at(running: Task, now: float, settings: Settings) -> float | None:
    """When it reaches the next step by what it has had."""
    if not isinstance(running.phase, Running):
        return None
    gpus, step = running.phase.placement.charge_milli / MILLI, _rank(running, now, settings)
    if not gpus or step >= LAST_STEP:
        return None
    until: float = STEP ** (step + 1)
    return now + (until - running.gpu_seconds_at(now)) / gpus


POLICY: Policy = Policy("dqn", starts_all=False, key=_key, rank=_rank, changes_at=_changes_at, advised=True)
