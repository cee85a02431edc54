"""What a function does to what it is given: which parameters it may change, and which its result may refer to.

Objects can be reached by many names: an optimizer holds the parameters of a model, so its `step` changes the model. Inside a
function this is told without regard to order: a name refers to every parameter that any assignment could have put into it.
Of functions that are not in the project, only names are known; see `may_change` and `may_refer` for what is believed of them.
"""

import ast
import builtins
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from gpuyard.learn.analysis.signs import CHANGES_ARGUMENTS, changes_object, sign_of
from gpuyard.learn.analysis.sources import Found, Function, Module, Project, assigned, resolved, statements
from gpuyard.learn.analysis.survey import Surveyor, bound_arguments, handed_over, makers_of, parameters

CHANGERS = re.compile(
    r"(^|_)(train|fit|update|optimi[sz]e|shuffle|init|initiali[sz]e|mutate|fill|sort_in_place|append|push|pop|load_into|fine_?tune)"
)
"""What the name of an unknown function must say for it to be believed to change its arguments."""
CHANGING_BUILTINS = {"next", "setattr", "delattr", "random.shuffle", "heapq.heappush", "heapq.heappop", "heapq.heapify"}
STATEFUL = {"matplotlib.pyplot", "turtle", "pylab"}
HOLDING = {
    "iter",
    "enumerate",
    "zip",
    "list",
    "tuple",
    "dict",
    "set",
    "sorted",
    "reversed",
    "map",
    "filter",
    "torch.compile",
}
"""Functions whose result still refers to their arguments."""


@dataclass(frozen=True)
class Changes:
    """Of one function."""

    changed: frozenset[str] = frozenset()
    """Parameters that may be changed."""
    given_back: frozenset[str] = frozenset()
    """Parameters the result may refer to."""
    globals_read: frozenset[str] = frozenset()
    globals_changed: frozenset[str] = frozenset()
    holds: frozenset[tuple[str, str]] = frozenset()
    """Parameters, or names of the file, that hold others afterwards."""


def may_change(dotted: str) -> bool:
    """Whether a function outside the project is believed to change its arguments."""
    last = dotted.rpartition(".")[2]
    if dotted in CHANGING_BUILTINS or (last.endswith("_") and not last.endswith("__")):
        return True
    return sign_of(dotted) is None and bool(CHANGERS.search(last))


def may_refer(dotted: str, *, is_method: bool) -> bool:
    """Whether the result of something outside the project may refer to its arguments: objects do, results of reckoning do not."""
    last = dotted.rpartition(".")[2]
    if dotted in HOLDING or last[:1].isupper() or is_method:
        return True
    return sign_of(dotted) is None and "." not in dotted and not hasattr(builtins, dotted)


def stateful_names(module: Module) -> set[str]:
    """What a file calls the libraries that draw onto something of their own: every call of theirs changes it."""
    return {name for name, origin in module.imports.items() if origin in STATEFUL}


def seen_from(here: Module, there: Module, name: str) -> str:
    """What a name of one file is called in another: names of files are told apart by the file."""
    if ":" in name:
        return name.removeprefix(f"{here.shown}:")
    return name if here is there else f"{there.shown}:{name}"


def base_name(node: ast.expr) -> str | None:
    """`a` of `a.b[c].d()`."""
    while isinstance(node, ast.Attribute | ast.Subscript | ast.Starred | ast.Await | ast.Call):
        node = node.func if isinstance(node, ast.Call) else node.value
    return node.id if isinstance(node, ast.Name) else None


class Changing:
    """Finds out, once for each function of a project."""

    def __init__(self, project: Project, surveyor: Surveyor) -> None:
        self._project, self._surveyor = project, surveyor
        self._known: dict[int, Changes] = {}

    def of(self, found: Found) -> Changes:
        """What this function does; a function that calls itself is believed to do no more than the rest of it says."""
        known = self._known.get(id(found.function))
        if known is None:
            self._known[id(found.function)] = Changes()
            known = self._known[id(found.function)] = _Look(self, self._surveyor, found).look()
        return known


class _Look:
    def __init__(self, changing: Changing, surveyor: Surveyor, found: Found) -> None:
        self._changing, self._surveyor, self._found = changing, surveyor, found
        arguments = found.function.args
        own = [*parameters(found.function), *(arg.arg for arg in arguments.kwonlyargs)]
        own += [arg.arg for arg in (arguments.vararg, arguments.kwarg) if arg is not None]
        self._roots: dict[str, set[str]] = {name: {name} for name in own}
        self._parameters = frozenset(own)
        self._owner = found.name.rpartition(".")[0]
        self._makers = makers_of(found.function.body, found.module)
        local = {name for node in statements(found.function.body) for name in assigned(node)}
        declared = {name for node in ast.walk(found.function) if isinstance(node, ast.Global) for name in node.names}
        used = {node.id for node in ast.walk(found.function) if isinstance(node, ast.Name)}
        self._states = stateful_names(found.module) & used
        self._globals = (used & found.module.variables) - (local - declared) - self._parameters | self._states
        self._roots |= {name: {name} for name in self._globals}
        self._changed: set[str] = set()
        self._back: set[str] = set()
        self._holds: set[tuple[str, str]] = set()
        self._declared = declared & local

    def look(self) -> Changes:
        body = list(_with_inner(self._found.function))
        for _ in range(2):  # the second time, what names refer to is known from below as well
            for node, is_own in body:
                self._statement(node, is_own=is_own)
        changed = self._changed | self._declared
        return Changes(
            frozenset(changed & self._parameters),
            frozenset(self._back & self._parameters),
            frozenset(self._globals | self._declared),
            frozenset(changed - self._parameters),
            frozenset(self._holds),
        )

    def _statement(self, node: ast.stmt, *, is_own: bool) -> None:
        match node:
            case ast.Assign():
                for target in node.targets:
                    self._store(target, self._of(node.value))
            case ast.AnnAssign() if node.value is not None:
                self._store(node.target, self._of(node.value))
            case ast.AugAssign():
                self._change(node.target)
            case ast.For() | ast.AsyncFor():
                self._store(node.target, self._of(node.iter))
            case ast.With() | ast.AsyncWith():
                for item in node.items:
                    if item.optional_vars is not None:
                        self._store(item.optional_vars, self._of(item.context_expr))
            case ast.Delete():
                for target in node.targets:
                    if not isinstance(target, ast.Name):
                        self._change(target)
            case ast.Return() if node.value is not None and is_own:
                self._back |= self._of(node.value)
        for call in calls_of(node):
            self._call(call, discarded=is_discarded(call, node))

    def _store(self, target: ast.expr, roots: set[str]) -> None:
        if isinstance(target, ast.Tuple | ast.List):
            for one in target.elts:
                self._store(one, roots)
        elif isinstance(target, ast.Starred):
            self._store(target.value, roots)
        elif isinstance(target, ast.Name):
            self._roots.setdefault(target.id, set()).update(roots)
        else:
            self._change(target)
            self._keep(target, roots)

    def _keep(self, target: ast.expr, roots: set[str]) -> None:
        """What is put into an object is held by it."""
        name = base_name(target)
        if name is None:
            return
        own = self._roots.setdefault(name, set())
        self._holds |= {(holder, held) for holder in own for held in roots if holder != held}
        own |= roots

    def _change(self, target: ast.expr) -> None:
        name = base_name(target)
        if name is not None:
            self._changed |= self._roots.get(name, set())

    def _call(self, call: ast.Call, *, discarded: bool) -> None:
        dotted = resolved(call.func, self._found.module) or ""
        inner = self._surveyor.target(call, self._found.module, self._owner, self._makers)
        for made in handed_over(call, dotted):
            handed = self._surveyor.target(made, self._found.module, self._owner, self._makers)
            if handed is not None:
                self._apply(made, handed)
        if inner is not None:
            self._apply(call, inner)
            return
        arguments = [*call.args, *(word.value for word in call.keywords)]
        if base_name(call.func) in self._states:
            self._change(call.func)
        elif isinstance(call.func, ast.Attribute) and not self._is_module(dotted):
            if changes_object(call.func.attr, discarded=discarded):
                self._change(call.func.value)
                self._keep(call.func.value, self._union(arguments))
            if call.func.attr in CHANGES_ARGUMENTS:
                for argument in arguments:
                    self._changed |= self._of(argument)
        elif may_change(dotted):
            for argument in arguments:
                self._changed |= self._of(argument)

    def _apply(self, call: ast.Call, inner: Found) -> None:
        """What a function of the project does to what it is given here."""
        done = self._changing.of(inner)
        for name, value in bound_arguments(call, inner).items():
            if name in done.changed:
                self._changed |= self._of(value)
        given = bound_arguments(call, inner)
        own = parameters(inner.function)
        if inner.is_method and own and isinstance(call.func, ast.Attribute):
            given[own[0]] = call.func.value
            if own[0] in done.changed:
                self._change(call.func.value)
        for holder, held in done.holds:
            if holder in given and held in given:
                self._keep(given[holder], self._of(given[held]))
        self._changed |= {seen_from(self._found.module, inner.module, name) for name in done.globals_changed}
        self._globals |= {seen_from(self._found.module, inner.module, name) for name in done.globals_read}

    def _is_module(self, dotted: str) -> bool:
        imports = self._found.module.imports
        return any(dotted == origin or dotted.startswith(f"{origin}.") for origin in imports.values())

    def _of(self, node: ast.expr) -> set[str]:
        """Parameters this value may refer to."""
        match node:
            case ast.Name():
                return self._roots.get(node.id, set())
            case ast.Attribute() | ast.Subscript() | ast.Starred() | ast.Await():
                return self._of(node.value)
            case ast.Tuple() | ast.List() | ast.Set():
                return self._union(node.elts)
            case ast.Dict():
                return self._union(node.values)
            case ast.IfExp():
                return self._of(node.body) | self._of(node.orelse)
            case ast.BoolOp():
                return self._union(node.values)
            case ast.NamedExpr():
                return self._of(node.value)
            case ast.ListComp() | ast.SetComp() | ast.GeneratorExp():
                return self._union([node.elt, *(part.iter for part in node.generators)])
            case ast.Call():
                return self._of_call(node)
        return set()

    def _of_call(self, call: ast.Call) -> set[str]:
        dotted = resolved(call.func, self._found.module) or ""
        inner = self._surveyor.target(call, self._found.module, self._owner, self._makers)
        arguments = [*call.args, *(word.value for word in call.keywords)]
        if inner is not None and not inner.name.endswith("__init__"):
            given = bound_arguments(call, inner)
            return self._union([given[name] for name in self._changing.of(inner).given_back if name in given])
        is_method = isinstance(call.func, ast.Attribute) and not self._is_module(dotted)
        if not may_refer(dotted, is_method=is_method):
            return set()
        receiver = [call.func.value] if is_method and isinstance(call.func, ast.Attribute) else []
        return self._union([*receiver, *arguments])

    def _union(self, nodes: Iterable[ast.expr]) -> set[str]:
        return set().union(*(self._of(node) for node in nodes))


def _with_inner(function: Function, *, is_own: bool = True) -> Iterator[tuple[ast.stmt, bool]]:
    """Its statements, and those of functions that are defined inside: they reach its names."""
    for node in statements(function.body):
        yield node, is_own
        if isinstance(node, Function):
            yield from _with_inner(node, is_own=False)


def is_discarded(call: ast.Call, statement: ast.stmt) -> bool:
    """Whether a statement is this call and nothing else, so that nobody uses its result."""
    if not isinstance(statement, ast.Expr):
        return False
    value = statement.value
    return value is call or (isinstance(value, ast.Await) and value.value is call)


def calls_of(node: ast.AST) -> list[ast.Call]:
    """Calls of a statement itself: not of those in its body, and not of functions that it only defines."""
    found, waiting = [], [node]
    while waiting:
        here = waiting.pop()
        if isinstance(here, ast.Call):
            found.append(here)
        others = (ast.stmt, ast.Lambda, ast.ExceptHandler, ast.match_case)
        waiting += [below for below in ast.iter_child_nodes(here) if not isinstance(below, others)]
    return found
