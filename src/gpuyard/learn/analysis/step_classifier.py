"""Classifies a step by the calls in it: training, inference, data, hpc or other, and the resource that limits it.

Every call that `api_patterns` knows is a clue with a weight; clues inside of loops count more. Gradients decide: a step
that computes them is training, whatever else it does.
"""

import ast
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

from gpuyard.learn.analysis import api_patterns as api
from gpuyard.learn.analysis.api_patterns import Pattern
from gpuyard.learn.analysis.graph import Evidence, StepKind, TaskBound
from gpuyard.learn.analysis.source import Module, one_line

T = TypeVar("T")
LOOPS_COUNT = 3
"""Maximum number of enclosing loops that add to the weight of a clue."""
DECISIVE = 8.0
"""Weight from which a clue of training outweighs everything."""
RUNS_A_MODEL = 5.0
"""Weight from which a clue of inference outweighs reading of files."""
MOST_EVIDENCE = 8
KINDS: tuple[StepKind, ...] = ("training", "inference", "hpc", "data")
BOUNDS: tuple[TaskBound, ...] = ("compute", "communication", "memory", "io")


class Clue(NamedTuple):
    """A pattern, where it was seen, and in how many loops."""

    evidence: Evidence
    pattern: Pattern
    loops: int = 0


@dataclass
class Clues:
    """All clues in a piece of code."""

    seen: dict[Evidence, Clue] = field(default_factory=dict)
    processes: int = 1
    """Number of processes that it starts, one per GPU."""

    def note(self, clue: Clue | None, loops: int) -> None:
        """Add a clue; of equal ones the one in the most loops is kept."""
        if clue is not None and (clue.evidence not in self.seen or self.seen[clue.evidence].loops < clue.loops + loops):
            self.seen[clue.evidence] = clue._replace(loops=clue.loops + loops)

    def add(self, other: "Clues", loops: int) -> None:
        """Add all clues of a function that is called inside of this number of loops."""
        for clue in list(other.seen.values()):
            self.note(clue, loops)
        self.processes = max(self.processes, other.processes)

    @property
    def uses_gpu(self) -> bool:
        """Whether anything in it would run on a GPU."""
        return any(clue.pattern.gpu for clue in self.seen.values())

    @property
    def is_work(self) -> bool:
        """Whether it is work, and not only preparation."""
        return any(c.pattern.is_work and c.pattern.kind and c.pattern.weight >= 2 for c in self.seen.values())

    @property
    def trains(self) -> bool:
        """Whether anything in it computes gradients."""
        return any(clue.pattern.kind == "training" and clue.pattern.weight >= DECISIVE for clue in self.seen.values())

    @property
    def has_training(self) -> bool:
        """Whether there is any sign of training, such as an optimizer."""
        return any(clue.pattern.kind == "training" for clue in self.seen.values())

    @property
    def unknown(self) -> list[Evidence]:
        """What is not known, in the order of the code."""
        return sorted(clue.evidence for clue in self.seen.values() if clue.pattern is api.NOT_KNOWN)

    def kind(self) -> StepKind:
        """Return the kind with the largest weight."""
        if self.trains:
            return "training"
        runs = any(c.pattern.kind == "inference" and c.pattern.weight >= RUNS_A_MODEL for c in self.seen.values())
        return (
            self._heaviest([kind for kind in KINDS if kind != "data" or not runs], lambda pattern: pattern.kind)
            or "other"
        )

    def bound(self) -> TaskBound:
        """Return the resource that limits it."""
        return self._heaviest(BOUNDS, lambda pattern: pattern.bound) or "unknown"

    def evidence(self) -> tuple[Evidence, ...]:
        """Return the strongest clues and what is not known, in the order of the code."""
        weighty = (clue for clue in self.seen.values() if clue.pattern.weight > 0)
        strongest = sorted(weighty, key=lambda clue: (-_weight(clue), clue.evidence))[:MOST_EVIDENCE]
        return tuple(sorted([*(clue.evidence for clue in strongest), *self.unknown[:MOST_EVIDENCE]]))

    def _heaviest(self, names: Iterable[T], which: Callable[[Pattern], T | None]) -> T | None:
        scores = {name: sum(_weight(c) for c in self.seen.values() if which(c.pattern) == name) for name in names}
        best = max(scores, key=scores.__getitem__)
        return best if scores[best] >= 1 else None


def _weight(clue: Clue) -> float:
    return clue.pattern.weight * (1 + min(clue.loops, LOOPS_COUNT))


def function_clue(node: ast.AST, module: Module, dotted: str) -> Clue | None:
    """Return the clue of a library function, a decorator, an operator or a constant, by its name in the tables."""
    return clue_of(node, module, api.pattern_of(dotted, dotted.rpartition(".")[2]))


def method_clue(node: ast.Call, module: Module, method: str, owner: str) -> Clue | None:
    """Return the clue of a method call; `owner` is the name of the object."""
    owner = owner.lower()
    pattern = api.pattern_of("", method)
    if method == "step" and any(word in owner for word in api.STEPPERS):
        pattern = api.TRAINING_STEP
    elif method.lower() in api.MPI_METHODS and "comm" in owner:
        pattern = api.COMMUNICATOR
    elif "trainer" in owner and method in {"evaluate", "predict", "test", "validate"}:
        pattern = api.INFERENCE
    elif method == "train":
        pattern = api.TRAIN if "trainer" in owner else api.TRAINING_MODE
    return clue_of(node, module, pattern)


def clue_of(node: ast.AST, module: Module, pattern: Pattern | None) -> Clue | None:
    """Return the clue of code that a pattern describes."""
    if pattern is None:
        return None
    words = (pattern.says, pattern.kind, pattern.bound and f"{pattern.bound}-bound")
    says = ", ".join(word for word in words if word)
    return Clue(Evidence(module.shown, getattr(node, "lineno", 0), one_line(node), says), pattern)
