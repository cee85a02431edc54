"""What has run least goes first, in levels: ten minutes, then four times as long for each further one.

Promise: short tasks finish early although nobody says how long anything runs. A task starts in the first level and falls
into the next whenever it has run for 10 minutes, 40 minutes, 2 h 40 min and so on, over all its attempts; within a level,
first come, first served. A task stops others of deeper levels, the deepest first, and nobody of its own, so no two stop
each other in turn, and a task is stopped for the sake of its length only after it has run for ten minutes.
Choose it where nobody knows run times and tasks can be stopped cheaply: durations are so uneven that whatever has run
for an hour will most likely run for another, and hardly anything that is new will. Unlike `tiresias` it tells an hour from
a week, and it counts the time a task ran, not its GPUs, so that large tasks are not put behind long ones. Long tasks can
wait for ever behind a stream of new ones.
Reference: Nuyens and Wierman, "The Foreground-Background queue: A survey", 2008; Corbató et al., "An Experimental
Time-Sharing System", 1962 (levels).
"""

from gpuyard.domain.settings import Settings
from gpuyard.engine.phases import Running
from gpuyard.engine.policies.policy import Policy
from gpuyard.engine.task import Task

FIRST_SECONDS = 600.0
TIMES = 4.0

DEEPER = 1e12
"""Seconds that put every task of a level behind every task of the one above."""

ROUNDING = 1e-3
"""Seconds: a task looked at in the very instant it falls has fallen, whatever the last bit says."""


def _level(served_seconds: float) -> int:
    level, bound = 0, FIRST_SECONDS
    while served_seconds >= bound - ROUNDING:
        level += 1
        bound *= TIMES
    return level


def _key(task: Task, now: float, settings: Settings) -> float:  # noqa: ARG001
    return task.submitted_at + DEEPER * _level(task.served_at(now))


def _rank(task: Task, now: float, settings: Settings) -> float:  # noqa: ARG001
    return _level(task.served_at(now))


def _changes_at(running: Task, now: float, settings: Settings) -> float | None:  # noqa: ARG001
    if not isinstance(running.phase, Running):
        return None
    served = running.served_at(now)
    return now + FIRST_SECONDS * TIMES ** _level(served) - served


POLICY: Policy = Policy("levels", starts_all=False, key=_key, rank=_rank, changes_at=_changes_at)
