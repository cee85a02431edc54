"""What will soon be over goes first, as far as can be foreseen; priority and waiting count in the same coin.

Promise: short tasks finish early although nobody says how long anything runs, and nobody waits for ever. Every task has
a level that says how much longer it is likely to run: from the remaining-time levels that came with it, which are learned from the ends
of tasks like it (gpuyard.learn.estimates.remaining_time), else from how long it has run (below 10 minutes, 40 minutes, 2 h 40 min,
10 h 40 min, above). A level counts as `level_seconds` of waiting, and so do ten points of priority; online tasks have
a hundred points more. Who stands first by this sum goes first, and may stop running tasks further back, those furthest back first.
So within a level an earlier task gets its GPUs back from later ones: that is how large tasks come through. A task that
would have to start over is stopped only for one that stands more than a level before what it would be if it were new.
Choose it unless you know better; tasks that may be suspended or save themselves make the most of it.
`level_seconds` trades mean for worst: with a small one it comes close to first come, first served.
What was left out because it did not help on the traces of docs/manual/simulation.md: predicted run times instead of
levels, weighting by GPUs, ageing by waiting time alone.
"""

from gpuyard.core.domain.remaining_time import LEVEL_SECONDS, age_begins_at, age_of, level_of
from gpuyard.core.domain.settings import Settings
from gpuyard.core.domain.values import Preemption, TaskClass
from gpuyard.core.engine.phases import Running
from gpuyard.core.engine.policies.policy import Policy
from gpuyard.core.engine.task import Task

POINTS = 10
"""Of priority, that count as a level."""
ROUNDING = 1e-3
"""Seconds: a task looked at in the very instant it comes to an age has come to it, whatever the last bit says."""


def _level(task: Task, ran_seconds: float) -> int:
    remaining_time_levels = task.spec.remaining_time_levels
    return (
        remaining_time_levels[min(age_of(ran_seconds), len(remaining_time_levels) - 1)]
        if remaining_time_levels
        else level_of(ran_seconds)
    )


def _sort_key(task: Task, level: int, settings: Settings) -> float:
    points = task.priority + (100 if task.spec.task_class is TaskClass.ONLINE else 0)
    return task.submitted_at + (level - points / POINTS) * settings.level_seconds


def _key(task: Task, now: float, settings: Settings) -> float:
    return _sort_key(task, _level(task, task.served_at(now) + ROUNDING), settings)


def _rank(task: Task, now: float, settings: Settings) -> float:
    if task.preemption is Preemption.REQUEUE and isinstance(task.phase, Running):
        return _sort_key(task, -1, settings)
    return _key(task, now, settings)


def _changes_at(running: Task, now: float, settings: Settings) -> float | None:  # noqa: ARG001
    if not isinstance(running.phase, Running):
        return None
    remaining_time_levels, ran = running.spec.remaining_time_levels, running.served_at(now)
    if not remaining_time_levels:
        next_level = level_of(ran + ROUNDING)
        return now + (LEVEL_SECONDS[next_level] - ran) / running.speed if next_level < len(LEVEL_SECONDS) else None
    age = age_of(ran + ROUNDING)
    later = next(
        (
            later
            for later in range(age + 1, len(remaining_time_levels))
            if remaining_time_levels[later] != remaining_time_levels[age]
        ),
        None,
    )
    return None if later is None else now + (age_begins_at(later) - ran) / running.speed


POLICY: Policy = Policy("default", starts_all=True, key=_key, rank=_rank, changes_at=_changes_at)
