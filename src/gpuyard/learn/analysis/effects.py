"""Finds what code reads, assigns and changes: variables, files and hidden state, through all functions that it calls.

The analysis is conservative: in doubt the answer is "may". Objects are not tracked. Variables that a statement combines
may from then on refer to a common object: they are *aliases*, and a change of one is a change of all in its group. A
call that is not known to leave its arguments unchanged changes all of them. An unknown call may also change anything
outside of the program (`api_patterns.OUTSIDE`). A method call is a call of every method of that name in the project.
Iterating over an object changes it unless it is known to be a container. Plain values (numbers, strings, options) have
no aliases.

A function of the project is summarized once for each set of paths that it is called with. A file belongs to the values
that were made with it: a statement that uses such a value may use the file.
"""

import ast
import builtins
import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Final, NamedTuple

from gpuyard.learn.analysis import api_patterns as api
from gpuyard.learn.analysis.groups import Groups
from gpuyard.learn.analysis.paths import OPTIONS, UNKNOWN, NameScope, Text, text
from gpuyard.learn.analysis.source import Found, Function, Module, Project, assigned, dotted_name, resolved, statements
from gpuyard.learn.analysis.step_classifier import Clues, function_clue, method_clue

DEEPEST = 20
"""Maximum depth of nested calls that are followed."""
EVERYTHING: Final = "code made at run time"
"""The state of code that is executed from a string: it is ordered with everything."""
MODULES: Final = re.compile(r"(^self$|model|net|module|encoder|decoder)", re.IGNORECASE)
"""Names of objects whose `train()` only switches a mode."""
DISPLAYS = (
    ast.Constant, ast.List, ast.Tuple, ast.Dict, ast.Set, ast.ListComp, ast.SetComp, ast.DictComp, ast.JoinedStr,
)  # fmt: skip


class Variable(NamedTuple):
    """A name in a scope: a file, or a function of a file."""

    scope: str
    name: str


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
    """For a function: whether it iterates over its arguments, which changes iterators."""
    returns_plain: bool = True
    returns_container: bool = True
    calls: list[Found] = field(default_factory=list)
    """Functions of the project that are called here directly."""
    unknown_calls: list[str] = field(default_factory=list)
    clues: Clues = field(default_factory=Clues)


class Analysis:
    """Finds the effects of functions of one project, each once for the paths it is called with."""

    def __init__(self, project: Project, scope: NameScope) -> None:
        self.project, self.scope = project, scope
        self.options_change = _options_change(project)
        self.outer: dict[int, tuple[tuple[str, frozenset[str]], ...]] = {}
        """For nested functions: the enclosing scopes, the innermost first."""
        self._known: dict[tuple[int, tuple[tuple[str, Text], ...]], Effects] = {}
        self._open: list[int] = []
        self._met_open = False

    def summary(self, found: Found, texts: dict[str, Text]) -> Effects:
        """Return the effects of a call of this function on outside variables, arguments and everything else."""
        key = (id(found.function), tuple(sorted(texts.items(), key=lambda item: item[0])))
        if key in self._known:
            return self._known[key]
        if id(found.function) in self._open or len(self._open) >= DEEPEST:
            self._met_open = True  # an incomplete summary is not cached
            deep = set() if id(found.function) in self._open else {api.OUTSIDE}
            return Effects(changes_arguments=True, returns_plain=False, returns_container=False, states=deep)
        self._open.append(id(found.function))
        scope = self.scope.inside(found.module, dict(texts))
        scope.learn(found.function.body)
        walker = Walker(self, found.module, scope, found)
        for mark in found.function.decorator_list:
            walker.decorator(mark)
        walker.block(found.function.body)
        made = _from_outside(walker.effects, walker.key, set(parameters(found.function)))
        defaults = [*found.function.args.defaults, *filter(None, found.function.args.kw_defaults)]
        if made.changes_arguments and not all(isinstance(value, ast.Constant) for value in defaults):
            made.states.add(f"defaults of {found.name}")
        self._open.pop()
        if not self._met_open or not self._open:
            self._known[key] = made
            self._met_open = False
        return made


def _options_change(project: Project) -> bool:
    """Return whether any function changes command-line options, or an attribute of an object that holds them."""
    functions = [node for module in project.modules() for node in ast.walk(module.tree) if isinstance(node, Function)]
    parts = [part for function in functions for part in ast.walk(function) if isinstance(part, ast.Attribute)]
    return any(isinstance(part.ctx, ast.Store) and OPTIONS.search(ast.unparse(part.value)) for part in parts)


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
    return replace(
        inside,
        reads=outer,
        assigns={variable for variable in inside.assigns if variable.scope != scope},
        changes={variable for variable in outer if groups.group(variable) in changed},
        aliases=set(),
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
        self._value_kinds: dict[Variable, tuple[bool, bool]] = {}
        """For each variable: whether all values so far were plain, and whether all were containers."""
        self._sure: set[Variable] = set()
        """Variables that are assigned on every path."""
        self._given: set[str] = set()
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
        given = [*call.args, *(word.value for word in call.keywords)]
        plain = all(self._is_plain(arg) for arg in given)
        own = {Variable(inner.key, name) for name in parameters(found.function)}
        inner._value_kinds, inner._given = dict.fromkeys(own, (plain, plain)), set()
        self.effects, self._sure = Effects(), set()
        self._read(self._mentioned(call))
        self._alias(own | self._references(call) if not plain else [])
        for mark in found.function.decorator_list:
            inner.decorator(mark)
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
        dotted = self.module.imports.get(name)
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
        dotted = resolved(node, self.module)
        if dotted is None or (isinstance(node, ast.Name) and node.id in self._locals - set(self.module.imports)):
            return None
        return self.analysis.project.function(self.module, dotted)

    def _mentioned(self, node: ast.AST) -> set[Variable]:
        """Return the variables that code mentions, in this scope or in other files."""
        found: set[Variable | None] = set()
        for part in ast.walk(node):
            if isinstance(part, ast.Name):
                found.add(self.variable(part.id) or self._undefined(part))
            elif isinstance(part, ast.Attribute) and (dotted := self._library_name(part)):
                there = self.analysis.project.variable(self.module, dotted)
                found.add(Variable(there[0].shown, there[1]) if there else None)
                found.add(Variable("os", "environ") if dotted == "os.environ" else None)
        return {variable for variable in found if variable is not None}

    def _undefined(self, node: ast.Name) -> Variable | None:
        """Return the variable of a name that nothing in the file defines, such as one from `from x import *`."""
        known = {*self.module.imports, *self.module.functions, *self.module.classes, *self._functions}
        return None if node.id in known or hasattr(builtins, node.id) else Variable(self.module.shown, node.id)

    def _references(self, node: ast.AST) -> set[Variable]:
        """Return the mentioned variables whose values are not plain."""
        return {variable for variable in self._mentioned(node) if not self._value_kind(variable)[0]}

    def _value_kind(self, variable: Variable) -> tuple[bool, bool]:
        if variable.name in self.module.shared and variable.scope == self.module.shown:
            return False, False
        if variable in self._value_kinds:
            return self._value_kinds[variable]
        return (False, False) if variable.scope == self.key else literal_value_kind(self.analysis.project, variable)

    def unit(self, body: Iterable[ast.stmt], loop: ast.For | None = None) -> Effects:
        """Return the effects of these statements alone, or of one iteration of a loop."""
        self.effects, self._sure = Effects(), set()
        if loop is not None:
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
                for item in node.items:
                    self._expression(item.context_expr)
                    if item.optional_vars is not None:
                        self._assign([item.optional_vars], item.context_expr, is_element=True)
                self.block(node.body)
                for item in node.items:  # leaving the context may do anything that __exit__ does
                    self._change(self._references(item))
                    self._call_methods("__exit__", item.context_expr)
            case ast.Try() | ast.TryStar():
                self._maybe([*node.body, *node.orelse])
                for handler in node.handlers:
                    self._assign([ast.Name(name, ast.Store()) for name in assigned(node)], None)
                    self._maybe(handler.body)
                self.block(node.finalbody)
            case ast.ClassDef():
                self.block(part for part in node.body if not isinstance(part, Function))
            case ast.Assign(targets=targets, value=value):
                self._expression(value)
                self._assign(targets, value)
            case ast.AnnAssign(target=target, value=value):
                self._expression(value or ast.Constant(None))
                self._assign([target] if value else [], value)
            case ast.AugAssign(target=target, value=value):
                self._expression(value)
                self._read(self._mentioned(target))
                if not (self._is_plain(value) and self._is_plain(target)):
                    self._change(self._mentioned(target))
                self._assign([target], value)
            case ast.Delete(targets=targets):
                self._assign(targets, None)
            case ast.Return(value=value):
                self._expression(value or ast.Constant(None))
                self.effects.returns_plain &= value is None or self._is_plain(value)
                self.effects.returns_container &= value is None or self._is_container(value)
                self.effects.exits = True
            case _:
                for part in ast.iter_child_nodes(node):
                    if isinstance(part, ast.expr):
                        self._expression(part)
                self.effects.exits = self.effects.exits or isinstance(node, ast.Raise | ast.Assert)

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

    def _read(self, variables: Iterable[Variable]) -> None:
        self.effects.reads |= set(variables) - self._sure

    def _change(self, variables: Iterable[Variable]) -> None:
        self.effects.changes |= set(variables)

    def _alias(self, variables: Iterable[Variable]) -> None:
        self.effects.aliases |= set(pairwise(sorted(set(variables))))

    def _assign(self, targets: Sequence[ast.expr], value: ast.expr | None, *, is_element: bool = False) -> None:
        """Assign a value, or an element of it, to targets; the value's expression was already processed."""
        plain = value is None or self._is_plain(value)
        container = value is None or (self._is_container(value) and not is_element)
        referred, files = self._made_of(value) if value is not None else (set(), set())
        referred = set() if plain else referred
        for target in targets:
            parts = [part for part in ast.walk(target) if not isinstance(getattr(part, "ctx", ast.Load()), ast.Load)]
            stored = {part.id for part in parts if isinstance(part, ast.Name)}
            variables = {self.variable(name) or Variable(self.key, name) for name in stored}
            self.effects.assigns |= variables
            for variable in variables:
                before = self._value_kinds.get(variable, (True, True))
                whole = container and (plain or isinstance(target, ast.Name))
                self._value_kinds[variable] = (before[0] and plain, before[1] and whole)
            self._sure |= variables
            for part in parts:
                if isinstance(part, ast.Attribute | ast.Subscript):
                    self._expression(part.value)
                    owners = self._mentioned(part.value) or self._mentioned(part)
                    if not owners:  # an attribute of a library, or of a class or function of the project
                        self.effects.states.add(api.OUTSIDE if self._library_name(part.value) else EVERYTHING)
                    is_new = (
                        ast.unparse(part.value) == "self" and ".__init__:" in self.key
                    )  # a new object changes nothing
                    self._change(set() if is_new else owners)
                    variables |= owners
            self._alias(variables | referred if referred else [])
            self.effects.holds |= {(variable, file) for variable in variables for file in files}

    def _expression(self, node: ast.expr) -> None:
        """Process everything that evaluating an expression does."""
        self._sure |= self._bound_in(node)
        self._read(self._mentioned(node))
        parts = list(ast.walk(node))
        in_calls = {id(part) for call in parts if isinstance(call, ast.Call) for part in (call.func, *_given(call))}
        for part in parts:
            match part:
                case ast.NamedExpr(target=target, value=value):
                    self._assign([target], value)
                case ast.comprehension(target=target, iter=source):
                    self._iterate(source)
                    self._assign([target], source, is_element=True)
                case ast.Lambda():
                    self._alias(self._bound_in(part) | self._references(node))
                case ast.Yield(value=value) | ast.YieldFrom(value=value):
                    self.effects.returns_plain = self.effects.returns_container = False
                    if value is not None:
                        self._alias(self._references(value) | {Variable(self.key, name) for name in self._given})
                case ast.Constant(value=str() as word) if re.fullmatch(r"cuda(:\d+)?", word):
                    self.effects.clues.note(function_clue(part, self.module, "cuda:"), self.loops)
                case ast.BinOp(op=ast.MatMult()):
                    self.effects.clues.note(function_clue(part, self.module, "@"), self.loops)
                case ast.Subscript(value=base) if self._references(base):
                    self._call_methods("__getitem__", part)
                case ast.Call():
                    self._call(part)
                case ast.Name() | ast.Attribute() if id(part) not in in_calls:
                    found = self.function(part)
                    if found is not None:  # it may be called later, with any arguments
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
        """Process iteration over a value: an iterator is consumed, a data loader draws random numbers."""
        if self._is_container(node) or isinstance(node, ast.GeneratorExp):  # its sources are processed on their own
            return
        own = {Variable(self.key, name) for name in self._given} & self._references(node)
        self.effects.iterates_arguments |= bool(own)
        others = self._references(node) - own
        self._change(others)
        is_new = isinstance(node, ast.Call) and isinstance(self._effect_of(node), api.Effect)
        if others or not (own or (is_new and "DataLoader" not in ast.unparse(node))):
            self.effects.states.add(api.RANDOM)
            for name in ("__iter__", "__next__", "__getitem__"):
                self._call_methods(name, node)

    def _is_plain(self, node: ast.expr) -> bool:
        """Return whether the value is a number, a string or the like."""
        match node:
            case ast.Constant() | ast.Compare() | ast.JoinedStr():
                return True
            case ast.Name():
                variable = self.variable(node.id)
                return self._value_kind(variable)[0] if variable else self.function(node) is None
            case ast.Attribute(value=value) | ast.Subscript(value=value):
                return self._is_plain(value)
            case ast.BinOp() | ast.UnaryOp() | ast.BoolOp() | ast.IfExp() | ast.Tuple():
                return all(self._is_plain(part) for part in ast.iter_child_nodes(node) if isinstance(part, ast.expr))
            case ast.Call():
                effect = self._effect_of(node)
                return effect.returns_plain if isinstance(effect, Effects) else effect is not None and effect.is_plain
        return False

    def _is_container(self, node: ast.expr) -> bool:
        """Return whether the value can be iterated any number of times."""
        match node:
            case ast.BinOp():
                return True
            case ast.Name():
                variable = self.variable(node.id)
                return variable is not None and any(self._value_kind(variable))
            case ast.Call(func=func, args=args):
                effect, dotted = self._effect_of(node), self._library_name(func) or ""
                if dotted in {"enumerate", "zip", "reversed", "tqdm.tqdm", "tqdm.auto.tqdm", "tqdm"}:
                    return all(map(self._is_container, args))
                if isinstance(func, ast.Attribute) and func.attr in api.CONTAINER_METHODS and not dotted:
                    return True
                return effect.returns_container if isinstance(effect, Effects) else api.is_container(dotted)
        return isinstance(node, DISPLAYS) or self._is_plain(node)

    def _effect_of(self, node: ast.Call) -> Effects | api.Effect | None:
        """Return what is known about a call: the effects of a function of the project, a table entry, or None."""
        found = self.function(node.func)
        if found is not None:
            return self.analysis.summary(found, self._texts(found, node))
        dotted = self._library_name(node.func)
        if dotted is not None and not self._mentioned(node.func):
            known = api.function_effect(dotted)
            return api.PLAIN if known is None and api.files_of(dotted, "") else known
        if isinstance(node.func, ast.Attribute):
            return self._method_effect(node, node.func)
        return None

    def _method_effect(self, node: ast.Call, func: ast.Attribute) -> api.Effect | None:
        name, owner = func.attr, (dotted_name(func.value) or "").rpartition(".")[2]
        if "trainer" in owner.lower():
            return None
        if ast.unparse(func.value).startswith("super(") or (
            name == "train" and len(node.args) <= 1 and MODULES.search(owner)
        ):
            return api.CHANGES_OBJECT
        if name in {"parse_args", "parse_known_args"}:
            return api.NOTHING if self.analysis.options_change else api.PLAIN
        known = api.method_effect(name)
        if any(word.arg == "inplace" for word in node.keywords):
            return api.CHANGES_OBJECT
        return (api.NOTHING if name == "open" else api.PLAIN) if known is None and api.files_of("", name) else known

    def _call(self, node: ast.Call) -> None:
        found, dotted = self.function(node.func), self._library_name(node.func)
        for word in _given(node):  # functions among the arguments are called, too
            handed = self.function(word) if isinstance(word, ast.Name | ast.Attribute) else None
            if handed is not None:
                self.effects.calls += [handed] if dotted not in api.WRAPPERS else []
                self._apply(handed, {}, node)
        made = self.analysis.project.find_class(self.module, resolved(node.func, self.module) or "")
        if found is not None:
            self.effects.calls.append(found)
            self._apply(found, self._texts(found, node), node)
        elif made is not None:
            self._construct(made, node)
        elif dotted is not None and not self._mentioned(node.func):
            self._library(node, dotted)
        elif isinstance(node.func, ast.Attribute):
            self._method(node, node.func)
        elif isinstance(node.func, ast.Name) and self.variable(node.func.id) is None:
            self._unknown(node.func.id, node)
        else:  # an object is called, such as a model
            self._change(self._references(node))
            self._alias(self._references(node))
            self.effects.states.add(api.RANDOM)  # for dropout
            self._call_methods("__call__", node)
            self._call_methods("forward", node)

    def _apply(self, found: Found, texts: dict[str, Text], node: ast.expr) -> None:
        """Apply the effects of a call of a function of the project; `node` has all possible arguments."""
        inside, effects = self.analysis.summary(found, texts), self.effects
        given = self._references(node)
        self._read(inside.reads)
        effects.assigns |= inside.assigns
        effects.changes |= inside.changes
        self._change(given if inside.changes_arguments else ())
        if inside.changes_arguments or inside.keeps_arguments:
            self._alias(given | {variable for variable in inside.reads if not self._value_kind(variable)[0]})
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

    def _construct(self, made: tuple[Module, str], node: ast.Call) -> None:
        module, name = made
        for base in module.classes[name].bases:
            dotted = resolved(base, module) or ""
            if self.analysis.project.find_class(module, dotted) is None and not hasattr(builtins, dotted):
                self._state_of(api.function_effect(dotted), dotted)
        found = self.analysis.project.method(made, "__init__")
        if found is not None:
            self.effects.calls.append(found)
            self._apply(found, self._texts(found, node), node)

    def _method(self, node: ast.Call, func: ast.Attribute) -> None:
        owner = (dotted_name(func.value) or "").rpartition(".")[2]
        self.effects.clues.note(method_clue(node, self.module, func.attr, owner), self.loops)
        candidates = self.analysis.project.methods_named(func.attr)
        effect = self._method_effect(node, func)
        for found in candidates if not ast.unparse(func.value).startswith("super(") else ():
            self.effects.calls.append(found)
            self._apply(found, self._texts(found, node), node)
        self.effects.files |= self._accesses(node)
        if effect is None and not candidates:
            self._unknown("", node)
        elif effect is not None:
            self._change(self._references(func.value) if -1 in effect.changes else ())
            self._alias(self._references(node) if -1 in effect.changes else ())
            self._state_of(effect, func.attr)

    def _library(self, node: ast.Call, dotted: str) -> None:
        """Process a call of a library function or a builtin."""
        self.effects.clues.note(function_clue(node, self.module, dotted), self.loops)
        self.effects.files |= self._accesses(node)
        if dotted == "torch.multiprocessing.spawn":
            count = _argument(node, 2, {"nprocs"})
            self.effects.clues.processes = count.value if isinstance(count, ast.Constant) else 1  # type: ignore[assignment]
        if dotted in {"exec", "eval", "compile", "__import__", "globals", "locals"}:
            self.effects.states.add(EVERYTHING)
        effect = self._effect_of(node)
        if not isinstance(effect, api.Effect):
            self._unknown(dotted, node)
            return
        changed = [node.args[place] for place in effect.changes if place < len(node.args)]
        for arg in changed + [word.value for word in node.keywords if word.arg == "out"]:
            self._change(self._references(arg))
        for arg in node.args if effect.iterates else ():
            self._iterate(arg)
        self._state_of(effect, dotted)

    def _unknown(self, name: str, node: ast.AST) -> None:
        """Process a call that is not known."""
        self._outside(name)
        self._change(self._references(node))
        self._alias(self._references(node))

    def _outside(self, name: str) -> None:
        self.effects.states.add(api.OUTSIDE)
        self.effects.unknown_calls += [name] if name else []

    def _state_of(self, effect: api.Effect | None, name: str) -> None:
        if effect is None:
            self._outside(name)
        self.effects.states |= {effect.state} if effect is not None and effect.state else set()

    def decorator(self, mark: ast.expr) -> None:
        """Process a decorator as a call with the decorated object."""
        dotted = self._library_name(mark)
        if dotted is None:
            self._expression(mark)
        elif not hasattr(builtins, dotted):
            self.effects.clues.note(function_clue(mark, self.module, dotted), self.loops)
            self._state_of(api.function_effect(dotted), dotted)

    def _made_of(self, node: ast.expr) -> tuple[set[Variable], set[FileAccess]]:
        """Return the variables that a value may refer to, and the files that it was made with."""
        referred, files = self._references(node), set()
        for call in (part for part in ast.walk(node) if isinstance(part, ast.Call)):
            effect = self._effect_of(call)
            files |= effect.files if isinstance(effect, Effects) else self._accesses(call)
            referred |= (
                {v for v in effect.reads if not self._value_kind(v)[0]} if isinstance(effect, Effects) else set()
            )
        return referred, files

    def _accesses(self, node: ast.Call) -> set[FileAccess]:
        dotted = self._library_name(node.func) or ""
        method = node.func.attr if isinstance(node.func, ast.Attribute) else ""
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


def literal_value_kind(project: Project, variable: Variable) -> tuple[bool, bool]:
    """Return whether a file's variable is assigned only plain values, and only containers, as far as the code shows."""
    module = next((module for module in project.modules() if module.shown == variable.scope), None)
    if module is None:
        return False, False
    values = [
        node.value if isinstance(node, ast.Assign | ast.AnnAssign) else None
        for node in ast.walk(module.tree)
        if isinstance(node, ast.stmt) and variable.name in assigned(node)
    ]
    constant = all(isinstance(value, ast.Constant) for value in values)
    return constant, all(isinstance(value, DISPLAYS) for value in values)


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
