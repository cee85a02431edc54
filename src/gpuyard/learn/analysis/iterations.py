"""Proves that the iterations of a loop are independent and could run at once; unproven means dependent."""

import ast
import re
from dataclasses import replace

from gpuyard.learn.analysis.api_patterns import CLOCK
from gpuyard.learn.analysis.groups import Groups
from gpuyard.learn.analysis.paths import Text, may_meet
from gpuyard.learn.analysis.source import assigned, dotted_name, statements
from gpuyard.learn.analysis.steps import Script, Unit


def are_independent(unit: Unit, script: Script) -> bool:
    """Return whether each iteration uses only its own variables and files and no hidden state; never for training."""
    loop = unit.node
    if not isinstance(loop, ast.For) or loop.orelse or not unit.rounds or script.hazard is not None:
        return False
    if unit.effects.clues.has_training:
        return False
    if any(isinstance(part, ast.Break | ast.Return | ast.Yield) for part in ast.walk(loop)):
        return False
    body = {name for part in statements(loop.body) for name in assigned(part)}
    distinct = _distinct_names(loop.target, loop.iter) - body
    walker, scope = unit.walker, unit.walker.scope
    names = {name: Text("*", frozenset([name])) for name in distinct}
    walker.scope = replace(scope, names=scope.names | names)
    effects = walker.unit(loop.body, loop)
    walker.scope = scope
    if effects.states - {CLOCK} or effects.exits or effects.reads & effects.assigns:
        return False
    groups = Groups(effects.aliases)
    outside = {groups.group(variable) for variable in effects.reads}
    if any(variable in effects.reads or groups.group(variable) in outside for variable in effects.changes):
        return False
    held = {file for other in script.units for _, file in other.effects.holds if other is not unit}
    for written in (file.path for file in effects.files if file.writes):
        own = len(written.variables & distinct) == 1 == written.pattern.count("*")
        meets = [file.path for file in effects.files | held if may_meet(file.path.pattern, written.pattern)]
        if not own or any(path != written for path in meets):
            return False
    return True


def _distinct_names(target: ast.expr, source: ast.expr) -> frozenset[str]:
    """Return the loop variables that have a different value in every iteration."""
    match target, source:
        case ast.Tuple(elts=[ast.Name(id=name), *_]), ast.Call(func=func) if dotted_name(func) == "enumerate":
            return frozenset([name])
        case ast.Name(id=name), ast.Call(func=func) if dotted_name(func) == "range":
            return frozenset([name])
        case ast.Name(id=name), ast.List(elts=parts) | ast.Tuple(elts=parts):
            values = [str(part.value) for part in parts if isinstance(part, ast.Constant)]
            differ = len(set(values)) == len(parts) and all(re.fullmatch(r"\w[\w.-]*", value) for value in values)
            return frozenset([name]) if differ else frozenset()
    return frozenset()
