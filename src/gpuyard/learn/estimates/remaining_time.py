"""Predicts which tasks will end soon: a level for every age a task may reach, from the run times of similar tasks.

For each kind of task (all tasks; a user's; a user's of one size; and of one name) the ages at which tasks ended are
counted. The share of a kind that ends at an age, of the tasks that reach it, is shrunk towards the share of the wider
kind as if that had been seen `WEIGHT` times. A new user therefore starts with the shares of all users, and a kind with
many tasks uses its own.

The Gittins index follows from these shares: if a task may run until some age and not longer, how much run time does it
take on average until it, or another like it, ends within that time? The best such bound is the cost of one more end,
and the task with the lowest cost should run: with equal servers and no other information, no order has a smaller mean
completion time. For a user whose tasks fail in the first minute or run for a day, a trial of one minute pays off, and
one of two does not. An index is imprecise, so it is rounded to a level.

This helps only if tasks differ. If tasks have no user, or most tasks are of one kind, all would have nearly the same
levels and be served in the order of arrival. No levels are given then, and the policy uses the time each task has run:
on two weeks of Philly, whose tasks have no user, one set of levels for all made the mean completion time a sixth longer
than none.
Reference: Gittins, "Bandit Processes and Dynamic Allocation Indices", 1979; Scully, Harchol-Balter and Scheller-Wolf,
"SOAP: One Clean Analysis of All Age-Based Scheduling Policies", 2018.
"""

from collections import Counter, deque
from math import inf

from gpuyard.core.domain.remaining_time import AGES, RemainingTimeLevels, age_begins_at, age_of, level_of
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

BOUNDS = [age_begins_at(age) for age in range(AGES)] + [2 * age_begins_at(AGES - 1)]


class RemainingTimeModel:
    """Counts of ended tasks for all kinds, and the levels that follow."""

    def __init__(self) -> None:
        self._kinds = RecentKinds(_Kind, KINDS)
        self._known: dict[SimilarityKey, RemainingTimeLevels] = {}
        """Levels computed since the last end, so that many tasks submitted at once share one computation."""
        self._last_ends: deque[SimilarityKey] = deque()
        self._ends_of: Counter[SimilarityKey] = Counter()
        """The number of the last `MOST` ends for each most specific kind."""

    def observe(self, features: TaskFeatures, seconds: float) -> None:
        """Learn that a task has ended after it ran for `seconds`."""
        age, kinds = age_of(seconds), _kinds(features)
        self._note_end(kinds[-1])
        self._known.clear()
        for key in kinds:
            self._kinds.touch(key).count(age)
        self._kinds.forget()

    def _note_end(self, kind: SimilarityKey) -> None:
        self._last_ends.append(kind)
        self._ends_of[kind] += 1
        if len(self._last_ends) > MOST:
            oldest = self._last_ends.popleft()
            self._ends_of[oldest] -= 1
            if not self._ends_of[oldest]:
                del self._ends_of[oldest]

    def __len__(self) -> int:
        return len(self._kinds)

    def predict(self, features: TaskFeatures) -> RemainingTimeLevels:
        """Return the levels of a task that is submitted now; empty if they would not help."""
        kinds = _kinds(features)
        if not features.user or 2 * self._ends_of[kinds[-1]] > len(self._last_ends):
            return ()
        known = self._known.get(kinds[-1])
        if known is not None:
            return known
        parts, weight = [ENDS_OF_NEW] * AGES, GUESS_WEIGHT
        for key in kinds:
            kind = self._kinds.get(key)
            if kind is None:
                break
            parts, weight = kind.shrunk_towards(parts, weight), WEIGHT
        found = self._known[kinds[-1]] = _levels(parts)
        return found


class _Kind:
    """Number of tasks of one kind that ended at each age."""

    __slots__ = ("ended", "seen")

    def __init__(self) -> None:
        self.ended = [0.0] * AGES
        self.seen = 0.0

    def count(self, age: int) -> None:
        """Count one end at this age."""
        self.ended[age] += 1.0
        self.seen += 1.0
        if self.seen > MOST:
            self.ended = [count / 2 for count in self.ended]
            self.seen /= 2

    def shrunk_towards(self, wider: list[float], weight: float) -> list[float]:
        """Return the share that ends at each age, of the tasks that reach it, shrunk towards the wider kind."""
        parts, come = [], self.seen
        for ended, other in zip(self.ended, wider, strict=True):
            parts.append((ended + weight * other) / (come + weight))
            come -= ended
        return parts


def _kinds(features: TaskFeatures) -> list[SimilarityKey]:
    """Return the keys of a task's kinds, the widest first."""
    kinds: list[SimilarityKey] = [(), (features.user,), (features.user, features.gpus)]
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
    ended, spent, alive = [0.0], [0.0], 1.0
    for age, part in enumerate(parts):
        spent.append(spent[-1] + alive * (BOUNDS[age + 1] - BOUNDS[age]) * (1 - part / 2))
        alive *= 1 - part
        ended.append(1 - alive)

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
