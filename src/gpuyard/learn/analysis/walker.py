"""Finds the effects of code, through all functions of the project that it calls.

The analysis is conservative: what was not shown to be harmless is ordered with everything (`EVERYTHING`). These are
unknown:

- a call of which it is not known what it reaches (`values`), and any call of an object, such as a model;
- a function of the project with a decorator or a default that is not known to be harmless;
- iterating over anything but a list or the like: it may run a generator or draw from a data loader.

Operators, attributes and calls of library functions may run special methods and properties of classes of the project.
A function of the project is summarized once for each set of paths that it is called with.
"""

import ast
import builtins
import re
from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path

from gpuyard.learn.analysis import api_patterns as api
from gpuyard.learn.analysis.api_patterns import Kind
from gpuyard.learn.analysis.effects import ESCAPED, EVERYTHING, Effects, FileAccess, Variable, parameters
from gpuyard.learn.analysis.paths import NameScope
from gpuyard.learn.analysis.source import (
    Found,
    Function,
    Module,
    Project,
    assigned,
    dotted_name,
    is_main_guard,
    resolved,
)
from gpuyard.learn.analysis.step_classifier import clue_of, function_clue, method_clue
from gpuyard.learn.analysis.values import DISPLAYS, Callee, Values, argument, handed, is_constant

DEEPEST = 20
"""Maximum depth of nested calls that are followed."""
CHANGES_OPTIONS = re.compile(
    r"\bnargs=|\baction='(?!store'|store_true'|store_false')|\bvars\(|__dict__|\btype=(?!(str|int|float|bool|(pathlib\.)?Path)\b)"
)
"""Code by which a command-line option may be anything but a number or a string that never changes."""


class Analysis:
    """Finds the effects of functions of one project, each once for the paths it is called with."""

    def __init__(self, project: Project, scope: NameScope) -> None:
        self.project, self.scope = project, scope
        nodes = [(module, node) for module in project.modules() for node in ast.walk(module.tree)]
        stores = [node for _, node in nodes if isinstance(node, ast.Attribute) and not isinstance(node.ctx, ast.Load)]
        self.plain_options = all(dotted_name(node.value) == "self" for node in stores) and not any(
            CHANGES_OPTIONS.search(ast.unparse(module.tree)) for module in project.modules()
        )
        self.has_strangers = any(_is_strange(project, module, node) for module, node in nodes)
        """Whether any object may be of an unknown library, so that the tables of methods do not hold for it."""
        self._values: dict[Variable, list[ast.expr | None]] = {}
        """The values that variables of files are assigned, wherever that is; None if it is not written there."""
        for module, node in nodes:
            for name in assigned(node) if isinstance(node, ast.stmt) else ():
                value = node.value if isinstance(node, ast.Assign | ast.AnnAssign) else None
                self._values.setdefault(Variable(module.shown, name), []).append(value)
        self._stateful = {Variable(module.shown, name) for module in project.modules() for name in module.stateful}
        self._defined = {Variable(m.shown, name) for m in project.modules() for name in (*m.classes, *m.functions)}
        self._known: dict[tuple[int, tuple[tuple[str, str], ...]], Effects] = {}
        self._acting: dict[Path, bool] = {}
        self._open: list[int] = []
        self._met_open = False

    def summary(self, found: Found, texts: dict[str, str]) -> Effects:
        """Return the effects of a call of this function on outside variables, arguments and everything else."""
        key = (id(found.function), tuple(sorted(texts.items(), key=lambda item: item[0])))
        if key in self._known:
            return self._known[key]
        if id(found.function) in self._open or len(self._open) >= DEEPEST:
            self._met_open = True  # an incomplete summary is not cached
            deep = set() if id(found.function) in self._open else {EVERYTHING}
            return Effects(changes_arguments=True, returns=Kind.OBJECT, states=deep)
        self._open.append(id(found.function))
        scope = self.scope.inside(found.module, found.function, texts)
        walker = Walker(self, found.module, scope, found)
        walker.definition(found.function)
        walker.block(found.function.body)
        made = walker.effects.from_outside(walker.key, parameters(found.function))
        self._open.pop()
        if not self._met_open or not self._open:
            self._known[key] = made
            self._met_open = False
        return made

    def literal_kind(self, variable: Variable) -> Kind:
        """Return the kind of a file's variable as far as its assignments show it, wherever they are."""
        values = self._values.get(variable, [])
        if variable in self._stateful or (not values and variable not in self._defined):
            return Kind.OBJECT
        if all(value is not None and is_constant(value) for value in values):
            return Kind.PLAIN
        return Kind.LIST if all(isinstance(value, DISPLAYS) for value in values) else Kind.OBJECT

    def acts(self, module: Module) -> bool:
        """Return whether importing a file of the project does more than define names."""
        if module.path not in self._acting:
            self._acting[module.path] = False  # while it is being found out: files may import each other
            walker = Walker(self, module, NameScope(module))
            walker.block(node for node in module.tree.body if not isinstance(node, ast.If) or not is_main_guard(node))
            files, states = walker.effects.files, walker.effects.states
            self._acting[module.path] = bool(states) or any(file.writes for file in files)
        return self._acting[module.path]


def _is_strange(project: Project, module: Module, node: ast.AST) -> bool:
    """Return whether code imports or calls anything that is neither in the project nor in the tables."""
    names: list[str] = []
    match node:
        case ast.Import() | ast.ImportFrom():
            names = [name for name in _imported(node) if name.lstrip(".").partition(".")[0] not in api.LIBRARIES]
        case ast.Call(func=func):
            dotted = resolved(func, module) or ""
            is_imported = (dotted_name(func) or "").partition(".")[0] in module.imports
            names = [dotted] if is_imported and api.function_effect(dotted) is None else []
    return any(project.target(module, name)[0] is None for name in names)


def _imported(node: ast.Import | ast.ImportFrom) -> list[str]:
    if isinstance(node, ast.ImportFrom):
        return [f"{'.' * node.level}{node.module or ''}"]
    return [one.name for one in node.names]


class Walker(Values):
    """Walks one scope, a file or a function, in the order of its code."""

    def __init__(self, analysis: Analysis, module: Module, scope: NameScope, function: Found | None = None) -> None:
        super().__init__(analysis, module, scope, function)
        self.effects = Effects()
        self.loops = 0
        self._sure: set[Variable] = set()
        """Variables that are assigned on every path."""

    def enter(self, found: Found, call: ast.Call) -> tuple["Walker", Effects]:
        """Return a walker for the body of a function that is called here, and the effects of passing its arguments."""
        scope = self.scope.inside(found.module, found.function, self.texts(found, call))
        inner = Walker(self.analysis, found.module, scope, found)
        plain = self.are_plain(handed(call)) and all(map(is_constant, _defaults(found.function)))
        own = {Variable(inner.key, name) for name in parameters(found.function)}
        inner.kinds, inner.given = dict.fromkeys(own, Kind.PLAIN if plain else Kind.OBJECT), set()
        self.effects, self._sure = Effects(), set()
        self._read(self.mentioned(call))
        self._alias(own | self.references(call) if not plain else [])
        inner.definition(found.function)
        self.effects.states |= inner.effects.states
        self.effects.assigns |= own
        return inner, self.effects

    def unit(self, body: Iterable[ast.stmt], loop: ast.For | None = None) -> Effects:
        """Return the effects of these statements alone, or of one iteration of a loop."""
        self.effects, self._sure = Effects(), set()
        if loop is not None:
            self._expression(loop.iter)
            self._assign([loop.target], loop.iter, is_element=True)
        self.block(body)
        return self.effects

    def block(self, body: Iterable[ast.stmt]) -> None:
        """Process statements in order."""
        for node in body:
            self.callees = {}
            self._statement(node)

    def _maybe(self, body: Iterable[ast.stmt]) -> None:
        """Process statements that may not run."""
        before = set(self._sure)
        self.block(body)
        self._sure = before

    # --- statements ----------------------------------------------------------------------------------------------------

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
                    before = set(self._sure)
                    self._bind({handler.name} if handler.name else (), Kind.OBJECT)
                    self._alias({ESCAPED, *(self._bound(handler.name) if handler.name else ())})
                    self.block(handler.body)
                    self._sure = before
                self.block(node.finalbody)
            case ast.ClassDef():
                for mark in node.decorator_list:
                    self._decorator(mark)
                self.block(part for part in node.body if not isinstance(part, Function))
                own = self._bound(node.name)
                self._read(self.mentioned(node) - own)
                shares = node.name in self.module.stateful
                self._bind({node.name}, Kind.OBJECT if shares else Kind.PLAIN)
                self._alias(own | self.references(node) if shares else [])
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
                self._read(self.mentioned(target))
                load: ast.expr = ast.parse(ast.unparse(target), mode="eval").body
                if not self.are_plain([value, load]):
                    self._change(self.mentioned(target))
                    self._implicit(target)
                self._assign([target], ast.BinOp(load, node.op, value))
            case ast.Delete(targets=targets):
                self._read(set().union(*map(self.mentioned, targets)))
                self._assign(targets, None)
            case ast.Return(value=value):
                self._expression(value or ast.Constant(None))
                self.effects.returns |= self.kind(value) if value is not None else Kind.PLAIN
                self.effects.exits = True
            case _:
                parts = [part for part in ast.iter_child_nodes(node) if isinstance(part, ast.expr)]
                for part in parts:
                    self._expression(part)
                if isinstance(node, ast.Raise | ast.Assert):
                    self.effects.exits = True
                    given = [one for part in parts for one in handed(part) if self.kind(one) is not Kind.PLAIN]
                    self._alias(self.references(*given) | {ESCAPED})

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
            self._change(self.references(item))
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

    def definition(self, node: Function) -> None:
        """Process what defining a function does, and what its decorators and defaults do when it is called."""
        for mark in node.decorator_list:
            self._decorator(mark)
        for value in _defaults(node):
            if not is_constant(value) and self.kind(value) is not Kind.PLAIN:  # calls share what it refers to
                self._unknown("", value)

    def _decorator(self, mark: ast.expr) -> None:
        func = mark.func if isinstance(mark, ast.Call) else mark
        dotted = self.library_name(func) or dotted_name(func) or ""
        self.effects.clues.note(function_clue(mark, self.module, dotted), self.loops)
        is_accessor = isinstance(func, ast.Attribute) and func.attr in {"setter", "deleter", "getter"}
        if dotted not in api.DECORATORS and not is_accessor:
            self._unknown("", mark)

    def _import(self, node: ast.Import | ast.ImportFrom) -> None:
        """Process an import: of an unknown library, or of a file of the project that does more than define names."""
        for name in _imported(node):
            there, _ = self.project.target(self.module, name)
            if (there is None and name.partition(".")[0] not in api.LIBRARIES) or (
                there is not None and there.path != self.project.script_path and self.analysis.acts(there)
            ):
                self._order_with_everything(node)

    def _bound(self, name: str) -> set[Variable]:
        return {self.variable(name) or Variable(self.key, name)}

    def _bind(self, names: Iterable[str], kind: Kind) -> set[Variable]:
        """Record that names are assigned values of a kind; return their variables."""
        variables = set().union(*map(self._bound, names))
        self.effects.assigns |= variables
        self._sure |= variables
        for variable in variables:
            self.kinds[variable] = self.kinds.get(variable, kind) | kind
        return variables

    def _assign(self, targets: Sequence[ast.expr], value: ast.expr | None, *, is_element: bool = False) -> None:
        """Assign a value, or an element of it, to targets; the value's expression was already processed."""
        kind = Kind.PLAIN if value is None else self.element_kind(value) if is_element else self.kind(value)
        changed: set[Variable] = set()
        for target in targets:
            parts = [part for part in ast.walk(target) if not isinstance(getattr(part, "ctx", ast.Load()), ast.Load)]
            own = kind if isinstance(target, ast.Name) or kind is Kind.PLAIN else Kind.OBJECT
            changed |= self._bind({part.id for part in parts if isinstance(part, ast.Name)}, own)
            for part in parts:
                if isinstance(part, ast.Attribute | ast.Subscript):
                    self._expression(part.value)
                    self._implicit(target)
                    owners = self.mentioned(part.value) or self.mentioned(part)
                    if not owners:  # an attribute of a library, or of a class or function of the project
                        self._order_with_everything(part)
                    is_new = ast.unparse(part.value) == "self" and ".__init__:" in self.key
                    self._change(set() if is_new else owners)  # a new object changes nothing
                    changed |= owners
        if value is not None and kind is not Kind.PLAIN:
            self._alias(changed | self.references(value))
            self.effects.holds |= {(variable, file) for variable in changed for file in self._files_of(value)}

    def _files_of(self, node: ast.expr) -> set[FileAccess]:
        """Return the files that a value was made with."""
        files: set[FileAccess] = set()
        for call in (part for part in ast.walk(node) if isinstance(part, ast.Call)):
            files |= self.accesses(call)
            for found in self.callee(call).functions:
                files |= self.analysis.summary(found, self.texts(found, call)).files
        return files

    # --- expressions ---------------------------------------------------------------------------------------------------

    def _expression(self, node: ast.expr) -> None:
        """Process everything that evaluating an expression does."""
        if isinstance(node, ast.Constant):
            return
        self._sure |= self._bound_in(node)
        self._read(self.mentioned(node))
        parts = list(ast.walk(node))
        called = {id(call.func) for call in parts if isinstance(call, ast.Call)}
        given = {id(part) for call in parts if isinstance(call, ast.Call) for part in handed(call)}
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
                    self._alias(self._bound_in(part) | self.references(node) | {ESCAPED})
                case ast.Starred(value=value):
                    self._iterate(value)
                case ast.Yield(value=value) | ast.YieldFrom(value=value):
                    self.effects.returns = Kind.OBJECT
                    if value is not None:
                        self._alias(self.references(value) | {Variable(self.key, name) for name in self.given})
                case ast.Constant(value=str() as word) if re.fullmatch(r"cuda(:\d+)?", word):
                    self.effects.clues.note(function_clue(part, self.module, "cuda:"), self.loops)
                case ast.BinOp(op=ast.MatMult()):
                    self.effects.clues.note(function_clue(part, self.module, "@"), self.loops)
                case ast.Call():
                    self._call(part)
                case ast.Subscript(
                    value=ast.Attribute(attr="loc" | "iloc") | ast.Name() as base, slice=ast.Name() as key
                ):
                    if self.kind(base) is not Kind.PLAIN and self.kind(key) in {Kind.OWN, Kind.OBJECT}:
                        self._call_given(key)  # a table calls a function that it is indexed with
                case ast.Name(id=name) if name in self.nested:
                    self._unknown("", part)
                case ast.Name() | ast.Attribute() if id(part) not in called:
                    self._value(part, node, is_given=id(part) in given)

    def _value(self, part: ast.Name | ast.Attribute, node: ast.expr, *, is_given: bool) -> None:
        """Process a function or method that is mentioned, not called: it may be called later, with any arguments."""
        dotted = self.module.imports.get((dotted_name(part) or "").partition(".")[0], "")
        is_strange = dotted.partition(".")[0] not in {"", *api.LIBRARIES} and "." in f"{dotted}{ast.unparse(part)}"
        if is_strange and self.project.target(self.module, dotted)[0] is None:  # it may be made when it is asked for
            self._unknown("", part)
        found = self.function(part)
        methods = self.project.methods_named(part.attr) if isinstance(part, ast.Attribute) else []
        for one in [found] if found is not None and not is_given else methods:
            self._alias(self.outside(one) | self.references(node) | {ESCAPED})
            self._apply(one, {}, node)

    def _implicit(self, node: ast.expr) -> None:
        """Process the special methods of the project that operators and library functions may run."""
        if self.project.special_methods and self.references(node):
            for found in self.project.special_methods:
                self._apply(found, {}, node)

    def _bound_in(self, node: ast.expr) -> set[Variable]:
        """Return the variables of comprehensions and lambdas."""
        found: set[Variable | None] = set()
        for part in ast.walk(node):
            if isinstance(part, ast.comprehension):
                found |= self.mentioned(part.target) - self.mentioned(part.iter)
            elif isinstance(part, ast.arg):
                found.add(self.variable(part.arg))
        return {variable for variable in found if variable is not None}

    def _iterate(self, node: ast.expr) -> None:
        """Process iteration over a value, or a call of it: a handle is read, anything but a list may run code."""
        if isinstance(node, ast.GeneratorExp | ast.Lambda):  # its parts are processed on their own
            return
        kind, references = self.kind(node), self.references(node)
        if kind is Kind.HANDLE:
            self._change(references)
        elif kind in {Kind.OWN, Kind.OBJECT}:
            own = {Variable(self.key, name) for name in self.given} & references
            self.effects.iterates_arguments |= bool(own)
            if references - own or not own:
                self._unknown("", node)

    # --- calls ---------------------------------------------------------------------------------------------------------

    def _call(self, node: ast.Call) -> None:
        func, callee = node.func, self.callee(node)
        for part in handed(node)[1 if isinstance(func, ast.Attribute) else 0 :]:
            function = self.function(part) if isinstance(part, ast.Name | ast.Attribute) else None
            if function is not None:  # functions among the arguments are called, too
                self.effects.calls += [function] if callee.library not in api.WRAPPERS else []
                self._apply(function, {}, node)
                self._alias(self.outside(function) | self.references(node))  # and again, when it was kept
        for found in callee.functions:
            self.effects.calls.append(found)
            self._apply(found, self.texts(found, node), node)
        if callee.made is not None:
            self._construct(*callee.made)
        if callee.library:
            self.effects.clues.note(function_clue(node, self.module, callee.library), self.loops)
            if callee.library == "torch.multiprocessing.spawn":
                count = argument(node, 2, {"nprocs"})
                self.effects.clues.processes = count.value if isinstance(count, ast.Constant) else 1  # type: ignore[assignment]
        elif isinstance(func, ast.Attribute) and self.function(func) is None and callee.made is None:
            owner = (dotted_name(func.value) or "").rpartition(".")[2]
            self.effects.clues.note(method_clue(node, self.module, func.attr, owner), self.loops)
        if not callee.is_known:
            name = func.id if isinstance(func, ast.Name) and self.variable(func.id) is None else ""
            self._unknown(callee.library or name, node)
            for name in ("__call__", "forward") if not isinstance(func, ast.Attribute) else ():
                self._call_methods(name, node)
        if callee.effect is not None:
            self._table(node, callee, callee.effect)
        if self.function(func) is None and callee.made is None:
            self.effects.files |= self.accesses(node)

    def _table(self, node: ast.Call, callee: Callee, effect: api.Effect) -> None:
        """Apply what the tables say about a call."""
        changed = [node.args[place] for place in effect.changes if 0 <= place < len(node.args)]
        places = {"out", "generator", *api.FILE_KEYWORDS}
        changed += [w.value for w in node.keywords if w.arg in places and self.kind(w.value) is not Kind.PLAIN]
        if not callee.library:  # an array may be given where its methods put the result
            changed += [arg for arg in node.args[1:] if self.kind(arg) is not Kind.PLAIN]
        if -1 in effect.changes and isinstance(node.func, ast.Attribute):
            changed.append(node.func.value)
            if dotted_name(node.func.value) and not self.mentioned(node.func.value):  # of a class, function or library
                self._order_with_everything(node)
            self._alias(self.references(*handed(node)))
        for arg in changed:
            self._change(self.mentioned(arg) if isinstance(arg, ast.Name | ast.Attribute) else self.references(arg))
        words = [word.value for word in node.keywords if effect.calls or word.arg in api.CALLBACKS]
        for arg in [*node.args, *words] if effect.calls else words:
            self._call_given(arg)
        for arg in node.args if effect.iterates else ():
            self._iterate(arg)
            self._call_given(arg) if self.kind(arg) is Kind.PLAIN else None
        for word in node.keywords if effect.iterates else ():
            self._iterate(word.value)
        self.effects.states |= {effect.state} if effect.state else set()

    def _call_given(self, node: ast.expr) -> None:
        """Process a call of an argument, or of what it contains; functions of the project were already processed."""
        match node:
            case ast.Lambda():
                return
            case ast.List(elts=parts) | ast.Tuple(elts=parts) | ast.Set(elts=parts) | ast.Dict(values=parts):
                for part in parts:
                    self._call_given(part)
                return
        dotted = self.library_name(node)
        effect = api.function_effect(dotted) if dotted is not None else None
        is_pure = effect is not None and not effect.state and not effect.changes and not api.files_of(dotted or "", "")
        is_class = self.project.find_class(self.module, resolved(node, self.module) or "") is not None
        if self.kind(node) is not Kind.PLAIN or is_class or (dotted is not None and not is_pure):
            self._unknown("", node) if self.function(node) is None else None

    def _apply(self, found: Found, texts: dict[str, str], node: ast.expr) -> None:
        """Apply the effects of a call of a function of the project; `node` has all possible arguments."""
        inside, effects = self.analysis.summary(found, texts), self.effects
        parts = [part for part in handed(node) if self.kind(part) is not Kind.PLAIN]
        given = self.references(*parts)
        self._read(inside.reads)
        effects.assigns |= inside.assigns
        effects.changes |= inside.changes
        effects.aliases |= inside.aliases
        self._change(given if inside.changes_arguments else ())
        if inside.changes_arguments or inside.keeps_arguments:
            self._alias(given | {v for v in inside.reads if self.kind_of(v) is not Kind.PLAIN})
        for part in parts if inside.iterates_arguments else ():
            self._iterate(part)
        effects.files |= inside.files
        effects.holds |= inside.holds
        effects.states |= inside.states
        effects.unknown_calls += inside.unknown_calls
        effects.clues.add(inside.clues, self.loops)

    def _call_methods(self, name: str, node: ast.expr) -> None:
        """Apply the effects of every method of this name in the project."""
        for found in self.project.methods_named(name):
            self._apply(found, {}, node)

    def _construct(self, module: Module, name: str) -> None:
        for base in module.classes[name].bases:
            dotted = resolved(base, module) or ""
            if self.project.find_class(module, dotted) is None and not hasattr(builtins, dotted):
                effect = api.function_effect(dotted)
                self.effects.states |= {effect.state} - {""} if effect is not None else set()
                if effect is None:
                    self._order_with_everything(base)

    def _unknown(self, name: str, node: ast.AST) -> None:
        """Process a call that is not known."""
        self._order_with_everything(node)
        self.effects.unknown_calls += [name] if name else []
        self._read({ESCAPED})
        self._change(self.references(node))
        self._alias(self.references(node) | {ESCAPED})

    def _order_with_everything(self, node: ast.AST) -> None:
        self.effects.states.add(EVERYTHING)
        self.effects.clues.note(clue_of(node, self.module, api.NOT_KNOWN), 0)

    def _read(self, variables: Iterable[Variable]) -> None:
        self.effects.reads |= set(variables) - self._sure

    def _change(self, variables: Iterable[Variable]) -> None:
        self.effects.changes |= set(variables)

    def _alias(self, variables: Iterable[Variable]) -> None:
        self.effects.aliases |= set(pairwise(sorted(set(variables))))


def _defaults(function: Function) -> list[ast.expr]:
    return [*function.args.defaults, *(value for value in function.args.kw_defaults if value is not None)]
