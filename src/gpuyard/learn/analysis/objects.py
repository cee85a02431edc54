"""Values as the walk follows them: objects that names refer to, and the steps whose work is in them."""

from collections.abc import Iterable
from typing import Final, NamedTuple


class Value(NamedTuple):
    """What an expression is: objects it refers to, steps whose work is in it."""

    objects: frozenset[int] = frozenset()
    steps: frozenset[int] = frozenset()


NOTHING: Final = Value()
NOBODY: Final[frozenset[int]] = frozenset()


class State:
    """What is known at one place of the walk."""

    __slots__ = ("names", "readers", "writers")

    def __init__(self) -> None:
        self.names: list[dict[str, frozenset[int]]] = [{}]
        """Of the file, then of each function that was walked into."""
        self.writers: dict[int, frozenset[int]] = {}
        self.readers: dict[int, frozenset[int]] = {}

    def copy(self) -> "State":
        """For one of several ways on."""
        made = State()
        made.names = [dict(names) for names in self.names]
        made.writers, made.readers = dict(self.writers), dict(self.readers)
        return made

    def join(self, other: "State") -> None:
        """Either way may have been taken."""
        for mine, theirs in zip(self.names, other.names, strict=True):
            for name, objects in theirs.items():
                known = mine.get(name, NOBODY)
                if known is not objects:  # mostly both are what they were before the ways parted
                    mine[name] = known | objects
        for mine_of, theirs_of in ((self.writers, other.writers), (self.readers, other.readers)):
            for thing, steps in theirs_of.items():
                known = mine_of.get(thing, NOBODY)
                if known is not steps:
                    mine_of[thing] = known | steps


def together(values: Iterable[Value]) -> Value:
    """What several values are, taken as one."""
    objects: frozenset[int] = frozenset()
    steps = NOBODY
    for value in values:
        objects |= value.objects
        steps |= value.steps
    return Value(objects, steps)
