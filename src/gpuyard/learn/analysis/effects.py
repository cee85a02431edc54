"""What a piece of code reads, assigns and changes: variables, files and hidden state.

Objects are not tracked. Variables that a statement combines may from then on refer to a common object: they are
*aliases*, and a change of one is a change of all in its group. A file belongs to the values that were made with it: a
statement that uses such a value may use the file.
"""

from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Final, Generic, NamedTuple, TypeVar

from gpuyard.learn.analysis.api_patterns import Kind
from gpuyard.learn.analysis.source import Found, Function
from gpuyard.learn.analysis.step_classifier import Clues

K = TypeVar("K", bound=Hashable)
EVERYTHING: Final = "unknown effects"
"""The state of an unknown call: it is ordered with everything."""


class Variable(NamedTuple):
    """A name in a scope: a file, or a function of a file."""

    scope: str
    name: str


ESCAPED: Final = Variable("", "what an unknown call was given")
"""All objects that an unknown call was given or has returned may refer to each other, and so may raised exceptions."""
ENVIRONMENT: Final = Variable("os", "environ")


class FileAccess(NamedTuple):
    """A file that is read or written."""

    path: str
    writes: bool


@dataclass
class Effects:
    """The effects of a piece of code, or of a call of a function."""

    reads: set[Variable] = field(default_factory=set)
    """Variables whose previous value is read."""
    assigns: set[Variable] = field(default_factory=set)
    changes: set[Variable] = field(default_factory=set)
    """Variables whose object may change."""
    aliases: set[tuple[Variable, Variable]] = field(default_factory=set)
    files: set[FileAccess] = field(default_factory=set)
    holds: set[tuple[Variable, FileAccess]] = field(default_factory=set)
    """Variables whose values were made with files."""
    states: set[str] = field(default_factory=set)
    """Hidden state that is used and changed."""
    exits: bool = False
    """Whether it may end the script, or the function that does its work."""
    changes_arguments: bool = False
    """For a function: whether it may change its arguments."""
    keeps_arguments: bool = False
    """For a function: whether a variable outside of it may refer to its arguments."""
    iterates_arguments: bool = False
    """For a function: whether it iterates over its arguments, which may run anything."""
    returns: Kind = Kind.PLAIN
    calls: list[Found] = field(default_factory=list)
    """Functions of the project that are called here directly."""
    unknown_calls: list[str] = field(default_factory=list)
    clues: Clues = field(default_factory=Clues)

    def from_outside(self, scope: str, given: Iterable[str]) -> "Effects":
        """Return the effects of a function without its local variables."""
        groups = Groups(self.aliases)
        own = {groups.group(Variable(scope, name)) for name in given}
        changed = {groups.group(variable) for variable in self.changes}
        every = self.reads | self.changes | {variable for pair in self.aliases for variable in pair}
        outer = {variable for variable in every if variable.scope != scope}
        together: dict[Variable, list[Variable]] = {}
        for variable in sorted(outer):
            together.setdefault(groups.group(variable), []).append(variable)
        return replace(
            self,
            reads=outer,
            assigns={variable for variable in self.assigns if variable.scope != scope},
            changes={variable for variable in outer if groups.group(variable) in changed},
            aliases={pair for group in together.values() for pair in pairwise(group)},
            holds={(variable, file) for variable, file in self.holds if variable.scope != scope},
            changes_arguments=bool(own & changed),
            keeps_arguments=any(groups.group(variable) in own for variable in outer),
        )


class Groups(Generic[K]):
    """Keys that were joined, directly or through others, are in one group (union-find)."""

    def __init__(self, pairs: Iterable[tuple[K, K]]) -> None:
        self._above: dict[K, K] = {}
        for pair in pairs:
            one, other = map(self.group, pair)
            if one != other:
                self._above[other] = one

    def group(self, key: K) -> K:
        """Return the representative of the group of a key."""
        path = []
        while key in self._above:
            path.append(key)
            key = self._above[key]
        for below in path:
            self._above[below] = key
        return key


def parameters(function: Function) -> list[str]:
    """Return all parameters; positional ones come first."""
    given = function.args
    rest = [arg for arg in (given.vararg, given.kwarg) if arg is not None]
    return [arg.arg for arg in [*given.posonlyargs, *given.args, *given.kwonlyargs, *rest]]
