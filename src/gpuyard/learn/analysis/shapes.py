"""Shapes of code, told by looking at a statement alone: what is inside of it, whether it leaves, how often it goes round, its name."""

import ast
import re
from collections.abc import Iterable

from gpuyard.learn.analysis.changes import base_name
from gpuyard.learn.analysis.sources import Found, Function, Module, dotted_name, resolved, statements
from gpuyard.learn.analysis.survey import Seen
from gpuyard.learn.analysis.texts import Scope, text

EXITS = {"sys.exit", "exit", "quit", "os._exit"}
WRAPPERS = {
    "enumerate", "tqdm", "tqdm.tqdm", "tqdm.auto.tqdm", "trange", "list", "iter", "reversed", "sorted", "zip",
    "rich.progress.track",
}  # fmt: skip
"""Calls around what is looped over that change neither it nor how often."""


def base(node: ast.expr) -> ast.expr:
    """`a` of `a.b[c]`, to be looked at."""
    name = base_name(node)
    return ast.Name(name, ast.Load()) if name else ast.Constant(None)


def has_star(nodes: Iterable[ast.expr]) -> bool:
    """Whether one of them stands for several."""
    return any(isinstance(node, ast.Starred) for node in nodes)


def below(node: ast.stmt) -> list[ast.stmt]:
    """The statements right inside of one."""
    if isinstance(node, Function | ast.ClassDef):
        return []
    found: list[ast.stmt] = []
    for part in ("body", "orelse", "finalbody"):
        found += getattr(node, part, [])
    for inner in [*getattr(node, "handlers", []), *getattr(node, "cases", [])]:
        found += inner.body
    return found


def leaves(node: ast.stmt) -> bool:
    """Whether what follows in its block is not reached behind it."""
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        return dotted_name(node.value.func) in EXITS
    return isinstance(node, ast.Return | ast.Raise | ast.Break | ast.Continue)


def is_main_guard(node: ast.If) -> bool:
    """Whether it asks if this file is the one that is run."""
    names = {name.id for name in ast.walk(node.test) if isinstance(name, ast.Name)}
    return "__name__" in names and any(
        isinstance(part, ast.Constant) and part.value == "__main__" for part in ast.walk(node.test)
    )


def unwrapped(node: ast.expr, module: Module) -> ast.expr:
    """What is really looped over."""
    while isinstance(node, ast.Call) and node.args and (resolved(node.func, module) or "") in WRAPPERS:
        node = node.args[0]
    if (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in {"items", "values", "keys"}
    ):
        node = node.func.value
    return node


def number_of(node: ast.expr, scope: Scope) -> int | None:
    """A whole number, where it is written down."""
    said = text(node, scope)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        said = f"-{text(node.operand, scope)}"
    return int(said) if said is not None and re.fullmatch(r"-?\d{1,9}", said) else None


def literal_length(name: str, module: Module) -> int | None:
    """Of a list that the file gives this name to, once."""
    found = [
        node.value
        for node in statements(module.tree.body)
        if isinstance(node, ast.Assign) and any(isinstance(t, ast.Name) and t.id == name for t in node.targets)
    ]
    match found:
        case [ast.List(elts=parts) | ast.Tuple(elts=parts) | ast.Set(elts=parts)]:
            return len(parts)
        case [ast.Dict(keys=keys)]:
            return len(keys)
    return None


def _heaviest(seen: Seen) -> str | None:
    """The name of the call that tells most."""
    clues = sorted(seen.clues.values(), key=lambda clue: clue.sign.weight, reverse=True)
    found = re.match(r"[\w.]*?(\w+)\(", clues[0].evidence.seen) if clues else None
    return found[1] if found else None


def name_of(node: ast.AST, found: Found | None, seen: Seen) -> str:
    """What people would call a step."""
    if found is not None:
        owner, _, last = found.name.rpartition(".")
        return owner if last in {"__init__", "__exit__", "__aexit__"} else last
    match node:
        case ast.Call():
            return (dotted_name(node.func) or "call").rpartition(".")[2]
        case ast.Assign(targets=[target]) | ast.AnnAssign(target=target) if isinstance(target, ast.Name):
            return target.id
        case ast.Expr(value=ast.Call(func=func)) | ast.Assign(value=ast.Call(func=func)):
            return (dotted_name(func) or (func.attr if isinstance(func, ast.Attribute) else "call")).rpartition(".")[2]
    told = _heaviest(seen)
    if isinstance(node, ast.If | ast.With | ast.Try | ast.TryStar) and told is not None:
        return told
    kind = seen.kind()
    return f"line_{getattr(node, 'lineno', 0)}" if kind == "other" else kind


def written_rounds(source: ast.expr, scope: Scope) -> int | None:
    """How many rounds, where that is written down."""
    source = unwrapped(source, scope.module)
    match source:
        case ast.List() | ast.Tuple() | ast.Set():
            return len(source.elts)
        case ast.Dict():
            return len(source.keys)
        case ast.Name(id=name):
            return literal_length(name, scope.module)
        case ast.Call(func=ast.Name(id="range" | "trange"), args=args) if args:
            numbers = [number_of(arg, scope) for arg in args]
            whole = [number for number in numbers if number is not None]
            if len(whole) == len(args) and not (len(whole) > 2 and whole[2] == 0):
                return len(range(*whole))
    return None
