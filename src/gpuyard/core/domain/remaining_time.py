"""How much longer is it likely to run, the longer it has run? A level for every age.

The age of a task is how long it has run, in doublings: 0 below 16 seconds, 1 below 32, and so on. A level stands for
the run time it takes, on average, to see one more task like it end: up to ten minutes is level 0, and each further
level is four times as long, up to level 4 for everything above some eleven hours.
"""

from bisect import bisect_right

FIRST_SECONDS = 16.0
AGES = 21
"""The last one begins after 97 days."""
LEVEL_SECONDS = (600.0, 2400.0, 9600.0, 38400.0)
"""Where levels 1, 2, 3 and 4 begin."""

LAST_LEVEL = len(LEVEL_SECONDS)

RemainingTimeLevels = tuple[int, ...]
"""The level at each age; the last one holds for all later ages, too. Empty: nobody knows."""


def age_of(ran_seconds: float) -> int:
    """How old a task is that has run for so long."""
    return min(int(ran_seconds / FIRST_SECONDS).bit_length(), AGES - 1)


def age_begins_at(age: int) -> float:
    """How long a task has run when it comes to an age."""
    return FIRST_SECONDS * 2.0 ** (age - 1) if age else 0.0


def level_of(seconds: float) -> int:
    """The level of something that takes so long."""
    return bisect_right(LEVEL_SECONDS, seconds)
