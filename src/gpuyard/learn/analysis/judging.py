"""What is a step, what is glue, and what is only the frame around steps: judged by looking, before anything is walked.

A call is a step if it is of a function of the project, or of one nobody knows, and that is not quick by its name or by what it does.
A compound statement is walked into if there are such calls in it, or several statements that work; a loop over batches never
is.
"""

import ast
import builtins
from collections.abc import Callable, Collection
from dataclasses import dataclass

from gpuyard.learn.analysis.changes import calls_of
from gpuyard.learn.analysis.shapes import below, unwrapped
from gpuyard.learn.analysis.sources import Found, Module, dotted_name, resolved, statements
from gpuyard.learn.analysis.steps import BUILDERS, KNOWN, QUICK
from gpuyard.learn.analysis.survey import BATCHES, Seen, Surveyor, handed_over
from gpuyard.learn.analysis.texts import Scope


@dataclass(frozen=True)
class Place:
    """Where in the project a walk is: in a file, or in a function that was walked into."""

    scope: Scope
    makers: dict[str, str]
    """What made what names refer to."""
    owner: str = ""
    """The class it is in."""

    @property
    def module(self) -> Module:
        """The file."""
        return self.scope.module


class Judge:
    """Judges code of one project."""

    def __init__(self, surveyor: Surveyor, entered: Collection[int], is_name: Callable[[str], bool]) -> None:
        """`entered`: functions whose calls are walked into instead of being steps; `is_name`: what refers to something."""
        self._surveyor, self._entered, self._is_name = surveyor, entered, is_name

    def is_task(self, call: ast.Call, place: Place) -> bool:
        """Whether a call is a step."""
        found = self.target(call, place)
        if found is not None:
            return id(found.function) not in self._entered and not self.is_quick(found, place)
        dotted = resolved(call.func, place.module)
        if dotted is None:
            return False
        if any(self._names_task(made, place) for made in handed_over(call, dotted)):
            return True
        first, _, rest = dotted.partition(".")
        last = dotted.rpartition(".")[2]
        if self._is_name(first) or hasattr(builtins, first) or last[:1].isupper():
            return False
        if QUICK.match(last) or BUILDERS.match(last):
            return False
        if self.is_library(dotted, place):
            return dotted.lstrip(".").split(".")[0] not in KNOWN
        return not rest and first not in place.module.classes

    def _names_task(self, call: ast.Call, place: Place) -> bool:
        found = self.target(call, place)
        return found is not None and not self.is_quick(found, place)

    def is_quick(self, found: Found, place: Place) -> bool:
        """Whether a function of the project is glue."""
        name = found.name.rpartition(".")[2]
        if QUICK.match(name):
            return True
        works = self._surveyor.function(found, {}, place.scope).works
        if name == "__init__" or BUILDERS.match(name):
            return not works
        loops = any(isinstance(node, ast.For | ast.While) for node in ast.walk(found.function))
        return found.is_method and not works and not loops

    def works_after_yield(self, found: Found, place: Place) -> bool:
        """Whether a function that a `with` begins goes on to work when that ends."""
        marks = {(resolved(mark, found.module) or "").rpartition(".")[2] for mark in found.function.decorator_list}
        yields = [node.lineno for node in ast.walk(found.function) if isinstance(node, ast.Yield)]
        if not yields or not marks & {"contextmanager", "asynccontextmanager"}:
            return False
        scope = place.scope.inside(found.module, {})
        rest = [node for node in statements(found.function.body) if node.lineno > max(yields)]
        return self._surveyor.look(rest, scope).works

    def _has_task(self, node: ast.stmt, place: Place) -> bool:
        """Whether there is a step in it that is a call; not looking into loops over batches."""
        if self._is_over_batches(node, place):
            return False
        if any(self.is_task(call, place) or self._is_entered(call, place) for call in calls_of(node)):
            return True
        return any(self._has_task(inner, place) for inner in below(node))

    def _is_entered(self, call: ast.Call, place: Place) -> bool:
        dotted = resolved(call.func, place.module) or ""
        targets = (self.target(one, place) for one in [call, *handed_over(call, dotted)])
        return any(found is not None and id(found.function) in self._entered for found in targets)

    def divides(self, node: ast.stmt, place: Place) -> bool:
        """Whether a statement is walked into, instead of being one step or glue as a whole."""
        if self._has_task(node, place):
            return True
        if self._is_over_batches(node, place):
            return False
        working = [inner for inner in below(node) if self.look(inner, place).works]
        if len(working) == 1 and isinstance(node, ast.If | ast.Try | ast.TryStar | ast.With):
            return self.divides(working[0], place)
        return len(working) > 1 and any(below(inner) for inner in working)

    def _is_over_batches(self, node: ast.stmt, place: Place) -> bool:
        if not isinstance(node, ast.For | ast.AsyncFor):
            return False
        source = unwrapped(node.iter, place.module)
        made = place.makers.get(dotted_name(source) or "", "")
        return made.endswith("DataLoader") or bool(BATCHES.search(ast.unparse(source)))

    def look(self, node: ast.AST, place: Place) -> Seen:
        """What some code does."""
        return self._surveyor.look([node], place.scope, place.owner)

    def target(self, call: ast.Call, place: Place) -> Found | None:
        """The function of the project that a call calls."""
        return self._surveyor.target(call, place.module, place.owner, place.makers)

    def is_library(self, dotted: str, place: Place) -> bool:
        """Whether a dotted name is of something imported."""
        return any(dotted == origin or dotted.startswith(f"{origin}.") for origin in place.module.imports.values())
