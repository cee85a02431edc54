"""Proves that the iterations of a loop are independent and could run at once; unproven means dependent."""

import ast
import re
from dataclasses import replace

from gpuyard.learn.analysis.api_patterns import CLOCK
from gpuyard.learn.analysis.effects import Groups
from gpuyard.learn.analysis.paths import ANY, EACH, may_meet
from gpuyard.learn.analysis.source import assigned, dotted_name, statements
from gpuyard.learn.analysis.steps import Script, Unit

CONTAINS_TRAINING = "contains training"


def why_dependent(unit: Unit, script: Script) -> str | None:
    """Return why iterations may need each other; None if each uses only its own variables and files and no hidden state."""
    loop = unit.node
    if not isinstance(loop, ast.For) or loop.orelse or not unit.rounds:
        return "the code does not say how many there are"
    if script.hazard is not None:
        return script.hazard
    if unit.effects.clues.has_training:
        return CONTAINS_TRAINING
    if any(isinstance(part, ast.Break | ast.Return | ast.Yield) for part in ast.walk(loop)):
        return "one may be the last"
    body = {name for part in statements(loop.body) for name in assigned(part)}
    distinct = _distinct_names(loop.target, loop.iter) - body
    walker, scope = unit.walker, unit.walker.scope
    walker.scope = replace(scope, names=scope.names | dict.fromkeys(distinct, EACH))
    effects = walker.unit(loop.body, loop)
    walker.scope = scope
    if effects.states - {CLOCK}:
        return unit.unknown or ", ".join(sorted(effects.states - {CLOCK}))
    if effects.exits:
        return "one may end the script"
    groups = Groups(effects.aliases)
    outside = {groups.group(variable) for variable in effects.reads}
    changed = effects.reads & effects.assigns
    changed |= {one for one in effects.changes if one in effects.reads or groups.group(one) in outside}
    if changed:
        return f"{min(one.name for one in changed)} changes"
    used = [variable.name for variable in unit.effects.assigns if script.readers[variable]]
    if used:
        return f"the last value of {min(used)} is used"
    held = [(file.path, f", which line {other.node.lineno} uses") for other, file in script.held if other is not unit]
    used_here = [(file.path, "") for file in effects.files]
    for written in sorted(file.path for file in effects.files if file.writes):
        shown = written.replace(EACH, ANY)
        if written.count(EACH) != 1 or ANY in written:
            return f"file {shown}"
        for path, where in (*used_here, *held):
            if path != written and may_meet(path.replace(EACH, ANY), shown):
                return f"file {shown}{where}"
    return None


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
