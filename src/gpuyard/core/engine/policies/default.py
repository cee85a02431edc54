"""Tasks that are expected to end soonest first; priority and waiting time are weighed against it.

Promise: short tasks finish early although no run times are given, and every task starts eventually. It is meant to be
nowhere worse than `fifo` with greedy backfill in the mean completion time, whether no task, some tasks or all tasks may be
preempted. The longest waits are longer on some traces. Where tasks of similar length may be preempted, the mean is longer
on some workloads: by up to 1.4 % on generated bursts, and on the trace of Gavel 15 % with moves and exchanges, 16 to 40 % with
fewer moves. Where a user starts sweeps of very different lengths, estimates of a new sweep are wrong, and single runs are up to
22 % longer. Decisions 0039, 0048, 0053, 0063 and 0070 and the manual's page on simulation have the figures. Each task has a level, learned from similar
tasks that have ended and that run (gpuyard.learn.estimates). A task that is never preempted, or would start from the
beginning, holds its GPUs to its end once it has started, so its level is that of its mean run time (below 10 minutes, 40
minutes, 2 h 40 min, 10 h 40 min, 43 h, 7 days, above). A task that keeps its progress may be tried for a while, so its
level is that of the run time until a task like it ends, if it runs only as long as that pays; without a user, it goes by
how long the task has run.
One level counts as `level_seconds` of waiting, and so do ten points of priority; online tasks have a hundred points more.
The task with the smallest sum is first. It may preempt running tasks with a larger sum, the largest first. Within a level
an earlier task therefore takes GPUs back from later ones, so that large tasks get enough GPUs. A task that would start
from the beginning is preempted only by one that is more than a level ahead of what the task would be if it were new.
Where estimates explain nothing (`unpredictable`), the order within a level is no more than that of submission, and a preemption
for it costs more than it gains. Such a task is preempted only by one that is more than a level ahead of it.
The same holds for a task of a kind whose levels say that it comes closer to its end while it runs: it ends before long; and for
a task of which nothing is known, because few tasks have ended, in all or of its user: it has the level of 40 minutes to 2 h 40 min
at all ages. The kind
of a task is its name without numbers, or its program and script (gpuyard.core.domain.kind_name).
A task is not preempted for another one of the same user and kind, unless that has a higher priority: they take about equally
long, so one would only lose what it has not saved. If ten or more of the kind have ended and some ran much longer than most,
the rule does not hold: a new one is then expected to end much sooner than one that has run for a while.
A task that declares its speed on each GPU model and cannot be preempted waits for faster GPUs if that saves three tenths of
its run. Choose it unless you have a reason for another one. It gains most where tasks can be suspended or checkpointed.
`level_seconds` trades the mean waiting time for the longest: a small value comes close to first come, first served.
Tried and not used, because it did not help: predicted run times instead of levels, weights by number of GPUs, aging by
waiting time alone.
"""

from gpuyard.core.domain.remaining_time import LEVEL_SECONDS, UNKNOWN_LEVELS, age_begins_at, age_of, level_of
from gpuyard.core.domain.settings import Settings
from gpuyard.core.domain.values import Preemption, TaskClass
from gpuyard.core.engine.phases import Running
from gpuyard.core.engine.policies.policy import Policy
from gpuyard.core.engine.task import OpenTask

POINTS = 10
"""Points of priority that count as one level."""
ROUNDING = 1e-3
"""Seconds: a task checked at the instant it reaches an age has reached it despite rounding errors."""


def _level(task: OpenTask, ran_seconds: float) -> int:
    remaining_time_levels = task.spec.remaining_time_levels
    return (
        remaining_time_levels[min(age_of(ran_seconds), len(remaining_time_levels) - 1)]
        if remaining_time_levels
        else level_of(ran_seconds)
    )


def _sort_key(task: OpenTask, level: int, settings: Settings) -> float:
    points = task.priority + (100 if task.spec.task_class is TaskClass.ONLINE else 0)
    return task.submitted_at + (level - points / POINTS) * settings.level_seconds


def _key(task: OpenTask, now: float, settings: Settings) -> float:
    level = task.spec.run_level
    return _sort_key(task, _level(task, task.served_at(now) + ROUNDING) if level is None else level, settings)


def _rank(task: OpenTask, now: float, settings: Settings) -> float:
    if not isinstance(task.phase, Running):
        return _key(task, now, settings)
    if task.preemption is Preemption.REQUEUE:
        return _sort_key(task, -1, settings)
    return _key(task, now, settings) - _gained(task, settings)


def _gained(task: OpenTask, settings: Settings) -> float:
    """Return by how much a task holds its GPUs more strongly than it would claim them: a level if preempting it gains too little."""
    spec = task.spec
    gains_little = spec.unpredictable or spec.remaining_time_levels == UNKNOWN_LEVELS or _comes_closer_to_its_end(task)
    return settings.level_seconds if gains_little else 0.0


def _comes_closer_to_its_end(task: OpenTask) -> bool:
    """Whether tasks of its kind that have run for a while are closer to their end than a new one.

    Without a kind name, the levels are those of all tasks of a user, and one that falls says little about this task.
    """
    levels = task.spec.remaining_time_levels
    return bool(task.kind and levels) and min(levels) < levels[0]


def _spares(waiting: OpenTask, running: OpenTask) -> bool:
    """Whether both are of one kind, so that preempting one for the other gains nothing on average.

    Where a kind is known to vary, a task that has run for a while is much further from its end than a new one.
    """
    spec, other = waiting.spec, running.spec
    return (
        bool(waiting.kind and spec.user)
        and waiting.kind == running.kind
        and spec.user == other.user
        and spec.tenant == other.tenant
        and spec.task_class is other.task_class
        and waiting.priority <= running.priority
        and not (spec.kind_varies or other.kind_varies)
    )


def _changes_at(running: OpenTask, now: float, settings: Settings) -> float | None:  # noqa: ARG001
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


POLICY: Policy = Policy(
    "default",
    starts_all=True,
    key=_key,
    rank=_rank,
    gained=_gained,
    spares=_spares,
    changes_at=_changes_at,
    waits_for_faster_gpus=True,
)
