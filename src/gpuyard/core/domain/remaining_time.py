"""The expected remaining run time of a task by how long it has run: one level for every age.

The age of a task is its run time so far, in doublings: 0 below 16 seconds, 1 below 32, and so on. A level stands for
the run time that similar tasks of that age accumulate, on average, until one of them ends: level 0 is below ten
minutes, and each further level is four times as long, up to level 4 for everything above about eleven hours. A task
that loses its progress when it is stopped, or is never stopped, also has a level for its whole run time, with two
further levels above two and seven days: once it has started, it holds its GPUs to its end.
"""

from bisect import bisect_right

FIRST_SECONDS = 16.0
AGES = 21
"""The number of ages; the last one begins at 97 days."""
LEVEL_SECONDS = (600.0, 2400.0, 9600.0, 38400.0)
"""The lower limits of levels 1, 2, 3 and 4."""

LAST_LEVEL = len(LEVEL_SECONDS)

RUN_LEVEL_SECONDS = (*LEVEL_SECONDS, 153_600.0, 614_400.0)
"""The same for a whole run time, with the lower limits of levels 5 and 6."""
LAST_RUN_LEVEL = len(RUN_LEVEL_SECONDS)

RemainingTimeLevels = tuple[int, ...]
"""The level at each age; the last one also applies to all later ages. Empty: the run time so far decides."""
UNKNOWN_LEVELS: RemainingTimeLevels = (2,)
"""The levels of a task about which the history says nothing: 40 minutes to 2 h 40 min, however long it has run."""


def age_of(ran_seconds: float) -> int:
    """Return the age of a task that has run for this long."""
    return min(int(ran_seconds / FIRST_SECONDS).bit_length(), AGES - 1)


def age_begins_at(age: int) -> float:
    """Return the run time in seconds at which a task reaches an age."""
    return FIRST_SECONDS * 2.0 ** (age - 1) if age else 0.0


def level_of(seconds: float) -> int:
    """Return the level of an expected remaining time."""
    return bisect_right(LEVEL_SECONDS, seconds)


def run_level_of(seconds: float) -> int:
    """Return the level of an expected run time."""
    return bisect_right(RUN_LEVEL_SECONDS, seconds)


def levels_of_run(seconds: float) -> RemainingTimeLevels:
    """Return the levels of a task whose run time is known."""
    return tuple(level_of(seconds - age_begins_at(age)) for age in range(age_of(seconds) + 1))
