"""Knowledge about library calls: the kind of work they belong to, the files they use, and what they change.

The tables are in `library_calls.toml`; a new library is a line there. A call that is in none of them is unknown: it may
do anything. So is a known one with an argument that was not thought of: one more by position, or one of another name,
may ask it to work in place, be where it puts its result, or be called. For the kind of work and the files the longest
known prefix of a dotted name wins; what a call changes is known for whole names only. Methods are found by their last
name; the tables hold for objects of the known libraries only.
"""

import ast
import enum
import tomllib
from collections.abc import Callable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, TypeVar

from gpuyard.learn.analysis.graph import StepKind, TaskBound

T = TypeVar("T")
RANDOM: Final = "random numbers"
CLOCK: Final = "the clock"
"""Values that differ from run to run. They order nothing, but must not be computed in several processes."""
EXITS: Final = "the end of the script"


class Pattern(NamedTuple):
    """What one call implies about the work it belongs to."""

    kind: StepKind | None
    bound: TaskBound | None
    weight: float
    says: str
    gpu: bool = False
    """Whether it runs on a GPU if there is one."""
    is_work: bool = True
    """Whether it takes time itself; False if it only prepares other work."""


class FileUse(NamedTuple):
    """A file that a call uses."""

    how: Literal["read", "write", "adds", "mode"]
    """`adds`: it writes, and may add a suffix; `mode`: as the argument after the file says, as for `open`."""
    place: int
    """Number of the argument; -1 is the object of a method, -2 the path that the call returns."""


class Kind(enum.Enum):
    """What is known about a value."""

    PLAIN = "a number, a string, a path: it never changes"
    LIST = "a list, dictionary, array, table or tensor: iterating over it changes nothing"
    HANDLE = "an open file or the like: iterating over it changes it and nothing else"
    RANDOM = "a generator of random numbers that is not the one of its library"
    OWN = "an object of a class of the project that inherits from no library"
    OBJECT = "anything"

    def __or__(self, other: "Kind") -> "Kind":
        """Return the kind of a value that is of one of two kinds."""
        if self is other:
            return self
        return Kind.LIST if {self, other} == {Kind.PLAIN, Kind.LIST} else Kind.OBJECT


class Effect(NamedTuple):
    """What a call changes besides its result."""

    changes: tuple[int, ...] = ()
    """Arguments that it changes; -1 is the object of a method."""
    state: str = ""
    """The hidden state that it uses and changes."""
    result: Kind | None = Kind.OBJECT
    """None: the kind of the object."""
    iterates: bool = False
    """It iterates over its arguments, which consumes iterators, or calls them."""
    calls: bool = False
    """It calls its arguments, and what they contain."""
    named: bool = False
    """Arguments of any name are harmless."""
    most: int | None = None
    """With more arguments by position it is unknown."""

    def knows(self, call: ast.Call) -> bool:
        """Return whether a call has no arguments but those that were thought of."""
        is_starred = any(isinstance(arg, ast.Starred) for arg in call.args)
        if is_starred and (self.most is not None or max(self.changes, default=-1) >= 0):
            return False
        by_position = self.most is None or len(call.args) <= self.most
        return by_position and (self.named or all(word.arg in _KEYWORDS for word in call.keywords))


CHANGES_OBJECT: Final = Effect(changes=(-1,))
INFERENCE: Final = Pattern("inference", "compute", 5, "runs a model without gradients", gpu=True)
TRAIN: Final = Pattern("training", "compute", 8, "trains", gpu=True)
TRAINING_STEP: Final = Pattern("training", None, 2, "a training step", gpu=True, is_work=False)
TRAINING_MODE: Final = Pattern("training", None, 1, "a model in training mode", gpu=True)
NOT_KNOWN: Final = Pattern(None, None, 0, "unknown, so ordered with everything")
COMMUNICATOR: Final = Pattern("hpc", "communication", 5, "uses MPI")


def _pattern(kind: str, bound: str, weight: float, says: str, flags: str) -> Pattern:
    return Pattern(kind or None, bound or None, weight, says, "gpu" in flags, "setup" not in flags)  # type: ignore[arg-type]


def _files(uses: str) -> tuple[FileUse, ...]:
    parts = (use.split() for use in uses.split(", ") if use)
    return tuple(FileUse(how, int(place)) for how, place in parts)  # type: ignore[arg-type]


def _effect(changes: list[int], state: str, flags: str) -> Effect:
    results = {"plain": Kind.PLAIN, "list": Kind.LIST, "handle": Kind.HANDLE, "random": Kind.RANDOM, "same": None}
    result = next((kind for flag, kind in results.items() if flag in flags), Kind.OBJECT)
    most = next((int(flag) for flag in flags.split() if flag.isdigit()), None)
    return Effect(tuple(changes), state, result, "iterates" in flags, "calls" in flags, "named" in flags, most)


_TABLES: Final[dict[str, Any]] = tomllib.loads(
    Path(__file__).with_name("library_calls.toml").read_text(encoding="utf-8")
)


def _table(name: str, made: Callable[..., T]) -> dict[str, T]:
    return {call: made(*columns) for *columns, calls in _TABLES[name] for call in calls.split()}


_PATTERNS, _METHOD_PATTERNS = _table("function_patterns", _pattern), _table("method_patterns", _pattern)
_FILES, _METHOD_FILES = _table("function_files", _files), _table("method_files", _files)
_EFFECTS, _METHOD_EFFECTS = _table("function_effects", _effect), _table("method_effects", _effect)
LIBRARIES: Final = frozenset(name.partition(".")[0] for name in _EFFECTS)
DECORATORS: Final = frozenset(_TABLES["decorators"].split())
LATER: Final = {what: frozenset(_TABLES[f"later_{what}"].split()) for what in ("modules", "names", "methods")}
WRAPPERS: Final = frozenset(_TABLES["wrappers"].split())
CALLBACKS: Final = frozenset(_TABLES["callbacks"].split())
TEXT_METHODS: Final = frozenset(_TABLES["text_methods"].split())
SUFFIXES: Final = tuple(_TABLES["suffixes"].split())
FILE_KEYWORDS: Final = frozenset(_TABLES["file_keywords"].split())
_KEYWORDS: Final = frozenset(_TABLES["keywords"].split()) | CALLBACKS | FILE_KEYWORDS
MPI_METHODS: Final = frozenset(_TABLES["mpi_methods"].split())
NAMES: Final[Mapping[str, str]] = _TABLES["names"]
STEPPERS: Final = frozenset(_TABLES["steppers"].split())


def _longest(table: Mapping[str, T], dotted: str) -> T | None:
    """Return the entry of the longest prefix: whole words, or letters if an entry ends in _ or a capitalized word."""
    for end in range(len(dotted), 0, -1):
        head = dotted[:end]
        if head in table:
            whole = end == len(dotted) or dotted[end] == "."
            capital = head.rpartition(".")[2][:1].isupper() and "." in head
            if whole or capital or head.endswith(("_", ".conv")):
                return table[head]
    return None


@lru_cache(maxsize=65536)
def pattern_of(dotted: str, method: str) -> Pattern | None:
    """Return what a call implies about its work, by its dotted name, otherwise by the name of the method."""
    return _longest(_PATTERNS, dotted) or _METHOD_PATTERNS.get(method)


@lru_cache(maxsize=65536)
def files_of(dotted: str, method: str) -> tuple[FileUse, ...]:
    """Return the files that a call uses, by its dotted name, otherwise by the name of the method."""
    found = _longest(_FILES, dotted)
    return _METHOD_FILES.get(method, ()) if found is None else found


def function_effect(dotted: str) -> Effect | None:
    """Return what a function changes; None if it is not known."""
    return _EFFECTS.get(dotted) or _EFFECTS.get(f"{dotted.rpartition('.')[0]}.")


def method_effect(name: str) -> Effect | None:
    """Return what a method changes; None if it is not known."""
    return _METHOD_EFFECTS.get(name)


def is_module(dotted: str) -> bool:
    """Return whether the tables have functions below this name."""
    return any(name.startswith(f"{dotted}.") for name in _EFFECTS)
