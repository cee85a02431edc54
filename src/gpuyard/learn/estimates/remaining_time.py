"""Predicts which tasks will end soon: a level for every age a task may reach, from the run times of similar tasks.

For each kind of task (all tasks; a user's; a user's of one size; of one kind name; and of one name) the ages at which tasks
ended are counted. The share of a kind that ends at an age, of the tasks that reach it, is shrunk towards the share of the wider
kind as if that had been seen `WEIGHT` times. A user with few tasks therefore has nearly the shares of all users, and a kind
with many tasks uses its own.

The Gittins index follows from these shares: if a task may run until some age and not longer, how much run time does it
take on average until it, or another like it, ends within that time? The best such bound is the cost of one more end,
and the task with the lowest cost should run: with equal servers and no other information, no order has a smaller mean
completion time. For a user whose tasks fail in the first minute or run for a day, a trial of one minute pays off, and
one of two does not. An index is imprecise, so it is rounded to a level.

A task that cannot be preempted, or that would start from the beginning, has no such choice: once started, it runs to
its end, so its index is its mean run time. A short trial is not possible, and one that looks short on the whole and is
not holds its GPUs for days. The mean would be too low if only ended tasks counted, because the short ones end first:
tasks that run are counted as well, as in a life table. They have reached their age, and have not ended before it.

Where tasks have no user, or most tasks are of one kind, all have nearly the same levels, and those of a kind that ends
the less likely the longer it runs say only what the time each task has run says more precisely. No levels are given
then, and the policy uses that time: on two weeks of Philly, one set of levels for all made the mean
completion time a sixth longer than none. For a user's kind that comes closer to its end while it runs, such as a
sweep of equal tasks, the time it has run is the wrong order, and levels are given.

Until some tasks have ended, in all and of a user, there is nothing to compute levels from: the shares that are assumed before
make every level rise with the time that a task has run, so all tasks of a first sweep would take turns. Such a task has one
level at all ages (`UNKNOWN_LEVELS`).

Within a kind, the order of submission means nothing, so `default` does not preempt one task of a kind for another. Where
the levels of a kind are known to rise steeply, as with short trials and long runs of one script, that would let a short
task wait for a long one: such a kind *varies*, and the rule does not apply.
Reference: Gittins, "Bandit Processes and Dynamic Allocation Indices", 1979; Scully, Harchol-Balter and Scheller-Wolf,
"SOAP: One Clean Analysis of All Age-Based Scheduling Policies", 2018; for the life table, Cutler and Ederer, "Maximum
Utilization of the Life Table Method in Analyzing Survival", 1958.
"""

from bisect import bisect_left, bisect_right, insort
from collections import Counter, deque
from collections.abc import Sequence
from math import inf

from gpuyard.core.domain.remaining_time import (
    AGES,
    UNKNOWN_LEVELS,
    RemainingTimeLevels,
    age_begins_at,
    age_of,
    level_of,
)
from gpuyard.core.domain.values import TaskId
from gpuyard.learn.estimates.history import TaskFeatures
from gpuyard.learn.estimates.kinds import RecentKinds, SimilarityKey

WEIGHT = 5.0
"""Number of tasks of a kind that weigh as much as everything known about the wider kind."""
ENDS_OF_NEW = 0.3
"""Prior: the share of tasks that end at an age, of those that reach it. It makes all ages alike except for scale."""
GUESS_WEIGHT = 1.0
"""Number of tasks that weigh as much as that prior."""
MOST = 1000
"""When a kind was seen this often, all its counts are halved, because habits change."""
KINDS = 20_000
"""Maximum number of kinds; the least recently seen is dropped first."""

LEAST_ENDS_OF_ALL, LEAST_ENDS_OF_USER = 30, 3
"""With fewer ended tasks, in all or of a user, nothing is known about a new one."""
NARROW = 3
"""The number of kinds of a task without a name and a kind name: all tasks, a user's, a user's of one size."""
LEAST_ENDS = 10
LEAST_REACHED = 0.1
MUCH = 2
"""A kind varies if the level rises by `MUCH` until an age that `LEAST_REACHED` of its tasks reach, once `LEAST_ENDS` have ended."""

BOUNDS = [age_begins_at(age) for age in range(AGES)] + [2 * age_begins_at(AGES - 1)]
NONE_RUN = [0] * AGES


class RemainingTimeModel:
    """Counts of ended tasks for all kinds, and the levels that follow."""

    def __init__(self) -> None:
        self._kinds = RecentKinds(_Kind, KINDS)
        self._known: dict[SimilarityKey, RemainingTimeLevels] = {}
        """Levels computed since the last end, so that many tasks submitted at once share one computation."""
        self._varies: dict[SimilarityKey, bool] = {}
        """The same for `varies`."""
        self._last_ends: deque[tuple[SimilarityKey, ...]] = deque()
        self._ends_of: Counter[SimilarityKey] = Counter()
        """The number of the last `MOST` ends for each most specific kind: of a name and of a kind name, or of a size."""
        self._runs: dict[TaskId, tuple[TaskFeatures, float]] = {}
        """The features of each running task, and when it started."""

    def started(self, task: TaskId, features: TaskFeatures, at: float) -> None:
        """Count a task that runs from now on, until `stopped` is called."""
        self.stopped(task)
        self._runs[task] = features, at
        for key in _kinds(features):
            insort(self._kinds.touch(key).running, at)
        self._kinds.forget()

    def stopped(self, task: TaskId) -> None:
        """Count a task no longer, because it has ended or its attempt has; does nothing for a task that does not run."""
        features, at = self._runs.pop(task, (None, 0.0))
        if features is not None:
            for key in _kinds(features):
                kind = self._kinds.get(key)
                if kind is not None:  # otherwise it was forgotten
                    kind.ran(at)

    def observe(self, features: TaskFeatures, seconds: float) -> None:
        """Learn that a task has ended after it ran for `seconds`."""
        age, kinds = age_of(seconds), _kinds(features)
        self._note_end(tuple(kinds[NARROW:] or kinds[-1:]))
        self._known.clear()
        self._varies.clear()
        for key in kinds:
            self._kinds.touch(key).count(age)
        self._kinds.forget()

    def _note_end(self, kinds: tuple[SimilarityKey, ...]) -> None:
        self._last_ends.append(kinds)
        self._ends_of.update(kinds)
        if len(self._last_ends) > MOST:
            for oldest in self._last_ends.popleft():
                self._ends_of[oldest] -= 1
                if not self._ends_of[oldest]:
                    del self._ends_of[oldest]

    def __len__(self) -> int:
        return len(self._kinds)

    def predict(self, features: TaskFeatures) -> RemainingTimeLevels:
        """Return the levels of a task that is submitted now; empty if they would not help."""
        if not features.user:
            return ()
        if self._ended(()) < LEAST_ENDS_OF_ALL or self._ended((features.user,)) < LEAST_ENDS_OF_USER:
            return UNKNOWN_LEVELS
        kinds = _kinds(features)
        if len(kinds) > NARROW + 1 and not self._ended(kinds[-1]):
            kinds.pop()  # a name that is new says nothing, and all new names of a kind share one computation
        known = self._known_levels(kinds)
        is_common = 2 * self._ends_of[kinds[-1]] > len(self._last_ends)
        return () if is_common and min(known) == known[0] else known

    def varies(self, features: TaskFeatures) -> bool:
        """Whether tasks like this one that have run for a while are known to be much further from their end than new ones.

        Judged by the tasks of its name if enough of them have ended, otherwise by those of its kind name.
        """
        kinds = _kinds(features)
        while len(kinds) > NARROW and self._ended(kinds[-1]) < LEAST_ENDS:
            kinds.pop()
        if len(kinds) == NARROW:
            return False
        known = self._varies.get(kinds[-1])
        if known is None:
            known = self._varies[kinds[-1]] = self._kinds[kinds[-1]].rises(self._known_levels(kinds))
        return known

    def _known_levels(self, kinds: Sequence[SimilarityKey]) -> RemainingTimeLevels:
        known = self._known.get(kinds[-1])
        if known is None:
            known = self._known[kinds[-1]] = self._levels_of(kinds)
        return known

    def _ended(self, key: SimilarityKey) -> float:
        kind = self._kinds.get(key)
        return 0.0 if kind is None else kind.seen

    def _levels_of(self, kinds: Sequence[SimilarityKey]) -> RemainingTimeLevels:
        parts, weight = [ENDS_OF_NEW] * AGES, GUESS_WEIGHT
        for key in kinds:
            kind = self._kinds.get(key)
            if kind is None:
                break
            parts, weight = kind.shrunk_towards(parts, weight), WEIGHT
        return _levels(parts)

    def mean_seconds(self, features: TaskFeatures, now: float) -> float:
        """Return the mean run time of tasks like one that is submitted now."""
        parts, weight = [ENDS_OF_NEW] * AGES, GUESS_WEIGHT
        for key in _kinds(features):
            kind = self._kinds.get(key)
            if kind is None:
                break
            parts, weight = kind.shrunk_towards(parts, weight, kind.running_by_age(now)), WEIGHT
        return _spent(parts)[0][-1]


class _Kind:
    """Number of tasks of one kind that ended at each age."""

    __slots__ = ("ended", "running", "seen")

    def __init__(self) -> None:
        self.ended = [0.0] * AGES
        self.seen = 0.0
        self.running: list[float] = []
        """When the running tasks of this kind started, the earliest first."""

    def ran(self, since: float) -> None:
        """Remove a running task that started at `since`, if it was counted."""
        place = bisect_left(self.running, since)
        if place < len(self.running) and self.running[place] == since:
            del self.running[place]

    def running_by_age(self, now: float) -> list[int]:
        """Return the number of running tasks at each age."""
        if not self.running:
            return NONE_RUN
        reached = [bisect_right(self.running, now - begins) for begins in BOUNDS[:-1]]
        return [here - later for here, later in zip(reached, [*reached[1:], 0], strict=True)]

    def count(self, age: int) -> None:
        """Count one end at this age."""
        self.ended[age] += 1.0
        self.seen += 1.0
        if self.seen > MOST:
            self.ended = [count / 2 for count in self.ended]
            self.seen /= 2

    def rises(self, levels: RemainingTimeLevels) -> bool:
        """Whether the level at an age that enough tasks of this kind have reached is much higher than that of a new one."""
        reached = self.seen
        for level, ended in zip(levels, self.ended, strict=False):
            if reached < LEAST_REACHED * self.seen:
                return False
            if level >= levels[0] + MUCH:
                return True
            reached -= ended
        return False

    def shrunk_towards(self, wider: list[float], weight: float, running: Sequence[int] = NONE_RUN) -> list[float]:
        """Return the share that ends at each age, of the tasks that reach it, shrunk towards the wider kind.

        Tasks that run are half through their age: they count half there, and fully at the ages before it.
        """
        parts, come = [], self.seen + sum(running)
        for ended, other, here in zip(self.ended, wider, running, strict=True):
            parts.append((ended + weight * other) / (come - here / 2 + weight))
            come -= ended + here
        return parts


def _kinds(features: TaskFeatures) -> list[SimilarityKey]:
    """Return the keys of a task's kinds, the widest first."""
    kinds: list[SimilarityKey] = [(), (features.user,), (features.user, features.gpus)]
    if features.kind and features.kind != features.name:
        kinds.append((features.user, features.gpus, features.kind))
    if features.name:
        kinds.append((features.user, features.gpus, features.name))
    return kinds


def _levels(parts: list[float]) -> RemainingTimeLevels:
    """Return the level at each age from the share of tasks that end at each age."""
    levels = [level_of(index) for index in indices(parts)]
    while len(levels) > 1 and levels[-1] == levels[-2]:
        levels.pop()
    return tuple(levels)


def indices(parts: list[float]) -> list[float]:
    """Return for each age the least run time per end, in seconds, over all later ages until which tasks may run.

    Plot the run time spent up to each age over the share that has ended by then: the index is the smallest slope from
    the point of an age to a later point, which is the slope of the lower convex hull of all later points.
    """
    spent, ended = _spent(parts)

    def slope(one: int, other: int) -> float:
        more = ended[other] - ended[one]
        return (spent[other] - spent[one]) / more if more > 0 else inf

    hull, indices = [AGES], [0.0] * AGES
    for age in reversed(range(AGES)):
        while len(hull) > 1 and slope(age, hull[-1]) >= slope(hull[-1], hull[-2]):
            hull.pop()
        indices[age] = slope(age, hull[-1])
        hull.append(age)
    return indices


def _spent(parts: list[float]) -> tuple[list[float], list[float]]:
    """Return the mean run time spent up to the begin of each age, and the share that has ended by then."""
    spent, ended, alive = [0.0], [0.0], 1.0
    for age, part in enumerate(parts):
        spent.append(spent[-1] + alive * (BOUNDS[age + 1] - BOUNDS[age]) * (1 - part / 2))
        alive *= 1 - part
        ended.append(1 - alive)
    return spent, ended
