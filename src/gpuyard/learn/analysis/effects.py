"""Finds what code reads, assigns and changes: variables, files and hidden state, through all functions that it calls.

The analysis is conservative: what was not shown to be harmless is ordered with everything (`EVERYTHING`). Objects are
not tracked. Variables that a statement combines may from then on refer to a common object: they are *aliases*, and a
change of one is a change of all in its group. These calls are unknown, and an unknown call is ordered with everything:

- a library function or method that the tables do not have;
- any method of an object that may come from an unknown call, and any call of an object, such as a model;
- a function of the project with a decorator or a default that is not known to be harmless.

Iterating over anything but a list or the like is unknown, too: it may run a generator or draw from a data loader.
A method call is a call of every method of that name in the project. Operators, attributes and calls of library
functions may run special methods and properties of classes of the project.

A function of the project is summarized once for each set of paths that it is called with. A file belongs to the values
that were made with it: a statement that uses such a value may use the file.
"""

import ast
import builtins
import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Final, NamedTuple

from gpuyard.learn.analysis import api_patterns as api
from gpuyard.learn.analysis.api_patterns import Kind
from gpuyard.learn.analysis.groups import Groups
from gpuyard.learn.analysis.paths import UNKNOWN, NameScope, Text, text
from gpuyard.learn.analysis.source import (
    Found,
    Function,
    Module,
    Project,
    assigned,
    dotted_name,
    is_main_guard,
    resolved,
    statements,
)
from gpuyard.learn.analysis.step_classifier import Clues, function_clue, method_clue

DEEPEST = 20
"""Maximum depth of nested calls that are followed."""
EVERYTHING: Final = "unknown effects"
"""The state of an unknown call: it is ordered with everything."""
MODULES: Final = re.compile(r"(^self$|model|net|module|encoder|decoder)", re.IGNORECASE)
"""Names of objects whose `train()` only switches a mode."""
DISPLAYS = (ast.List, ast.Dict, ast.Set, ast.ListComp, ast.SetComp, ast.DictComp)


class Variable(NamedTuple):
    """A name in a scope: a file, or a function of a file."""

    scope: str
    name: str


ESCAPED: Final = Variable("", "given to an unknown call")
"""All objects that an unknown call was given or has returned may refer to each other."""
ENVIRONMENT: Final = Variable("os", "environ")


class FileAccess(NamedTuple):
    """A file that is read or written."""

    path: Text
    writes: bool


@dataclass
class Effects:
    """The effects of a piece of code, or of a call of a function."""

    reads: set[Variable] = field(default_factory=set)
    """Variables whose previous value is read."""
    assigns: set[Variable] = field(default_factory=set)
    always_assigns: set[Variable] = field(default_factory=set)
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


class Analysis:
    """Finds the effects of functions of one project, each once for the paths it is called with."""

    def __init__(self, project: Project, scope: NameScope) -> None:
        self.project, self.scope = project, scope
        self.plain_options = _options_are_plain(project)
        self.has_strangers = any(_is_strange(project, module) for module in project.modules())
        """Whether any object may be of an unknown library, so that the tables of methods do not hold for it."""
        imported = {dotted for module in project.modules() for dotted in module.imports.values()}
        self.subscripts_change = bool(imported & {"collections", "collections.defaultdict"})
        """Whether reading an element may add it."""
        self.outer: dict[int, tuple[tuple[str, frozenset[str]], ...]] = {}
        """For nested functions: the enclosing scopes, the innermost first."""
        self._known: dict[tuple[int, tuple[tuple[str, Text], ...]], Effects] = {}
        self._acting: dict[Path, bool] = {}
        self._open: list[int] = []
        self._met_open = False

    def summary(self, found: Found, texts: dict[str, Text]) -> Effects:
        """Return the effects of a call of this function on outside variables, arguments and everything else."""
        key = (id(found.function), tuple(sorted(texts.items(), key=lambda item: item[0])))
        if key in self._known:
            return self._known[key]
        if id(found.function) in self._open or len(self._open) >= DEEPEST:
            self._met_open = True  # an incomplete summary is not cached
            deep = set() if id(found.function) in self._open else {EVERYTHING}
            return Effects(changes_arguments=True, returns=Kind.OBJECT, states=deep)
        self._open.append(id(found.function))
        scope = self.scope.inside(found.module, dict(texts))
        scope.learn(found.function.body)
        walker = Walker(self, found.module, scope, found)
        walker.definition(found.function)
        walker.block(found.function.body)
        made = _from_outside(walker.effects, walker.key, set(parameters(found.function)))
        self._open.pop()
        if not self._met_open or not self._open:
            self._known[key] = made
            self._met_open = False
        return made

    def acts(self, module: Module) -> bool:
        """Return whether importing a file of the project does more than define names."""
        if module.path not in self._acting:
            self._acting[module.path] = False  # while it is being found out: files may import each other
            walker = Walker(self, module, NameScope(module))
            walker.block(node for node in module.tree.body if not isinstance(node, ast.If) or not is_main_guard(node))
            files, states = walker.effects.files, walker.effects.states
            self._acting[module.path] = bool(states) or any(file.writes for file in files)
        return self._acting[module.path]


def _is_strange(project: Project, module: Module) -> bool:
    """Return whether a file imports or calls anything that is neither in the project nor in the tables."""
    calls = {resolved(node.func, module) for node in ast.walk(module.tree) if isinstance(node, ast.Call)}
    called = {dotted for dotted in calls if dotted and dotted.partition(".")[0] in set(module.imports.values())}
    origins = {dotted.lstrip(".") for dotted in module.imports.values()}
    strange = {name for name in origins if name.partition(".")[0] not in api.LIBRARIES | {"sys", "os"}}
    strange |= {name for name in called if api.function_effect(name) is None}
    return any(project.target(module, name)[0] is None for name in strange)


def _options_are_plain(project: Project) -> bool:
    """Return whether command-line options are only numbers and strings, and never change."""
    for node in (node for module in project.modules() for node in ast.walk(module.tree)):
        match node:
            case ast.Attribute(ctx=ast.Store() | ast.Del(), value=value) if ast.unparse(value) != "self":
                return False
            case ast.Call(func=ast.Name(id="vars")) | ast.Attribute(attr="__dict__"):
                return False
            case ast.Call(func=ast.Attribute(attr="add_argument"), keywords=words):
                given = {word.arg: ast.unparse(word.value) for word in words}
                if "nargs" in given or given.get("action", "'store'") not in {
                    "'store'",
                    "'store_true'",
                    "'store_false'",
                }:
                    return False
                if given.get("type", "str") not in {"str", "int", "float", "bool", "Path", "pathlib.Path"}:
                    return False
    return True


def parameters(function: Function) -> list[str]:
    """Return all parameters; positional ones come first."""
    given = function.args
    rest = [arg for arg in (given.vararg, given.kwarg) if arg is not None]
    return [arg.arg for arg in [*given.posonlyargs, *given.args, *given.kwonlyargs, *rest]]


def _from_outside(inside: Effects, scope: str, given: set[str]) -> Effects:
    """Return the effects of a function without its local variables."""
    groups = Groups(inside.aliases)
    own = {groups.group(Variable(scope, name)) for name in given}
    changed = {groups.group(variable) for variable in inside.changes}
    every = inside.reads | inside.changes | {variable for pair in inside.aliases for variable in pair}
    outer = {variable for variable in every if variable.scope != scope}
    together: dict[Variable, list[Variable]] = {}
    for variable in sorted(outer):
        together.setdefault(groups.group(variable), []).append(variable)
    return replace(
        inside,
        reads=outer,
        assigns={variable for variable in inside.assigns if variable.scope != scope},
        changes={variable for variable in outer if groups.group(variable) in changed},
        aliases={pair for group in together.values() for pair in pairwise(group)},
        holds={(variable, file) for variable, file in inside.holds if variable.scope != scope},
        changes_arguments=bool(own & changed),
        keeps_arguments=any(groups.group(variable) in own for variable in outer),
    )


class Walker:
    """Walks one scope, a file or a function, in the order of its code."""

    def __init__(self, analysis: Analysis, module: Module, scope: NameScope, function: Found | None = None) -> None:
        self.analysis, self.module, self.scope = analysis, module, scope
        self.effects = Effects()
        self.loops = 0
        self.key = module.shown
        self._kinds: dict[Variable, Kind] = {}
        """The kind of all values so far of each variable."""
        self._sure: set[Variable] = set()
        """Variables that are assigned on every path."""
        self._given: set[str] = set()
        self._owner: tuple[Module, str] | None = None
        """In a method: its class."""
        self._locals = frozenset(module.variables)
        self._outer: tuple[tuple[str, frozenset[str]], ...] = ()
        self._functions: dict[str, Found] = {}
        if function is not None:
            self._enter(function)

    def _enter(self, found: Found) -> None:
        node = found.function
        self.key = f"{self.module.shown}:{found.name}:{node.lineno}"
        self._outer = self.analysis.outer.get(id(node), ())
        self._given = set(parameters(node))
        owner, _, _ = found.name.partition(".")
        self._owner = (self.module, owner) if found.is_method and owner in self.module.classes else None
        declared = {n for part in ast.walk(node) if isinstance(part, ast.Global | ast.Nonlocal) for n in part.names}
        inside = list(statements(node.body))
        self._locals = frozenset({name for part in inside for name in assigned(part)} - declared | self._given)
        for part in inside:
            if isinstance(part, Function):
                self._functions[part.name] = Found(self.module, part, f"{found.name}.<locals>.{part.name}")
                self.analysis.outer[id(part)] = ((self.key, self._locals), *self._outer)

    def enter(self, found: Found, call: ast.Call) -> tuple["Walker", Effects]:
        """Return a walker for the body of a function that is called here, and the effects of passing its arguments."""
        texts = self._texts(found, call)
        scope = self.scope.inside(found.module, dict(texts))
        scope.learn(found.function.body)
        inner = Walker(self.analysis, found.module, scope, found)
        given, defaults = [*call.args, *(word.value for word in call.keywords)], _defaults(found.function)
        plain = all(self.kind(arg) is Kind.PLAIN for arg in given) and all(map(_is_constant, defaults))
        own = {Variable(inner.key, name) for name in parameters(found.function)}
        inner._kinds, inner._given = dict.fromkeys(own, Kind.PLAIN if plain else Kind.OBJECT), set()
        self.effects, self._sure = Effects(), set()
        self._read(self._mentioned(call))
        self._alias(own | self._references(call) if not plain else [])
        inner.definition(found.function)
        self.effects.states |= inner.effects.states
        self.effects.assigns |= own
        self.effects.always_assigns |= own
        return inner, self.effects

    def variable(self, name: str) -> Variable | None:
        """Return the variable that a name refers to here."""
        for key, names in ((self.key, self._locals), *self._outer):
            if name in names:
                return Variable(key, name)
        if name in self.module.variables:
            return Variable(self.module.shown, name)
        return self._variable_elsewhere(self.module.imports.get(name))

    def _variable_elsewhere(self, dotted: str | None) -> Variable | None:
        """Return the variable of another file, or the environment, that a dotted name refers to."""
        if dotted in {"os.environ", "os.getenv", "os.putenv", "os.unsetenv", "os.environb"}:
            return ENVIRONMENT
        there = self.analysis.project.variable(self.module, dotted) if dotted else None
        return Variable(there[0].shown, there[1]) if there else None

    def _library_name(self, node: ast.expr) -> str | None:
        """Return the dotted name of something imported or built in."""
        name = dotted_name(node)
        first = (name or "").partition(".")[0]
        if name is None or (
            first not in self.module.imports and (self.variable(first) or not hasattr(builtins, first))
        ):
            return None
        return resolved(node, self.module)

    def function(self, node: ast.expr) -> Found | None:
        """Return the function of the project that an expression names."""
        if isinstance(node, ast.Name) and node.id in self._functions:
            return self._functions[node.id]
        dotted, first = resolved(node, self.module), (dotted_name(node) or "").partition(".")[0]
        if dotted is None or first in self._locals - set(self.module.imports) - set(self.module.classes):
            return None
        return self.analysis.project.function(self.module, dotted)

    def _mentioned(self, node: ast.AST) -> set[Variable]:
        """Return the variables that code mentions, in this scope or in other files."""
        found: set[Variable | None] = set()
        for part in ast.walk(node):
            if isinstance(part, ast.Name):
                found.add(self.variable(part.id) or self._undefined(part))
            elif isinstance(part, ast.Attribute) and (dotted := self._library_name(part)):
                found.add(self._variable_elsewhere(dotted))
        return {variable for variable in found if variable is not None}

    def _undefined(self, node: ast.Name) -> Variable | None:
        """Return the variable of a name that nothing in the file defines, such as one from `from x import *`."""
        known = {*self.module.imports, *self.module.functions, *self.module.classes, *self._functions}
        return None if node.id in known or hasattr(builtins, node.id) else Variable(self.module.shown, node.id)

    def _references(self, node: ast.AST) -> set[Variable]:
        """Return the mentioned variables whose values are not plain."""
        return {variable for variable in self._mentioned(node) if self._kind_of(variable) is not Kind.PLAIN}

    def _kind_of(self, variable: Variable) -> Kind:
        if variable.name in self.module.shared and variable.scope == self.module.shown:
            return Kind.OBJECT
        if variable in self._kinds:
            return self._kinds[variable]
        if variable.scope == self.key:
            return Kind.PLAIN if variable.name in self.scope.names else Kind.OBJECT  # a parameter with a known text
        return literal_kind(self.analysis.project, variable)

    def kind(self, node: ast.expr) -> Kind:
        """Return the kind of the value of an expression."""
        match node:
            case ast.Constant() | ast.JoinedStr():
                return Kind.PLAIN
            case ast.Name(id=name):
                variable = self.variable(name)
                return self._kind_of(variable) if variable else Kind.OBJECT if self.function(node) else Kind.PLAIN
            case ast.Attribute(value=value) | ast.Subscript(value=value):
                elsewhere = self._variable_elsewhere(self._library_name(node))
                base = self._kind_of(elsewhere) if elsewhere else self.kind(value)
                return base if base is Kind.PLAIN or elsewhere else Kind.OBJECT
            case ast.Compare(ops=ops) if all(isinstance(op, ast.Is | ast.IsNot | ast.In | ast.NotIn) for op in ops):
                return Kind.PLAIN
            case ast.Tuple(elts=parts):
                return Kind.PLAIN if all(self.kind(part) is Kind.PLAIN for part in parts) else Kind.LIST
            case ast.BinOp() | ast.UnaryOp() | ast.Compare() | ast.BoolOp() | ast.IfExp():
                found = Kind.PLAIN
                for part in ast.iter_child_nodes(node):
                    if isinstance(part, ast.expr) and part is not getattr(node, "test", None):
                        found |= self.kind(part)
                return found
            case ast.NamedExpr(value=value):
                return self.kind(value)
            case ast.Call():
                return self._result_kind(node)
        return Kind.LIST if isinstance(node, DISPLAYS) else Kind.OBJECT

    def _element_kind(self, node: ast.expr) -> Kind:
        """Return the kind of the elements of a value."""
        match node:
            case ast.List(elts=parts) | ast.Tuple(elts=parts) | ast.Set(elts=parts):
                found = Kind.PLAIN
                for part in parts:
                    found |= self.kind(part)
                return found
            case ast.Call(func=func, args=args):
                dotted = self._library_name(func) or ""
                if dotted in {"enumerate", "zip", "reversed", "sorted", "list", "tuple"} and args:
                    return Kind.PLAIN if all(self._element_kind(arg) is Kind.PLAIN for arg in args) else Kind.OBJECT
                named = isinstance(func, ast.Attribute) and self.kind(func.value) is Kind.PLAIN
                if dotted in {"os.listdir", "glob.glob"} or (named and self._result_kind(node) is Kind.LIST):
                    return Kind.PLAIN  # names of files, or parts of a text
        return Kind.PLAIN if self.kind(node) is Kind.PLAIN else Kind.OBJECT

    def unit(self, body: Iterable[ast.stmt], loop: ast.For | None = None) -> Effects:
        """Return the effects of these statements alone, or of one iteration of a loop."""
        self.effects, self._sure = Effects(), set()
        if loop is not None:
            self._expression(loop.iter)
            self._assign([loop.target], loop.iter, is_element=True)
        self.block(body)
        self.effects.always_assigns = set(self._sure)
        return self.effects

    def block(self, body: Iterable[ast.stmt]) -> None:
        """Process statements in order."""
        for node in body:
            self._statement(node)

    def _statement(self, node: ast.stmt) -> None:
        match node:
            case ast.For() | ast.AsyncFor():
                self._expression(node.iter)
                self._iterate(node.iter)
                self._loop(node)
            case ast.While():
                self._expression(node.test)
                self._loop(node)
            case ast.If():
                self._expression(node.test)
                self._maybe(node.body)
                self._maybe(node.orelse)
            case ast.Match():
                self._expression(node.subject)
                self._assign([ast.Name(name, ast.Store()) for name in assigned(node)], node.subject, is_element=True)
                for case in node.cases:
                    self._expression(case.guard or ast.Constant(True))
                    self._maybe(case.body)
            case ast.With() | ast.AsyncWith():
                self._with(node)
            case ast.Try() | ast.TryStar():
                self._maybe([*node.body, *node.orelse])
                for handler in node.handlers:
                    self._assign([ast.Name(name, ast.Store()) for name in assigned(node)], None)
                    self._maybe(handler.body)
                self.block(node.finalbody)
            case ast.ClassDef():
                for mark in node.decorator_list:
                    self._decorator(mark)
                self.block(part for part in node.body if not isinstance(part, Function))
                self._read(self._mentioned(node) - {self.variable(node.name) or ESCAPED})
                self._assign([ast.Name(node.name, ast.Store())], None)
                own = self.variable(node.name) or ESCAPED
                self._kinds[own] = Kind.OBJECT if node.name in self.module.stateful else Kind.PLAIN
                self._alias({own, *self._references(node)} if self._kinds[own] is Kind.OBJECT else [])
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                self.definition(node)
            case ast.Import() | ast.ImportFrom():
                self._import(node)
            case ast.Assign(targets=targets, value=value):
                self._expression(value)
                self._assign(targets, value)
            case ast.AnnAssign(target=target, value=value):
                self._expression(value or ast.Constant(None))
                self._assign([target] if value else [], value)
            case ast.AugAssign(target=target, value=value):
                self._expression(value)
                self._read(self._mentioned(target))
                load: ast.expr = ast.parse(ast.unparse(target), mode="eval").body
                if not self.kind(value) is self.kind(load) is Kind.PLAIN:
                    self._change(self._mentioned(target))
                    self._implicit(target)
                self._assign([target], ast.BinOp(load, node.op, value))
            case ast.Delete(targets=targets):
                self._read(set().union(*map(self._mentioned, targets)))
                self._assign(targets, None)
            case ast.Return(value=value):
                self._expression(value or ast.Constant(None))
                self.effects.returns |= self.kind(value) if value is not None else Kind.PLAIN
                self.effects.exits = True
            case _:
                for part in ast.iter_child_nodes(node):
                    if isinstance(part, ast.expr):
                        self._expression(part)
                self.effects.exits = self.effects.exits or isinstance(node, ast.Raise | ast.Assert)

    def _with(self, node: ast.With | ast.AsyncWith) -> None:
        for item in node.items:
            source = item.context_expr
            self._expression(source)
            if not isinstance(source, ast.Call) and self.kind(source) is not Kind.HANDLE:
                self._unknown("", source)
            self._call_methods("__enter__", source)
            if item.optional_vars is not None:
                self._assign([item.optional_vars], source)
        self.block(node.body)
        for item in node.items:
            self._change(self._references(item))
            self._call_methods("__exit__", item.context_expr)

    def _loop(self, node: ast.For | ast.AsyncFor | ast.While) -> None:
        before = set(self._sure)
        self.loops += 1
        for _ in range(2):  # the second pass sees what the first one assigned
            if not isinstance(node, ast.While):
                self._assign([node.target], node.iter, is_element=True)
            self.block(node.body)
        self.loops -= 1
        self._sure = before
        self._maybe(node.orelse)

    def _maybe(self, body: Iterable[ast.stmt]) -> None:
        """Process statements that may not run."""
        before = set(self._sure)
        self.block(body)
        self._sure = before

    def definition(self, node: Function) -> None:
        """Process what defining a function does, and what its decorators and defaults do when it is called."""
        for mark in node.decorator_list:
            self._decorator(mark)
        for value in _defaults(node):
            if not _is_constant(value) and self.kind(value) is not Kind.PLAIN:  # calls share what it refers to
                self._unknown("", value)

    def _decorator(self, mark: ast.expr) -> None:
        func = mark.func if isinstance(mark, ast.Call) else mark
        dotted = self._library_name(func) or dotted_name(func) or ""
        self.effects.clues.note(function_clue(mark, self.module, dotted), self.loops)
        is_accessor = isinstance(func, ast.Attribute) and func.attr in {"setter", "deleter", "getter"}
        if dotted not in api.DECORATORS and not is_accessor:
            self._unknown("", mark)

    def _import(self, node: ast.Import | ast.ImportFrom) -> None:
        """Process an import: of an unknown library, or of a file of the project that does more than define names."""
        project = self.analysis.project
        names = [f"{'.' * node.level}{node.module or ''}"] if isinstance(node, ast.ImportFrom) else []
        for name in names or [one.name for one in node.names]:
            there, _ = project.target(self.module, name)
            if (there is None and name.partition(".")[0] not in api.LIBRARIES | {"sys", "os", ""}) or (
                there is not None and there.path != project.script_path and self.analysis.acts(there)
            ):
                self.effects.states.add(EVERYTHING)

    def _read(self, variables: Iterable[Variable]) -> None:
        self.effects.reads |= set(variables) - self._sure

    def _change(self, variables: Iterable[Variable]) -> None:
        self.effects.changes |= set(variables)

    def _alias(self, variables: Iterable[Variable]) -> None:
        self.effects.aliases |= set(pairwise(sorted(set(variables))))

    def _assign(self, targets: Sequence[ast.expr], value: ast.expr | None, *, is_element: bool = False) -> None:
        """Assign a value, or an element of it, to targets; the value's expression was already processed."""
        kind = Kind.PLAIN if value is None else self._element_kind(value) if is_element else self.kind(value)
        referred, files = self._made_of(value) if value is not None else (set(), set())
        for target in targets:
            parts = [part for part in ast.walk(target) if not isinstance(getattr(part, "ctx", ast.Load()), ast.Load)]
            stored = {part.id for part in parts if isinstance(part, ast.Name)}
            variables = {self.variable(name) or Variable(self.key, name) for name in stored}
            self.effects.assigns |= variables
            own = kind if isinstance(target, ast.Name) or kind is Kind.PLAIN else Kind.OBJECT
            if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple) and not is_element:
                own = self._element_kind(value)
            for variable in variables:
                self._kinds[variable] = self._kinds.get(variable, own) | own
            self._sure |= variables
            for part in parts:
                if isinstance(part, ast.Attribute | ast.Subscript):
                    self._expression(part.value)
                    self._implicit(target)
                    owners = self._mentioned(part.value) or self._mentioned(part)
                    if not owners:  # an attribute of a library, or of a class or function of the project
                        self.effects.states.add(EVERYTHING)
                    is_new = ast.unparse(part.value) == "self" and ".__init__:" in self.key
                    self._change(set() if is_new else owners)  # a new object changes nothing
                    variables |= owners
            self._alias(variables | referred if kind is not Kind.PLAIN else [])
            self.effects.holds |= {(variable, file) for variable in variables for file in files}

    def _expression(self, node: ast.expr) -> None:
        """Process everything that evaluating an expression does."""
        self._sure |= self._bound_in(node)
        self._read(self._mentioned(node))
        parts = list(ast.walk(node))
        called = {id(call.func) for call in parts if isinstance(call, ast.Call)}
        given = {id(part) for call in parts if isinstance(call, ast.Call) for part in _given(call)}
        if any(not isinstance(part, ast.Name | ast.Attribute | ast.Constant | ast.expr_context) for part in parts):
            self._implicit(node)
        for part in parts:
            match part:
                case ast.NamedExpr(target=target, value=value):
                    self._assign([target], value)
                case ast.comprehension(target=target, iter=source):
                    self._iterate(source)
                    self._assign([target], source, is_element=True)
                case ast.Lambda():
                    self._alias(self._bound_in(part) | self._references(node) | {ESCAPED})
                case ast.Starred(value=value):
                    self._iterate(value)
                case ast.Yield(value=value) | ast.YieldFrom(value=value):
                    self.effects.returns = Kind.OBJECT
                    if value is not None:
                        self._alias(self._references(value) | {Variable(self.key, name) for name in self._given})
                case ast.Constant(value=str() as word) if re.fullmatch(r"cuda(:\d+)?", word):
                    self.effects.clues.note(function_clue(part, self.module, "cuda:"), self.loops)
                case ast.BinOp(op=ast.MatMult()):
                    self.effects.clues.note(function_clue(part, self.module, "@"), self.loops)
                case ast.Subscript(value=base) if self.analysis.subscripts_change:
                    if self.kind(base) is Kind.OBJECT:
                        self._unknown("", base)
                case ast.Call():
                    self._call(part)
                case ast.Name() | ast.Attribute() if id(part) not in called:
                    self._value(part, node, is_given=id(part) in given)

    def _value(self, part: ast.Name | ast.Attribute, node: ast.expr, *, is_given: bool) -> None:
        """Process a function or method that is mentioned, not called: it may be called later, with any arguments."""
        found = self.function(part)
        methods = self.analysis.project.methods_named(part.attr) if isinstance(part, ast.Attribute) else []
        for one in [found] if found is not None and not is_given else [*methods]:
            outside = self.analysis.summary(one, {}).reads
            self._alias({v for v in outside if self._kind_of(v) is not Kind.PLAIN} | self._references(node) | {ESCAPED})
            self._apply(one, {}, node)

    def _implicit(self, node: ast.expr) -> None:
        """Process the special methods of the project that operators and library functions may run."""
        if self.analysis.project.special_methods and self._references(node):
            for found in self.analysis.project.special_methods:
                self._apply(found, {}, node)

    def _bound_in(self, node: ast.expr) -> set[Variable]:
        """Return the variables of comprehensions and lambdas."""
        found: set[Variable | None] = set()
        for part in ast.walk(node):
            if isinstance(part, ast.comprehension):
                found |= self._mentioned(part.target) - self._mentioned(part.iter)
            elif isinstance(part, ast.arg):
                found.add(self.variable(part.arg))
        return {variable for variable in found if variable is not None}

    def _iterate(self, node: ast.expr) -> None:
        """Process iteration over a value: a handle is read, anything but a list may run code."""
        if isinstance(node, ast.GeneratorExp):  # its sources are processed on their own
            return
        if isinstance(node, ast.Call):
            dotted, found = self._library_name(node.func) or "", self.function(node.func)
            if found is not None and _is_generator(found.function):
                return  # its effects are those of the call
            if found is None and dotted and not dotted.startswith("torch.utils.data"):
                effect = None if self._mentioned(node.func) else api.function_effect(dotted)
                if effect is not None and effect.iterates and effect.result is Kind.OBJECT:
                    return  # its arguments are gone through where it is called
        kind = self.kind(node)
        references = self._references(node)
        if kind is Kind.HANDLE:
            self._change(references)
        elif kind in {Kind.OWN, Kind.OBJECT}:
            own = {Variable(self.key, name) for name in self._given} & references
            self.effects.iterates_arguments |= bool(own)
            if references - own or not own:
                self._change(references)
                self._unknown("", node)

    def _candidates(self, node: ast.Call) -> list[Found]:
        """Return the functions and methods of the project that a call may reach."""
        found = self.function(node.func)
        if found is not None:
            return [found]
        made = self.analysis.project.find_class(self.module, resolved(node.func, self.module) or "")
        if made is not None:
            named = (self.analysis.project.method(made, name) for name in ("__init__", "__post_init__"))
            return [one for one in named if one is not None]
        if isinstance(node.func, ast.Attribute) and not self._is_library(node):
            return self.analysis.project.methods_named(node.func.attr)
        return []

    def _is_library(self, node: ast.Call) -> bool:
        """Return whether a call names something imported or built in."""
        return self._library_name(node.func) is not None and not self._mentioned(node.func)

    def _effect_of(self, node: ast.Call) -> api.Effect | None:
        """Return what the tables say about a call of something that is not in the project; None if it is unknown."""
        dotted = self._library_name(node.func)
        if dotted is not None and self._is_library(node):
            is_ours = self.analysis.project.target(self.module, dotted)[0] is not None
            return None if is_ours else api.function_effect(dotted)
        if not isinstance(node.func, ast.Attribute):
            return None
        name, base = node.func.attr, node.func.value
        kind, owner = self.kind(base), (dotted_name(base) or "").rpartition(".")[2]
        if ast.unparse(base) == "super()":
            return api.CHANGES_OBJECT if name == "__init__" else None
        if name == "train" and len(node.args) <= 1 and MODULES.search(owner):
            return api.CHANGES_OBJECT
        if name == "open" and kind is Kind.PLAIN:
            return api.Effect(result=Kind.HANDLE)
        if kind is Kind.OWN or (kind is Kind.OBJECT and self.analysis.has_strangers):
            return None
        if name == "join" and kind is not Kind.PLAIN:  # a thread, or a table
            return None
        if any(word.arg == "inplace" for word in node.keywords):
            return api.CHANGES_OBJECT
        return api.method_effect(name)

    def _is_known(self, node: ast.Call) -> bool:
        """Return whether everything that a call may reach is known."""
        project, func = self.analysis.project, node.func
        if self.function(func) is not None or self._effect_of(node) is not None:
            return True
        made = project.find_class(self.module, resolved(func, self.module) or "")
        if made is not None:
            return True
        if not isinstance(func, ast.Attribute) or self._is_library(node) or not self._candidates(node):
            return False
        if isinstance(func.value, ast.Name) and func.value.id == "self" and self._owner is not None:
            return project.method(self._owner, func.attr) is not None
        return self.kind(func.value) is Kind.OWN

    def _result_kind(self, node: ast.Call) -> Kind:
        made = self.analysis.project.find_class(self.module, resolved(node.func, self.module) or "")
        if made is not None and self.function(node.func) is None:
            return Kind.OWN if self.analysis.project.is_own(made) else Kind.OBJECT
        if not self._is_known(node):
            return Kind.OBJECT
        effect, candidates = self._effect_of(node), self._candidates(node)
        if isinstance(node.func, ast.Attribute) and node.func.attr in {"parse_args", "parse_known_args"}:
            return Kind.PLAIN if self.analysis.plain_options else Kind.OBJECT
        found: Kind | None = None
        for one in candidates:
            returned = self.analysis.summary(one, self._texts(one, node)).returns
            returned = Kind.OBJECT if _is_generator(one.function) else returned
            found = returned if found is None else found | returned
        if effect is not None and self.function(node.func) is None:
            own = effect.result
            if self._library_name(node.func) in {"enumerate", "zip", "reversed", "tqdm.tqdm", "tqdm.auto.tqdm"}:
                is_list = all(self.kind(arg) in {Kind.PLAIN, Kind.LIST} for arg in node.args)
                own = Kind.LIST if is_list else Kind.OBJECT
            if own is None and isinstance(node.func, ast.Attribute):
                own = self.kind(node.func.value)
            found = (own or Kind.OBJECT) if found is None else found | (own or Kind.OBJECT)
        return Kind.OBJECT if found is None else found

    def _call(self, node: ast.Call) -> None:
        func, dotted = node.func, self._library_name(node.func)
        is_library = self._is_library(node)
        for word in _given(node)[1 if isinstance(func, ast.Attribute) else 0 :]:
            handed = self.function(word) if isinstance(word, ast.Name | ast.Attribute) else None
            if handed is not None:  # functions among the arguments are called, too
                self.effects.calls += [handed] if dotted not in api.WRAPPERS else []
                self._apply(handed, {}, node)
        for found in self._candidates(node):
            self.effects.calls.append(found)
            self._apply(found, self._texts(found, node), node)
        if self.function(func) is not None:
            return
        made = self.analysis.project.find_class(self.module, resolved(func, self.module) or "")
        if made is not None:
            self._construct(made)
            return
        if dotted is not None and is_library:
            self._library(node, dotted)
        elif isinstance(func, ast.Attribute):
            owner = (dotted_name(func.value) or "").rpartition(".")[2]
            self.effects.clues.note(method_clue(node, self.module, func.attr, owner), self.loops)
        if not self._is_known(node):
            name = func.id if isinstance(func, ast.Name) and self.variable(func.id) is None else ""
            self._unknown(dotted if is_library and dotted else name, node)
            for name in ("__call__", "forward") if not isinstance(func, ast.Attribute) else ():
                self._call_methods(name, node)
        effect = self._effect_of(node)
        if effect is not None:
            self._table(node, effect)
        self.effects.files |= self._accesses(node)

    def _table(self, node: ast.Call, effect: api.Effect) -> None:
        """Apply what the tables say about a call."""
        changed = [node.args[place] for place in effect.changes if 0 <= place < len(node.args)]
        changed += [word.value for word in node.keywords if word.arg in {"out", "file"}]
        if -1 in effect.changes and isinstance(node.func, ast.Attribute):
            changed.append(node.func.value)
            root = dotted_name(node.func.value)
            if root is not None and not self._mentioned(node.func.value):  # of a class, function or library
                self.effects.states.add(EVERYTHING)
            self._alias(self._references(node))
        for arg in changed:
            self._change(self._mentioned(arg) if isinstance(arg, ast.Name | ast.Attribute) else self._references(arg))
        for arg in node.args if effect.iterates else ():
            self._iterate(arg)
        self.effects.states |= {effect.state} if effect.state else set()

    def _apply(self, found: Found, texts: dict[str, Text], node: ast.expr) -> None:
        """Apply the effects of a call of a function of the project; `node` has all possible arguments."""
        inside, effects = self.analysis.summary(found, texts), self.effects
        given = self._references(node)
        self._read(inside.reads)
        effects.assigns |= inside.assigns
        effects.changes |= inside.changes
        effects.aliases |= inside.aliases
        self._change(given if inside.changes_arguments else ())
        if inside.changes_arguments or inside.keeps_arguments:
            self._alias(given | {v for v in inside.reads if self._kind_of(v) is not Kind.PLAIN})
        for part in (_given(node) if isinstance(node, ast.Call) else [node]) if inside.iterates_arguments else ():
            self._iterate(part)
        effects.files |= inside.files
        effects.holds |= inside.holds
        effects.states |= inside.states
        effects.unknown_calls += inside.unknown_calls
        effects.clues.add(inside.clues, self.loops)

    def _call_methods(self, name: str, node: ast.expr) -> None:
        """Apply the effects of every method of this name in the project."""
        for found in self.analysis.project.methods_named(name):
            self._apply(found, {}, node)

    def _construct(self, made: tuple[Module, str]) -> None:
        module, name = made
        for base in module.classes[name].bases:
            dotted = resolved(base, module) or ""
            if self.analysis.project.find_class(module, dotted) is None and not hasattr(builtins, dotted):
                effect = api.function_effect(dotted)
                self.effects.states |= {effect.state if effect is not None else EVERYTHING} - {""}

    def _library(self, node: ast.Call, dotted: str) -> None:
        """Process what a call of a library function or a builtin says about the work."""
        self.effects.clues.note(function_clue(node, self.module, dotted), self.loops)
        if dotted == "torch.multiprocessing.spawn":
            count = _argument(node, 2, {"nprocs"})
            self.effects.clues.processes = count.value if isinstance(count, ast.Constant) else 1  # type: ignore[assignment]

    def _unknown(self, name: str, node: ast.AST) -> None:
        """Process a call that is not known."""
        self.effects.states.add(EVERYTHING)
        self.effects.unknown_calls += [name] if name else []
        self._read({ESCAPED})
        self._change(self._references(node))
        self._alias(self._references(node) | {ESCAPED})

    def _made_of(self, node: ast.expr) -> tuple[set[Variable], set[FileAccess]]:
        """Return the variables that a value may refer to, and the files that it was made with."""
        referred, files = self._references(node), set()
        for call in (part for part in ast.walk(node) if isinstance(part, ast.Call)):
            files |= self._accesses(call)
            for found in self._candidates(call):
                inside = self.analysis.summary(found, self._texts(found, call))
                files |= inside.files
                referred |= {v for v in inside.reads if self._kind_of(v) is not Kind.PLAIN}
            referred |= set() if self._is_known(call) else {ESCAPED}
        return referred, files

    def _accesses(self, node: ast.Call) -> set[FileAccess]:
        dotted = self._library_name(node.func) or ""
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
                path = text(_argument(node, use.place, api.FILE_KEYWORDS), self.scope)
            modes = {use.how == "write"} if use.how != "mode" else _modes(node, use.place)
            found |= {FileAccess(path or UNKNOWN, mode) for mode in modes}
        return found

    def _texts(self, found: Found, node: ast.Call) -> dict[str, Text]:
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


def literal_kind(project: Project, variable: Variable) -> Kind:
    """Return the kind of a file's variable as far as its assignments show it, wherever they are."""
    module = next((module for module in project.modules() if module.shown == variable.scope), None)
    if module is None or variable.name in module.stateful:
        return Kind.OBJECT
    values = [
        node.value if isinstance(node, ast.Assign | ast.AnnAssign) else None
        for node in ast.walk(module.tree)
        if isinstance(node, ast.stmt) and variable.name in assigned(node)
    ]
    if all(value is not None and _is_constant(value) for value in values):
        return Kind.PLAIN
    return Kind.LIST if all(isinstance(value, DISPLAYS) for value in values) else Kind.OBJECT


def _is_constant(node: ast.expr) -> bool:
    """Return whether a value is written as a number or string, or as a tuple of those."""
    match node:
        case ast.Tuple(elts=parts):
            return all(map(_is_constant, parts))
        case ast.UnaryOp(operand=part):
            return _is_constant(part)
    return isinstance(node, ast.Constant)


def _defaults(function: Function) -> list[ast.expr]:
    return [*function.args.defaults, *(value for value in function.args.kw_defaults if value is not None)]


def _is_generator(function: Function) -> bool:
    return any(isinstance(part, ast.Yield | ast.YieldFrom) for part in ast.walk(function))


def _given(call: ast.Call) -> list[ast.expr]:
    """Return the object of a method, and all arguments."""
    receiver = [call.func.value] if isinstance(call.func, ast.Attribute) else []
    return [*receiver, *call.args, *(word.value for word in call.keywords)]


def _argument(call: ast.Call, place: int, keywords: Collection[str]) -> ast.expr | None:
    """Return an argument by its number or one of its names."""
    if place < len(call.args) and not any(isinstance(arg, ast.Starred) for arg in call.args[: place + 1]):
        return call.args[place]
    return next((word.value for word in call.keywords if word.arg in keywords), None)


def _modes(node: ast.Call, place: int) -> set[bool]:
    """Return whether a mode such as "r+" reads (False) and writes (True)."""
    mode = _argument(node, place + 1, {"mode"}) or ast.Constant("r")
    letters = mode.value if isinstance(mode, ast.Constant) and isinstance(mode.value, str) else "r+"
    return {True for letter in "wax+" if letter in letters} | {False for letter in "ra+" if letter in letters}
