"""The expected remaining run time of a task by how long it has run: one level for every age.

The age of a task is its run time so far, in doublings: 0 below 16 seconds, 1 below 32, and so on. A level stands for
the run time that similar tasks of that age accumulate, on average, until one of them ends: level 0 is below ten
minutes, and each further level is four times as long, up to level 4 for everything above about eleven hours.
"""

from bisect import bisect_right

FIRST_SECONDS = 16.0
AGES = 21
"""The number of ages; the last one begins at 97 days."""
LEVEL_SECONDS = (600.0, 2400.0, 9600.0, 38400.0)
"""The lower limits of levels 1, 2, 3 and 4."""

LAST_LEVEL = len(LEVEL_SECONDS)

RemainingTimeLevels = tuple[int, ...]
"""The level at each age; the last one also applies to all later ages. Empty: unknown."""


def age_of(ran_seconds: float) -> int:
    """Return the age of a task that has run for this long."""
    return min(int(ran_seconds / FIRST_SECONDS).bit_length(), AGES - 1)


def age_begins_at(age: int) -> float:
    """Return the run time in seconds at which a task reaches an age."""
    return FIRST_SECONDS * 2.0 ** (age - 1) if age else 0.0


def level_of(seconds: float) -> int:
    """Return the level of an expected remaining time."""
    return bisect_right(LEVEL_SECONDS, seconds)
