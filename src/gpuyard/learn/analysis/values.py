"""What the names and expressions of one scope refer to, what kind of value they have, and what a call may reach.

The kind of a value decides how much is known about it. A method call is a call of every method of that name in the
project, and of the method that the tables have, which hold for objects of known libraries only. A call is unknown if it
reaches a library function or method that the tables do not have, an object of an unknown library, or a function in a
variable.
"""

import ast
import builtins
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, Final

from gpuyard.learn.analysis import api_patterns as api
from gpuyard.learn.analysis.api_patterns import Kind
from gpuyard.learn.analysis.effects import ENVIRONMENT, ESCAPED, FileAccess, Variable, parameters
from gpuyard.learn.analysis.paths import ANY, NameScope, text
from gpuyard.learn.analysis.source import Found, Function, Module, assigned, dotted_name, resolved, statements

if TYPE_CHECKING:
    from gpuyard.learn.analysis.walker import Analysis

DISPLAYS = (ast.List, ast.Dict, ast.Set, ast.ListComp, ast.SetComp, ast.DictComp)
PASSES_ELEMENTS: Final = {"enumerate", "zip", "reversed", "sorted", "list", "tuple", "tqdm.tqdm", "tqdm.auto.tqdm"}
"""Functions whose result has the elements of their arguments."""

READS_LATER: Final = {"csv.reader", "csv.DictReader", "csv.writer", "csv.DictWriter", "io.TextIOWrapper"}
"""Functions whose result runs what they are given, which may be a generator or an object of the project."""


@dataclass
class Callee:
    """What a call may run, and what it returns."""

    functions: list[Found] = field(default_factory=list)
    """Functions and methods of the project."""
    effect: api.Effect | None = None
    """What the tables say about it."""
    is_known: bool = False
    returns: Kind = Kind.OBJECT
    library: str = ""
    """The dotted name of something imported or built in."""
    made: tuple[Module, str] | None = None
    """The class of the project whose object it makes."""


ENVIRONMENT_NAMES = frozenset(
    {
        *("os.environ", "os.environb", "os.getenv", "os.getenvb", "os.putenv", "os.unsetenv", "os.get_exec_path"),
        *("os.path.expanduser", "os.path.expandvars", "pathlib.Path.home", "pathlib.PosixPath.home"),
        *("tempfile.gettempdir", "tempfile.gettempdirb", "tempfile.gettempprefix", "getpass.getuser"),
    }
)
"""Names of the standard library that use environment variables, such as HOME and TMPDIR."""


class Values:
    """One scope, a file or a function."""

    def __init__(self, analysis: "Analysis", module: Module, scope: NameScope, function: Found | None = None) -> None:
        self.analysis, self.project, self.module, self.scope = analysis, analysis.project, module, scope
        self.key = module.shown
        self.kinds: dict[Variable, Kind] = {}
        """The kind of all values so far of each variable."""
        self.given: set[str] = set()
        """In a function: its parameters."""
        self._owner: tuple[Module, str] | None = None
        """In a method: its class."""
        self.nested: set[str] = set()
        """In a function: the functions that it defines; what they do is not known."""
        self._locals = frozenset(module.variables)
        self.callees: dict[int, tuple[ast.Call, Callee]] = {}
        """Calls of the statement that is being processed."""
        if function is not None:
            self._enter(function)

    def _enter(self, found: Found) -> None:
        node = found.function
        self.key = f"{self.module.shown}:{found.name}:{node.lineno}"
        self.given = set(parameters(node))
        owner = found.name.partition(".")[0]
        self._owner = (self.module, owner) if found.is_method and owner in self.module.classes else None
        declared = {n for part in ast.walk(node) if isinstance(part, ast.Global | ast.Nonlocal) for n in part.names}
        inside = list(statements(node.body))
        self.nested = {part.name for part in inside if isinstance(part, Function)}
        own = {name for part in inside for name in assigned(part)} - declared
        self._locals = frozenset(own | self.given | self.nested)

    # --- names ---------------------------------------------------------------------------------------------------------

    def variable(self, name: str) -> Variable | None:
        """Return the variable that a name refers to here."""
        if name in self._locals:
            return Variable(self.key, name)
        if name in self.module.variables:
            return Variable(self.module.shown, name)
        return self._variable_elsewhere(self.module.imports.get(name))

    def _variable_elsewhere(self, dotted: str | None) -> Variable | None:
        """Return the variable of another file, or the environment, that a dotted name refers to."""
        if dotted in ENVIRONMENT_NAMES:
            return ENVIRONMENT
        there = self.project.variable(self.module, dotted) if dotted else None
        return Variable(there[0].shown, there[1]) if there else None

    def library_name(self, node: ast.expr) -> str | None:
        """Return the dotted name of something imported or built in."""
        first = (dotted_name(node) or "").partition(".")[0]
        if first in self.module.imports or (hasattr(builtins, first) and not self.variable(first)):
            return resolved(node, self.module)
        return None

    def function(self, node: ast.expr) -> Found | None:
        """Return the function of the project that an expression names."""
        dotted, first = resolved(node, self.module), (dotted_name(node) or "").partition(".")[0]
        if dotted is None or (
            first in self._locals and first not in self.module.imports and first not in self.module.classes
        ):
            return None
        return self.project.function(self.module, dotted)

    def mentioned(self, node: ast.AST) -> set[Variable]:
        """Return the variables that code mentions, in this scope or in other files."""
        found: set[Variable | None] = set()
        for part in ast.walk(node):
            if isinstance(part, ast.Name):
                found.add(self.variable(part.id) or self._undefined(part.id))
            elif isinstance(part, ast.Attribute) and (dotted := self.library_name(part)):
                found.add(self._variable_elsewhere(dotted))
        return {variable for variable in found if variable is not None}

    def _undefined(self, name: str) -> Variable | None:
        """Return the variable of a name that nothing in the file defines, such as one from `from x import *`."""
        known = (self.module.imports, self.module.functions, self.module.classes, builtins.__dict__)
        return None if any(name in names for names in known) else Variable(self.module.shown, name)

    def references(self, *nodes: ast.AST) -> set[Variable]:
        """Return the variables that the values of code may share objects with."""
        found: set[Variable] = set()
        for node in nodes:
            found |= {variable for variable in self.mentioned(node) if self.kind_of(variable) is not Kind.PLAIN}
            for call in (part for part in ast.walk(node) if isinstance(part, ast.Call)):
                callee = self.callee(call)
                found |= set().union(*(self.outside(one, call) for one in callee.functions))
                found |= set() if callee.is_known else {ESCAPED}
        return found

    def outside(self, found: Found, call: ast.Call | None = None) -> set[Variable]:
        """Return the variables outside of a function whose objects it may use."""
        inside = self.analysis.summary(found, self.texts(found, call) if call is not None else {})
        return {variable for variable in inside.reads if self.kind_of(variable) is not Kind.PLAIN}

    # --- kinds ---------------------------------------------------------------------------------------------------------

    def kind_of(self, variable: Variable) -> Kind:
        """Return the kind of all values of a variable."""
        if variable.name in self.module.shared and variable.scope == self.module.shown:
            return Kind.OBJECT
        if variable in self.kinds:
            return self.kinds[variable]
        if variable.scope == self.key:
            return Kind.PLAIN if variable.name in self.scope.names else Kind.OBJECT  # a parameter with a known text
        return self.analysis.literal_kind(variable)

    def kind(self, node: ast.expr) -> Kind:
        """Return the kind of the value of an expression."""
        match node:
            case ast.Constant() | ast.JoinedStr():
                return Kind.PLAIN
            case ast.Name(id=name):
                variable = self.variable(name) or self._undefined(name)
                return self.kind_of(variable) if variable else Kind.OBJECT if self.function(node) else Kind.PLAIN
            case ast.Attribute(value=value) | ast.Subscript(value=value):
                elsewhere = self._variable_elsewhere(self.library_name(node))
                base = self.kind_of(elsewhere) if elsewhere else self.kind(value)
                return base if base is Kind.PLAIN or elsewhere else Kind.OBJECT
            case ast.Tuple(elts=parts):
                return Kind.PLAIN if self.are_plain(parts) else Kind.LIST
            case ast.BinOp() | ast.UnaryOp() | ast.Compare() | ast.BoolOp() | ast.IfExp():
                parts = [part for part in ast.iter_child_nodes(node) if isinstance(part, ast.expr)]
                return reduce(or_, (self.kind(part) for part in parts if part is not getattr(node, "test", None)))
            case ast.Call():
                return self.callee(node).returns
        return Kind.LIST if isinstance(node, DISPLAYS) else Kind.OBJECT

    def are_plain(self, nodes: Iterable[ast.expr]) -> bool:
        """Return whether all values are plain."""
        return all(self.kind(node) is Kind.PLAIN for node in nodes)

    def element_kind(self, node: ast.expr) -> Kind:
        """Return the kind of the elements of a value: plain, or anything."""
        plain = self.kind(node) is Kind.PLAIN
        match node:
            case ast.List(elts=parts) | ast.Tuple(elts=parts) | ast.Set(elts=parts):
                plain = self.are_plain(parts)
            case ast.Call(args=args) if not plain:
                if args and self.callee(node).library in PASSES_ELEMENTS:
                    plain = all(self.element_kind(arg) is Kind.PLAIN for arg in args)
        return Kind.PLAIN if plain else Kind.OBJECT

    # --- calls ---------------------------------------------------------------------------------------------------------

    def callee(self, node: ast.Call) -> Callee:
        """Return what a call may reach."""
        if id(node) not in self.callees:
            self.callees[id(node)] = node, self._callee(node)
        return self.callees[id(node)][1]

    def _callee(self, node: ast.Call) -> Callee:
        func, found = node.func, self.function(node.func)
        if found is not None:
            return Callee([found], None, is_known=True, returns=self._returned(found, node))
        made = self.project.find_class(self.module, resolved(func, self.module) or "")
        if made is not None:
            named = (self.project.method(made, name) for name in ("__init__", "__post_init__"))
            kind = Kind.OWN if self.project.is_own(made) else Kind.OBJECT
            return Callee([one for one in named if one is not None], None, is_known=True, returns=kind, made=made)
        dotted = self.library_name(func)
        if dotted is not None and not self.mentioned(func):
            is_ours = self.project.target(self.module, dotted)[0] is not None
            effect = None if is_ours else api.function_effect(dotted)
            effect = effect if effect is not None and effect.knows(node) else None
            has_generator = any(w.arg == "generator" and self.kind(w.value) is Kind.RANDOM for w in node.keywords)
            if effect is not None and effect.state == api.RANDOM and has_generator:
                effect = effect._replace(state="")
            returns = (effect.result if effect is not None else None) or Kind.OBJECT
            source = argument(node, 0, {"f"})
            if dotted in READS_LATER and (source is None or self.kind(source) in {Kind.OWN, Kind.OBJECT}):
                returns = Kind.OBJECT
            if dotted in PASSES_ELEMENTS and all(self.kind(arg) in {Kind.PLAIN, Kind.LIST} for arg in node.args):
                returns = Kind.HANDLE if dotted in {"enumerate", "zip", "reversed"} else Kind.LIST
            return Callee([], effect, is_known=effect is not None, returns=returns, library=dotted)
        if not isinstance(func, ast.Attribute):
            return Callee()
        functions, effect, kind = self.project.methods_named(func.attr), None, self.kind(func.value)
        effect = self._method_effect(node, func, kind)
        is_own = bool(functions) and kind is Kind.OWN
        if isinstance(func.value, ast.Name) and func.value.id == "self" and self._owner is not None:
            is_own = self.project.method(self._owner, func.attr) is not None
        if effect is None and not is_own:
            return Callee(functions)
        kinds = [self._returned(one, node) for one in functions]
        kinds += [effect.result or kind] if effect is not None else []
        if func.attr in {"parse_args", "parse_known_args"}:
            kinds = [Kind.PLAIN if self.analysis.plain_options else Kind.OBJECT]
        return Callee(functions, effect, is_known=True, returns=reduce(or_, kinds, kinds[0]) if kinds else Kind.OBJECT)

    def _returned(self, found: Found, node: ast.Call) -> Kind:
        """Return the kind of what a function returns; a generator or coroutine runs later."""
        late = ast.Yield | ast.YieldFrom | ast.AsyncFunctionDef
        is_late = any(isinstance(part, late) for part in ast.walk(found.function))
        return Kind.OBJECT if is_late else self.analysis.summary(found, self.texts(found, node)).returns

    def _method_effect(self, node: ast.Call, func: ast.Attribute, kind: Kind) -> api.Effect | None:
        """Return what the tables say about a method; None if it is unknown."""
        name = func.attr
        if ast.unparse(func.value) == "super()":
            return api.CHANGES_OBJECT if name == "__init__" else None
        if name == "open" and kind is Kind.PLAIN:
            return api.Effect(result=Kind.HANDLE)
        if kind is Kind.OWN or (kind is Kind.OBJECT and self.analysis.has_strangers):
            return None
        if kind is not Kind.PLAIN and name in api.TEXT_METHODS:  # join of a thread, partition of an array
            return None
        effect = api.method_effect(name)
        if effect is not None and not effect.knows(node):
            return None
        if effect is not None and kind is Kind.RANDOM:  # it has a state of its own
            effect = effect._replace(state="", result=None if name == "manual_seed" else effect.result)
        return effect

    def accesses(self, node: ast.Call) -> set[FileAccess]:
        """Return the files that a library call uses."""
        dotted = self.library_name(node.func) or ""
        method = node.func.attr if isinstance(node.func, ast.Attribute) else ""
        if method in {"rename", "replace"} and not dotted and (len(node.args) != 1 or node.keywords):
            return set()  # a table or a text, not a path
        found: set[FileAccess] = set()
        for use in api.files_of(dotted, method):
            if use.place == -2:
                path = text(node, self.scope)
            elif use.place == -1:
                path = text(node.func.value, self.scope) if isinstance(node.func, ast.Attribute) else None
            else:
                path = text(argument(node, use.place, api.FILE_KEYWORDS), self.scope)
            if use.how == "adds":  # the name may get a suffix
                path = path if path and path.endswith(api.SUFFIXES) else f"{path or ''}{ANY}"
            modes = {use.how != "read"} if use.how != "mode" else _modes(node, use.place)
            modes |= {True} if any(word.arg == "mmap_mode" for word in node.keywords) else set()
            found |= {FileAccess(path or ANY, mode) for mode in modes}
        return found

    def texts(self, found: Found, node: ast.Call) -> dict[str, str]:
        """Return the text of each parameter: the argument, or its default."""
        if any(isinstance(arg, ast.Starred) for arg in node.args) or any(word.arg is None for word in node.keywords):
            return {}
        function, inside = found.function, NameScope(found.module)
        placed = [arg.arg for arg in [*function.args.posonlyargs, *function.args.args]]
        defaults = dict(zip(placed[len(placed) - len(function.args.defaults) :], function.args.defaults, strict=True))
        named = zip(function.args.kwonlyargs, function.args.kw_defaults, strict=True)
        defaults |= {arg.arg: value for arg, value in named if value is not None}
        given = dict(zip(placed[1:] if found.is_method else placed, node.args, strict=False))
        given |= {word.arg: word.value for word in node.keywords if word.arg is not None}
        texts = {name: text(value, inside) for name, value in defaults.items()}
        texts |= {name: text(value, self.scope) for name, value in given.items()}
        return {name: made for name, made in texts.items() if made is not None}


def is_constant(node: ast.expr) -> bool:
    """Return whether a value is written as a number or string, or as a tuple of those."""
    match node:
        case ast.Tuple(elts=parts):
            return all(map(is_constant, parts))
        case ast.UnaryOp(operand=part):
            return is_constant(part)
    return isinstance(node, ast.Constant)


def handed(call: ast.expr) -> list[ast.expr]:
    """Return what a call is given, with the object of a method; any other expression gives itself."""
    if not isinstance(call, ast.Call):
        return [call]
    receiver = [call.func.value] if isinstance(call.func, ast.Attribute) else []
    return [*receiver, *call.args, *(word.value for word in call.keywords)]


def argument(call: ast.Call, place: int, keywords: Collection[str]) -> ast.expr | None:
    """Return an argument by its number or one of its names."""
    if place < len(call.args) and not any(isinstance(arg, ast.Starred) for arg in call.args[: place + 1]):
        return call.args[place]
    return next((word.value for word in call.keywords if word.arg in keywords), None)


def _modes(node: ast.Call, place: int) -> set[bool]:
    """Return whether a mode such as "r+" reads (False) and writes (True)."""
    mode = argument(node, place + 1, {"mode"}) or ast.Constant("r")
    is_sure = not any(isinstance(arg, ast.Starred) for arg in node.args) and all(word.arg for word in node.keywords)
    letters = mode.value if is_sure and isinstance(mode, ast.Constant) and isinstance(mode.value, str) else "r+"
    return {True for letter in "wax+" if letter in letters} | {False for letter in "ra+" if letter in letters}
