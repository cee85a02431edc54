"""Divides a script into units, one for each statement, and finds which of them are steps.

A *step* is a statement that works: it calls a function of the project or an unknown one, or a library call that takes
time. A loop is one step. Everything else is *setup*: options, constants, building a model. Setup is not shown, but
dependencies pass through it. If one call does all the work (`main()`), its body is divided instead.
"""

import ast
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from gpuyard.learn.analysis import api_patterns as api
from gpuyard.learn.analysis.effects import EVERYTHING, Effects, FileAccess, Variable
from gpuyard.learn.analysis.hazards import hazard
from gpuyard.learn.analysis.paths import NameScope, options_of, text
from gpuyard.learn.analysis.source import Found, Function, Module, Project, dotted_name, is_main_guard, resolved
from gpuyard.learn.analysis.walker import Analysis, Walker

QUICK, BUILDERS = re.compile(api.NAMES["quick"]), re.compile(api.NAMES["builders"])
"""Functions that are setup by their name; builders only if they do not work."""
TRIVIAL, ITERATION = frozenset(api.NAMES["trivial"].split()), frozenset(api.NAMES["iteration"].split())
"""Calls that do not make a loop a step, and calls around a loop's iterable that keep the number of iterations."""
DEFINITIONS = Function | ast.Import | ast.ImportFrom | ast.Pass | ast.Global | ast.Nonlocal
"""Statements that are units only if they have effects."""


@dataclass(eq=False)
class Unit:
    """A statement of the script, or of the function that does its work."""

    number: int
    node: ast.stmt
    effects: Effects
    is_step: bool
    walker: Walker

    @property
    def unknown(self) -> str:
        """Where its first unknown effect is; empty if it has none."""
        places = [f" ({seen.file}:{seen.line} {seen.seen})" for seen in self.effects.clues.unknown]
        return f"{EVERYTHING}{places[0] if places else ''}" if EVERYTHING in self.effects.states else ""

    @property
    def rounds(self) -> int | None:
        """Number of iterations of a loop; None if the code does not say."""
        return _rounds(self.node.iter, self.walker.scope) if isinstance(self.node, ast.For) else None


@dataclass
class Script:
    """A script, divided into units."""

    module: Module
    files: list[Module]
    """All files of the project that were read."""
    units: list[Unit]
    hazard: str | None
    """Why all steps keep their order; None if they do not."""

    @cached_property
    def readers(self) -> Counter[Variable]:
        """The number of units that read a variable which was assigned before."""
        return Counter(variable for unit in self.units for variable in unit.effects.reads)

    @cached_property
    def held(self) -> list[tuple[Unit, FileAccess]]:
        """Files that values were made with which other units use."""
        return [(one, file) for one in self.units for name, file in one.effects.holds if self.readers[name]]


def read_script(path: Path, arguments: Sequence[str] = ()) -> Script:
    """Read a script as it would run when called with these arguments."""
    project = Project(path)
    module = project.module(path)
    scope = NameScope(module, {}, options_of(module, arguments), tuple(arguments))
    guarded = [node.body if is_main_guard(node) else [node] for node in module.tree.body]
    walker = Walker(Analysis(project, scope), module, scope)
    units = _units(walker, [node for body in guarded for node in body])
    for _ in range(5):  # main() may call run(), which may call another one
        working = [unit for unit in units if unit.is_step]
        entry = _entry(working[0].node) if len(working) == 1 else None
        found = walker.function(entry.func) if entry is not None else None
        if entry is None or found is None:
            break
        walker, binding = walker.enter(found, entry)
        inner = _units(walker, found.function.body)
        if not any(unit.is_step for unit in inner):
            break
        at = working[0].number
        given = Unit(at, working[0].node, binding, is_step=False, walker=working[0].walker)
        units = [*units[:at], given, *inner, *units[at + 1 :]]
        for number, unit in enumerate(units):
            unit.number = number
    return Script(module, project.modules(), units, hazard(project))


def _units(walker: Walker, body: Sequence[ast.stmt]) -> list[Unit]:
    found: list[Unit] = []
    for node in body:
        effects = walker.unit([node])
        if isinstance(node, DEFINITIONS) and not effects.states:
            continue
        found.append(Unit(len(found), node, effects, _is_step(node, effects), walker))
    return found


def _entry(node: ast.stmt) -> ast.Call | None:
    """Return the call of a statement that is only a call, such as `main()` or `sys.exit(main())`."""
    call = node.value if isinstance(node, ast.Expr) else node.exc if isinstance(node, ast.Raise) else None
    if isinstance(call, ast.Call) and dotted_name(call.func) in {"sys.exit", "exit", "asyncio.run", "SystemExit"}:
        call = call.args[0] if call.args else None
    return call if isinstance(call, ast.Call) else None


def is_quick(found: Found, effects: Effects) -> bool:
    """Return whether a function of the project is setup."""
    name = found.name.rpartition(".")[2]
    return bool(QUICK.match(name)) or (bool(BUILDERS.match(name)) and not effects.clues.is_work)


def _is_step(node: ast.stmt, effects: Effects) -> bool:
    if isinstance(node, ast.ClassDef | DEFINITIONS):
        return False
    if effects.clues.is_work or any(not is_quick(found, effects) for found in effects.calls):
        return True
    if any(name.islower() and not QUICK.match(name.rpartition(".")[2]) for name in effects.unknown_calls):
        return True
    if not isinstance(node, ast.For | ast.While | ast.AsyncFor):
        return False
    calls = [part.func for part in ast.walk(node) if isinstance(part, ast.Call)]
    names = {func.attr if isinstance(func, ast.Attribute) else dotted_name(func) or "" for func in calls}
    loops = sum(isinstance(part, ast.For | ast.While) for part in ast.walk(node))
    return loops > 1 or not names <= TRIVIAL


def step_name(unit: Unit) -> str:
    """Return a name for a step: the project function that it calls, otherwise the library call or its class."""
    called = [found for found in unit.effects.calls if not is_quick(found, unit.effects)]
    if unit.effects.clues.trains:  # training determines the name
        training = [found for found in called if unit.walker.analysis.summary(found, {}).clues.trains]
        called = training or ([] if isinstance(unit.node, ast.For | ast.While | ast.AsyncFor) else called)
    if called:
        owner, _, last = called[0].name.rpartition(".")
        return owner if last == "__init__" else last
    kind = unit.effects.clues.kind()
    if isinstance(unit.node, ast.For | ast.While | ast.AsyncFor) and kind != "other":
        return kind
    known = (clue for clue in unit.effects.clues.seen.values() if clue.pattern is not api.NOT_KNOWN)
    clues = sorted(known, key=lambda clue: -clue.pattern.weight)
    seen = re.match(r"[\w.]*?(\w+)\(", clues[0].evidence.seen) if clues else None
    names = [seen[1]] if seen else [name.rpartition(".")[2] for name in unit.effects.unknown_calls]
    return names[0] if names else f"line_{unit.node.lineno}" if kind == "other" else kind


def _rounds(source: ast.expr, scope: NameScope) -> int | None:
    """Return the number of elements of a loop's iterable; None if it is not written in the code."""
    while isinstance(source, ast.Call) and source.args and resolved(source.func, scope.module) in ITERATION:
        source = source.args[0]
    match source:
        case ast.List() | ast.Tuple() | ast.Set():
            return len(source.elts)
        case ast.Call(func=ast.Name(id="range"), args=args) if args:
            numbers = [_whole(text(arg, scope)) for arg in args]
            whole = [number for number in numbers if number is not None]
            return len(range(*whole)) if len(whole) == len(args) and whole[2:] != [0] else None
    return None


def _whole(found: str | None) -> int | None:
    return int(found) if found is not None and re.fullmatch(r"\d{1,9}", found) else None
