"""Which tasks will soon be over? A level for every age a task may reach, from how long others like it ran.

For each kind of task (everybody's; a user's; a user's of one size; and of one name) it is counted at which age they
ended. The part of a kind that ends at an age, of those that come to it, is drawn towards the part of the wider kind as
if that had been seen `WEIGHT` times; so a new user starts with what is true of everybody, and what was seen often of a
kind speaks for itself.

From these parts follows the Gittins index: if a task may run until some age and not longer, how much run time does it
take on average until it, or another like it, ends within that time? The best such bound is what one more end costs, and
whoever is cheapest should run: with equal servers and nothing known but these parts, no order has a smaller mean time to
completion. A user whose tasks fail in the first minute or run for a day is worth a minute's trial, and not two. An index
is rough, so it is rounded to a level.

It pays because tasks differ. Where nobody says whose a task is, or most tasks are of one kind, all would have much the same
outlook and be served in the order they came, so there is none, and how long each has run must do: on two weeks of Philly,
whose tasks are nobody's, one outlook for all made the mean time to completion a sixth longer than none.
Reference: Gittins, "Bandit Processes and Dynamic Allocation Indices", 1979; Scully, Harchol-Balter and Scheller-Wolf,
"SOAP: One Clean Analysis of All Age-Based Scheduling Policies", 2018.
"""

from collections import Counter, deque
from math import inf

from gpuyard.core.domain.remaining_time import AGES, RemainingTimeLevels, age_begins_at, age_of, level_of
from gpuyard.learn.estimates.history import TaskFeatures
from gpuyard.learn.estimates.kinds import RecentKinds, SimilarityKey

WEIGHT = 5.0
"""How many tasks of a kind weigh as much as all that is known of the wider kind."""
ENDS_OF_NEW = 0.3
"""Before anything was seen: this part of those who come to an age ends at it. It makes all ages alike but for scale."""
GUESS_WEIGHT = 1.0
"""How many tasks weigh as much as that guess."""
MOST = 1000
"""Of a kind that was seen so often, all counts are halved: habits change."""
KINDS = 20_000
"""How many kinds are remembered; the one that was not seen for longest is forgotten first."""

BOUNDS = [age_begins_at(age) for age in range(AGES)] + [2 * age_begins_at(AGES - 1)]


class RemainingTimeModel:
    """What is known of all kinds."""

    def __init__(self) -> None:
        self._kinds = RecentKinds(_Kind, KINDS)
        self._known: dict[SimilarityKey, RemainingTimeLevels] = {}
        """Answers since the last end: whoever submits many at once gets them at once."""
        self._last_ends: deque[SimilarityKey] = deque()
        self._ends_of: Counter[SimilarityKey] = Counter()
        """Of which particular kind the last ends were, and how many of each."""

    def observe(self, asked: TaskFeatures, seconds: float) -> None:
        """A task has ended after it ran for so long."""
        age, kinds = age_of(seconds), _kinds(asked)
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

    def outlook(self, asked: TaskFeatures) -> RemainingTimeLevels:
        """The levels of a task that is submitted now."""
        kinds = _kinds(asked)
        if not asked.user or 2 * self._ends_of[kinds[-1]] > len(self._last_ends):
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
    """How many of a kind ended at each age."""

    __slots__ = ("ended", "seen")

    def __init__(self) -> None:
        self.ended = [0.0] * AGES
        self.seen = 0.0

    def count(self, age: int) -> None:
        """One more."""
        self.ended[age] += 1.0
        self.seen += 1.0
        if self.seen > MOST:
            self.ended = [count / 2 for count in self.ended]
            self.seen /= 2

    def shrunk_towards(self, wider: list[float], weight: float) -> list[float]:
        """The part that ends at each age, of those who come to it."""
        parts, come = [], self.seen
        for ended, other in zip(self.ended, wider, strict=True):
            parts.append((ended + weight * other) / (come + weight))
            come -= ended
        return parts


def _kinds(asked: TaskFeatures) -> list[SimilarityKey]:
    """The kinds a task is of, the widest first."""
    kinds: list[SimilarityKey] = [(), (asked.user,), (asked.user, asked.gpus)]
    if asked.name:
        kinds.append((asked.user, asked.gpus, asked.name))
    return kinds


def _levels(parts: list[float]) -> RemainingTimeLevels:
    """The level at each age, if these parts of those who come to an age end at it."""
    levels = [level_of(index) for index in indices(parts)]
    while len(levels) > 1 and levels[-1] == levels[-2]:
        levels.pop()
    return tuple(levels)


def indices(parts: list[float]) -> list[float]:
    """At each age: seconds of run time for one end, at best, if those who come to it may run until some later age.

    With the run time spent up to an age drawn over the part that has ended by then, this is the least slope from the point
    of an age to a later one: the slope of the lower hull of all later points.
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
