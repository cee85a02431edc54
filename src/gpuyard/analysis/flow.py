"""What a script does, step by step, and which step needs what of which other.

The script is walked as a reader would walk it: from its first line, into `main()`, through loops and conditions. What is seen
on the way is one of three things:

- a *step*: a call of a function of the project (or of one nobody knows), a loop that works, a statement that does so by itself;
- *glue*: everything that is quick (constants, options, building a model). It is no task, but what it makes carries on what
  it was made from;
- a compound statement that is only the frame around steps. It is walked into; a loop over batches never is.

Values are followed as *objects*. A name refers to objects; an object may hold others (an optimizer the model). For each object
we know the steps whose work is in it (`writers`) and those that have looked at it since (`readers`). A step needs

    the writers of all it looks at, through whatever holds them       (it uses their result)
    the readers of all it changes                                     (they must have seen it before)
    what the conditions it is under were made from                    (else nobody knows whether it runs)
    the steps before it that wrote a file it reads, and so on         (`files` at the end)

Branches are walked apart and joined. The body of a loop is walked twice: a need that appears only in the second round goes from
one round to the next. Such needs make no edge, since a task stands for all rounds; a loop without any has rounds that
could all run at once. So edges go forward in the order of the code, and can not form a circle.

What is believed of functions nobody can look into is in `changes`. What goes through `exec`, names made at run time or
libraries that keep a state is not seen.
"""

import ast
import builtins
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

from gpuyard.analysis.changes import Changing, base_name, calls_of, may_change, may_refer, seen_from, stateful_names
from gpuyard.analysis.objects import NOBODY, NOTHING, State, Value, together
from gpuyard.analysis.shapes import (
    base,
    below,
    has_star,
    is_main_guard,
    leaves,
    literal_length,
    name_of,
    number_of,
    unwrapped,
)
from gpuyard.analysis.signs import CHANGES_ARGUMENTS, COLLECTS, changes_object
from gpuyard.analysis.sources import Found, Project, code, dotted_name, resolved, statements
from gpuyard.analysis.steps import (
    BUILDERS,
    KNOWN,
    PLAIN,
    PLAIN_METHODS,
    QUICK,
    Loop,
    Step,
    When,
    exclusive,
    shared_files,
    unseen_effects,
)
from gpuyard.analysis.survey import (
    BATCHES,
    Seen,
    Surveyor,
    bound_arguments,
    bound_texts,
    handed_over,
    leaving,
    makers_of,
    parameters,
)
from gpuyard.analysis.texts import Scope, unmarked

T = TypeVar("T")


class Flow:
    """One walk through a script."""

    def __init__(
        self, project: Project, surveyor: Surveyor, changing: Changing, scope: Scope, entered: Sequence[int] = ()
    ) -> None:
        self._project, self._surveyor, self._changing = project, surveyor, changing
        self._scope = scope
        self._module = scope.module
        self._entered = set(entered)
        """Functions whose calls are walked into instead of being steps."""
        self._walked: dict[int, Value] = {}
        self.steps: list[Step] = []
        self.edges: dict[tuple[int, int], set[str]] = {}
        self.glue: list[tuple[ast.stmt, frozenset[int]]] = []
        """Statements that are no steps, with the steps whose work they use."""
        self.body: list[ast.stmt] = []
        """What was walked last: of the file, or of the function that does the work."""
        self._numbers: dict[tuple[int, int], Step] = {}
        self._state = State()
        self._held: dict[int, set[int]] = {}
        self._plain: set[int] = set()
        """Numbers, texts, options: what nobody changes, and whoever got it holds only a copy of."""
        self._objects = 0
        self._control: dict[int, str] = {}
        self._loops: tuple[Loop, ...] = ()
        self._whens: tuple[When, ...] = ()
        self._inside: Step | None = None
        self._own: set[int] = set()
        """Objects the step we are inside of has made or changed this time: what it needs of itself."""
        self._rounds_of: list[tuple[Loop, bool]] = []
        """Loops that are being walked, the innermost last, and whether it is the second round."""
        self._known_loops: dict[int, Loop] = {}
        self._contexts: list[Seen] = []
        self._top: ast.stmt | None = None
        self._discarded: ast.expr | None = None
        """The call whose result nobody uses."""
        self._depth = 0
        self._owner = ""
        self._makers = makers_of(self._module.tree.body, self._module)
        self._returned: list[Value] = []
        self._conditions = 0

    def walk(self) -> None:
        """The whole script."""
        for name in stateful_names(self._module):
            self._bind(name, self._new(NOBODY, frozenset()))
        self.body = [
            inner
            for node in self._module.tree.body
            for inner in (node.body if isinstance(node, ast.If) and is_main_guard(node) else [node])
        ]
        self._block(self._module.tree.body)
        self._files()

    # --- statements ---------------------------------------------------------------------------------------------------

    def _block(self, body: Iterable[ast.stmt]) -> None:
        for node in body:
            if self._depth == 0:
                self._top = node
            self._depth += 1
            self._statement(node)
            self._depth -= 1

    def _statement(self, node: ast.stmt) -> None:
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef() | ast.Import() | ast.ImportFrom():
                return
            case ast.If() if is_main_guard(node):
                self._depth -= 1  # its statements are the script's
                self._block(node.body)
                self._depth += 1
                return
        if self._inside is None and not self._divides(node):
            seen = self._look(node)
            if seen.works:
                self._as_step(node, seen)
                return
        self._inner(node)

    def _inner(self, node: ast.stmt) -> None:
        if not self._compound(node):
            self._simple(node)

    def _as_step(self, node: ast.stmt, seen: Seen) -> None:
        """A statement that is one step with all that is in it."""
        step = self._step(node, None, seen)
        self._inside, self._own = step, set()
        self._inner(node)
        self._inside, self._own = None, set()

    def _compound(self, node: ast.stmt) -> bool:
        match node:
            case ast.If():
                self._if(node)
            case ast.For() | ast.AsyncFor():
                self._for(node)
            case ast.While():
                with self._under(self._reading(node.test), code(node)):
                    self._rounds(node, [*node.body, *node.orelse], self._loop(node, code(node), None))
            case ast.With() | ast.AsyncWith():
                for item in node.items:
                    value = self._value(item.context_expr)
                    if item.optional_vars is not None:
                        self._store(item.optional_vars, value)
                self._contexts.append(self._surveyor.look([item.context_expr for item in node.items], self._scope))
                self._each(node.body)
                self._contexts.pop()
                for call in leaving(node, self._module, self._makers):
                    self._value(call)
            case ast.Try() | ast.TryStar():
                before = self._state.copy()
                self._each([*node.body, *node.orelse])
                before.join(self._state)  # it may have come as far as it goes before something went wrong
                for handler in node.handlers:
                    self._side(before, handler.body)
                self._each(node.finalbody)
            case ast.Match():
                self._conditions += 1
                with self._under(self._reading(node.subject), code(node)):
                    before, number = self._state.copy(), self._conditions
                    for side, case in enumerate(node.cases):
                        with self._on_side(When(number, side, f"case {ast.unparse(case.pattern)}")):
                            self._side(before, case.body)
            case _:
                return False
        return True

    def _each(self, body: Iterable[ast.stmt]) -> None:
        for node in body:
            self._statement(node)

    def _side(self, before: State, body: list[ast.stmt]) -> None:
        """One of several ways, taken from `before`; then either may have been."""
        other = self._state
        self._state = before.copy()
        self._each(body)
        if not (body and leaves(body[-1])):
            other.join(self._state)
        self._state = other

    def _if(self, node: ast.If) -> None:
        condition = self._reading(node.test)
        self._conditions += 1
        number, text_ = self._conditions, code(node)
        before = self._state.copy()
        control = dict(self._control)
        with self._under(condition, text_):
            with self._on_side(When(number, 0, text_)):
                self._each(node.body)
            left = self._state
            self._state = before
            with self._on_side(When(number, 1, f"not {text_.removeprefix('if ')}")):
                self._each(node.orelse)
        first_leaves = bool(node.body) and leaves(node.body[-1])
        second_leaves = bool(node.orelse) and leaves(node.orelse[-1])
        if first_leaves and not second_leaves:
            pass
        elif second_leaves and not first_leaves:
            self._state = left
        else:
            left.join(self._state)
            self._state = left
        self._control = control
        if any(leaves(inner) for inner in statements([*node.body, *node.orelse])):
            self._control |= dict.fromkeys(condition, text_)  # what follows runs only if this did not leave

    def _for(self, node: ast.For | ast.AsyncFor) -> None:
        source = self._value(node.iter)
        made_of = self._read(source)

        loop = self._loop(node, code(node), self._count(node.iter))

        def begins() -> None:
            self._store(node.target, Value(source.objects, made_of))
            self._mark(node.target, loop)
            if source.objects and source.objects <= self._plain and isinstance(node.target, ast.Name):
                self._plain |= self._objects_of(node.target.id)

        with self._under(made_of, code(node)):
            self._rounds(node, node.body, loop, begins)
        self._unmark(node.target)
        self._each(node.orelse)

    def _rounds(
        self, node: ast.stmt, body: list[ast.stmt], loop: Loop, begins: Callable[[], None] = lambda: None
    ) -> None:
        def walk() -> None:
            begins()
            if isinstance(node, ast.While):
                self._control |= dict.fromkeys(self._reading(node.test), code(node))
            self._each(body)

        before = self._state.copy()
        self._twice(loop, walk)
        self._state.join(before)

    def _loop(self, node: ast.AST, text_: str, rounds: int | None) -> Loop:
        """The same in every round of the loops around it."""
        if id(node) not in self._known_loops:
            self._known_loops[id(node)] = Loop(text_, rounds, chr(0xE000 + len(self._known_loops) % 6000))
        return self._known_loops[id(node)]

    def _mark(self, target: ast.expr, loop: Loop) -> None:
        self._scope.names |= {name.id: loop.mark for name in ast.walk(target) if isinstance(name, ast.Name)}

    def _unmark(self, target: ast.expr) -> None:
        for name in ast.walk(target):
            if isinstance(name, ast.Name):
                self._scope.names.pop(name.id, None)

    def _twice(self, loop: Loop, walk: Callable[[], T]) -> T:
        """What the second round needs of the first goes from round to round."""
        before = self._state.copy()
        self._loops = (*self._loops, loop)
        self._rounds_of.append((loop, False))
        walk()
        self._rounds_of[-1] = (loop, True)
        self._state.join(before)
        last = walk()
        self._rounds_of.pop()
        self._loops = self._loops[:-1]
        return last

    def _simple(self, node: ast.stmt) -> None:
        used: frozenset[int] = NOBODY
        match node:
            case ast.Assign():
                for target in node.targets[:1]:
                    used = self._assign(target, node.value)
                for target in node.targets[1:]:
                    self._store(target, self._value(node.targets[0]))
            case ast.AnnAssign():
                used = self._assign(node.target, node.value)
            case ast.AugAssign():
                old = self._value(node.target)
                used = self._read(old) | self._reading(node.value)
                self._change(old, used)
                if isinstance(node.target, ast.Name):
                    self._bind(node.target.id, old.objects | self._new(used, old.objects))
            case ast.Return():
                self._returned.append(self._value(node.value))
            case ast.Expr():
                self._discarded = node.value.value if isinstance(node.value, ast.Await) else node.value
                used = self._value(node.value).steps
            case ast.Delete():
                for gone in node.targets:
                    if not isinstance(gone, ast.Name):
                        self._change(self._value(base(gone)), NOBODY)
            case ast.Assert() | ast.Raise():
                for part in ast.iter_child_nodes(node):
                    if isinstance(part, ast.expr):
                        used |= self._reading(part)
        if self._inside is None and not any(second for _, second in self._rounds_of):
            self.glue.append((node, used))

    def _assign(self, target: ast.expr, node: ast.expr | None) -> frozenset[int]:
        """Give a value a name; several at once one by one, so that they do not become one thing."""
        match target, node:
            case ast.Tuple(elts=names), ast.Tuple(elts=parts) if len(names) == len(parts) and not has_star(
                [*names, *parts]
            ):
                values = [self._value(part) for part in parts]
                for name, part, value in zip(names, parts, values, strict=True):
                    self._give(name, part, value)
                return together(values).steps
        value = self._value(node)
        self._give(target, node, value)
        return value.steps

    def _give(self, target: ast.expr, node: ast.expr | None, value: Value) -> None:
        self._store(target, value)
        if isinstance(target, ast.Name) and isinstance(node, ast.Constant | ast.JoinedStr | ast.Compare):
            self._plain |= self._objects_of(target.id)

    def _store(self, target: ast.expr, value: Value) -> None:
        match target:
            case ast.Name():
                objects = value.objects
                if self._inside is not None:
                    objects |= self._new(frozenset({self._inside.number}), objects)
                elif value.steps or not objects:
                    objects |= self._new(value.steps, objects)
                self._bind(target.id, objects)
            case ast.Tuple() | ast.List():
                for one in target.elts:
                    self._store(one, value)
            case ast.Starred():
                self._store(target.value, value)
            case _:
                steps = self._read(value)
                owner = self._value(base(target))
                self._change(owner, steps, only_itself=isinstance(getattr(target, "value", None), ast.Name))
                for thing in owner.objects:
                    self._hold(thing, value.objects)

    # --- expressions --------------------------------------------------------------------------------------------------

    def _value(self, node: ast.expr | None) -> Value:
        match node:
            case None | ast.Constant():
                return NOTHING
            case ast.Name():
                return Value(self._objects_of(node.id) or self._elsewhere(node))
            case ast.Attribute() if elsewhere := self._elsewhere(node):
                return Value(elsewhere)
            case ast.Attribute() | ast.Starred() | ast.Await() | ast.FormattedValue():
                return self._value(node.value)
            case ast.Subscript():
                whole, part = self._value(node.value), self._reading(node.slice)
                return Value(whole.objects, whole.steps | part)
            case ast.NamedExpr():
                value = self._value(node.value)
                self._store(node.target, value)
                return value
            case ast.Tuple() | ast.List() | ast.Set():
                return together(self._value(one) for one in node.elts)
            case ast.Dict():
                return together(self._value(one) for one in [*node.keys, *node.values])
            case ast.IfExp():
                condition = self._reading(node.test)
                sides = together(self._value(side) for side in (node.body, node.orelse))
                return Value(sides.objects, condition | sides.steps)
            case ast.BoolOp():
                return together(self._value(one) for one in node.values)
            case ast.Lambda():
                return self._lambda(node)
            case ast.ListComp() | ast.SetComp() | ast.GeneratorExp() | ast.DictComp():
                return self._comprehension(node)
            case ast.Call():
                return self._call(node)
        below = [one for one in ast.iter_child_nodes(node) if isinstance(one, ast.expr)]
        return Value(frozenset(), NOBODY.union(*map(self._reading, below)))

    def _reading(self, node: ast.expr | None) -> frozenset[int]:
        """The steps whose work is in an expression, which is looked at now."""
        return self._read(self._value(node))

    def _lambda(self, node: ast.Lambda) -> Value:
        names = {name.id for name in ast.walk(node.body) if isinstance(name, ast.Name)}
        names -= {arg.arg for arg in node.args.args}
        return Value(frozenset().union(*(self._objects_of(name) for name in names)))

    def _comprehension(self, node: ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp) -> Value:
        """A loop whose rounds put something into a collection."""
        self._state.names.append({})
        first = node.generators[0]
        rounds = self._count(first.iter) if len(node.generators) == 1 and not first.ifs else None
        loop = self._loop(node, f"for {ast.unparse(first.target)} in {code(first.iter, 40)}", rounds)
        for part in node.generators:
            source = self._value(part.iter)
            self._store(part.target, Value(source.objects, self._read(source)))
            self._mark(part.target, loop)
            for condition in part.ifs:
                self._reading(condition)
        parts = [node.key, node.value] if isinstance(node, ast.DictComp) else [node.elt]
        value = self._twice(loop, lambda: together(self._value(part) for part in parts))
        self._state.names.pop()
        for part in node.generators:
            self._unmark(part.target)
        return value

    # --- calls --------------------------------------------------------------------------------------------------------

    def _call(self, node: ast.Call) -> Value:
        dotted = resolved(node.func, self._module) or ""
        for made in handed_over(node, dotted):
            found = self._target(made)
            if found is not None:
                return self._handed_call(node, made, found)
        found = self._target(node)
        if found is not None:
            return self._project_call(node, found, [])
        if self._inside is None and self._is_task(node):
            return self._unknown_call(node, dotted)
        return self._library_call(node, dotted)

    def _handed_call(self, node: ast.Call, made: ast.Call, found: Found) -> Value:
        """Others will call it: in processes of their own, or for each of many."""
        rest = [value for value in [*node.args, *(word.value for word in node.keywords)] if value is not made.func]
        values = [self._value(value) for value in rest]
        if isinstance(node.func, ast.Attribute):
            owner = self._value(node.func.value)  # table.map(f) goes through the table
            values.append(owner)
            if changes_object(node.func.attr, discarded=False):  # an optimizer that is given a closure steps, too
                result = self._project_call(made, found, values, whole=node)
                self._change(owner, result.steps, self._numbered(result))
                return result
        if not made.args and rest and not isinstance(node.func, ast.Name):
            loop = self._loop(node, f"for each of {code(rest[0], 40)}", self._count(rest[0]))
            each = ast.copy_location(ast.Call(made.func, [ast.Constant(loop.mark)], []), node)
            return self._twice(loop, lambda: self._project_call(each, found, values, whole=node))
        return self._project_call(made, found, values, whole=node)

    def _numbered(self, value: Value) -> Step | None:
        return self.steps[max(value.steps)] if len(value.steps) == 1 and self._inside is None else None

    def _project_call(self, node: ast.Call, found: Found, more: list[Value], whole: ast.Call | None = None) -> Value:
        if id(found.function) in self._entered and self._inside is None:
            return self._enter(node, found)
        done = self._changing.of(found)
        given = bound_arguments(node, found)
        arguments = {name: self._value(value) for name, value in given.items()}
        spoken = {name: code(value, 30) for name, value in given.items()}
        known = set(map(id, given.values()))
        rest = [value for value in [*node.args, *(word.value for word in node.keywords)] if id(value) not in known]
        others = [*more, *map(self._value, rest)]
        own = parameters(found.function)
        if found.is_method and own and isinstance(node.func, ast.Attribute):
            arguments[own[0]] = self._value(node.func.value)
            spoken[own[0]] = code(node.func.value, 30)
        read = {seen_from(self._module, found.module, name) for name in done.globals_read}
        changed = {seen_from(self._module, found.module, name) for name in done.globals_changed}
        for name in self._free(found, read) if found.module is self._module else read:
            if name not in self._state.names[0] and ":" in name:
                self._state.names[0][name] = self._new(NOBODY, frozenset())
            arguments.setdefault(f"{name} ", Value(self._objects_of(name)))
            spoken[f"{name} "] = name.rpartition(":")[2]
        step: Step | None = None
        if self._inside is None and not self._is_quick(found):
            seen = Seen()
            seen.add(self._surveyor.function(found, bound_texts(node, found, self._scope), self._scope))
            if whole is not None:
                seen.add(self._look(whole))
            step = self._step(whole or node, found, seen)
        actor = step or self._inside
        steps = NOBODY
        for name, value in arguments.items():
            steps |= self._look_at(value, actor, spoken.get(name, name))
        for value in others:
            steps |= self._look_at(value, actor, "an argument")
        author = steps if actor is None else frozenset({actor.number})
        for name, value in arguments.items():
            if name in done.changed or name.strip() in changed:
                self._change(value, author, actor)
        for name in changed:
            before = self._state.names[0].get(name, frozenset())
            self._state.names[0][name] = before | self._new(author, before)
        named = {name.strip(): value for name, value in arguments.items()}
        for holder, held in done.holds:
            for thing in named[holder].objects if holder in named and held in named else ():
                self._hold(thing, named[held].objects)
        is_maker = found.name.endswith("__init__")
        back = arguments.values() if is_maker else [arguments[name] for name in done.given_back if name in arguments]
        objects = frozenset().union(*(value.objects for value in back))
        made = self._new(author, objects)
        if QUICK.match(found.name) and actor is None:
            self._plain |= made
            return Value(made, author)
        return Value(made if is_maker else made | objects, author)  # what is given back may be what was given

    def _unknown_call(self, node: ast.Call, dotted: str) -> Value:
        """A function nobody can look into: a step that uses all it is given."""
        values = self._arguments(node)
        step = self._step(node, None, self._look(ast.copy_location(ast.Call(node.func, [], []), node)))
        author = frozenset({step.number})
        for name, value in values:
            self._look_at(value, step, name)
        if may_change(dotted):
            for _, value in values:
                self._change(value, author, step)
        objects = frozenset().union(*(value.objects for _, value in values))
        return Value(objects | self._new(author, objects), author)

    def _library_call(self, node: ast.Call, dotted: str) -> Value:
        values = self._arguments(node)
        steps = NOBODY
        for name, value in values:
            steps |= self._look_at(value, self._inside, name)
        author = steps if self._inside is None else frozenset({self._inside.number})
        state = base_name(node.func) in stateful_names(self._module)
        is_method = isinstance(node.func, ast.Attribute) and (state or not self._is_library(dotted))
        receiver = node.func.value if is_method and isinstance(node.func, ast.Attribute) else None
        held = [value for _, value in values] if may_refer(dotted, is_method=receiver is not None) else []
        if receiver is not None and isinstance(node.func, ast.Attribute):
            value = self._value(receiver)
            steps |= self._look_at(value, self._inside, code(receiver, 30))
            author = steps if self._inside is None else author
            if state or changes_object(node.func.attr, discarded=self._discarded is node):
                self._change(value, author, self._inside, only_itself=state or node.func.attr in COLLECTS)
                for thing in value.objects:
                    for _, one in values:
                        self._hold(thing, one.objects)
            held.append(value)
        elif not isinstance(node.func, ast.Name | ast.Attribute):
            steps |= self._reading(node.func)
            author = steps if self._inside is None else author
        elif dotted and self._objects_of(dotted):
            value = Value(self._objects_of(dotted))
            steps |= self._look_at(value, self._inside, dotted)
            author = steps if self._inside is None else author
        changes = may_change(dotted) if receiver is None else node.func.attr in CHANGES_ARGUMENTS  # type: ignore[attr-defined]
        if changes:
            for _, value in values:
                self._change(value, author, self._inside)
        objects = frozenset().union(*(value.objects for value in held))
        made = self._new(author, objects)
        if dotted in PLAIN or dotted.rpartition(".")[2] in PLAIN_METHODS or QUICK.match(dotted):
            for thing in made:
                self._held.pop(thing, None)
            self._plain |= made
            return Value(made, author)
        return Value(made if dotted.rpartition(".")[2][:1].isupper() else made | objects, author)

    def _arguments(self, node: ast.Call) -> list[tuple[str, Value]]:
        given = [*node.args, *(word.value for word in node.keywords)]
        return [(code(value, 30), self._value(value)) for value in given]

    def _enter(self, node: ast.Call, found: Found) -> Value:
        """Walk through a function as if its body stood here. On the other side of a condition it is the same walk."""
        if id(found.function) in self._walked:
            for given in [*node.args, *(word.value for word in node.keywords)]:
                self._value(given)
            return self._walked[id(found.function)]
        self._walked[id(found.function)] = NOTHING
        names = bound_texts(node, found, self._scope)
        arguments = {name: self._value(value) for name, value in bound_arguments(node, found).items()}
        kept = self._scope, self._module, self._makers, self._owner, self._returned, self._depth
        self._scope = self._scope.inside(found.module, names)
        self._scope.learn(found.function.body)
        self._module, self._owner, self._returned, self._depth = found.module, found.name.rpartition(".")[0], [], 0
        self._makers = makers_of(found.function.body, found.module)
        self._state.names.append({})
        for name, value in arguments.items():
            self._store(ast.Name(name, ast.Store()), value)
        self.body = found.function.body
        self._block(found.function.body)
        self._state.names.pop()
        value = together(self._returned)
        self._scope, self._module, self._makers, self._owner, self._returned, self._depth = kept
        self._walked[id(found.function)] = value
        return value

    # --- what is a step -----------------------------------------------------------------------------------------------

    def _is_task(self, call: ast.Call) -> bool:
        found = self._target(call)
        if found is not None:
            return id(found.function) not in self._entered and not self._is_quick(found)
        dotted = resolved(call.func, self._module)
        if dotted is None:
            return False
        if any(self._names_task(made) for made in handed_over(call, dotted)):
            return True
        first, _, rest = dotted.partition(".")
        last = dotted.rpartition(".")[2]
        if self._objects_of(first) or hasattr(builtins, first) or last[:1].isupper():
            return False
        if QUICK.match(last) or BUILDERS.match(last):
            return False
        if self._is_library(dotted):
            return dotted.lstrip(".").split(".")[0] not in KNOWN
        return not rest and first not in self._module.classes

    def _names_task(self, call: ast.Call) -> bool:
        found = self._target(call)
        return found is not None and not self._is_quick(found)

    def _is_quick(self, found: Found) -> bool:
        name = found.name.rpartition(".")[2]
        if QUICK.match(name):
            return True
        works = self._surveyor.function(found, {}, self._scope).works
        if name == "__init__" or BUILDERS.match(name):
            return not works
        loops = any(isinstance(node, ast.For | ast.While) for node in ast.walk(found.function))
        return found.is_method and not works and not loops

    def _has_task(self, node: ast.stmt) -> bool:
        """Whether there is a step in it that is a call; not looking into loops over batches."""
        if self._is_over_batches(node):
            return False
        if any(self._is_task(call) or self._is_entered(call) for call in calls_of(node)):
            return True
        return any(self._has_task(inner) for inner in below(node))

    def _is_entered(self, call: ast.Call) -> bool:
        dotted = resolved(call.func, self._module) or ""
        targets = (self._target(one) for one in [call, *handed_over(call, dotted)])
        return any(found is not None and id(found.function) in self._entered for found in targets)

    def _divides(self, node: ast.stmt) -> bool:
        """Whether a statement is walked into, instead of being one step or glue as a whole."""
        if self._has_task(node):
            return True
        if self._is_over_batches(node):
            return False
        working = [inner for inner in below(node) if self._look(inner).works]
        if len(working) == 1 and isinstance(node, ast.If | ast.Try | ast.TryStar | ast.With):
            return self._divides(working[0])
        return len(working) > 1 and any(below(inner) for inner in working)

    def _is_over_batches(self, node: ast.stmt) -> bool:
        if not isinstance(node, ast.For | ast.AsyncFor):
            return False
        source = unwrapped(node.iter, self._module)
        made = self._makers.get(dotted_name(source) or "", "")
        return made.endswith("DataLoader") or bool(BATCHES.search(ast.unparse(source)))

    def _step(self, node: ast.stmt | ast.expr, found: Found | None, seen: Seen) -> Step:
        """A new one; in the second round of a loop the same as in the first."""
        key = (id(node), id(found.function) if found else 0)
        if key not in self._numbers:
            assert self._top is not None
            name = name_of(node, found, seen)
            step = Step(len(self.steps), node, self._module, self._top, found, name, self._loops, self._whens, seen)
            for context in self._contexts:
                seen.add(context)
            self._numbers[key] = step
            self.steps.append(step)
        step = self._numbers[key]
        for earlier, why in self._control.items():
            self._need(earlier, step, f"decides: {why}")
        return step

    def _look(self, node: ast.AST) -> Seen:
        return self._surveyor.look([node], self._scope, self._owner)

    def _target(self, call: ast.Call) -> Found | None:
        return self._surveyor.target(call, self._module, self._owner, self._makers)

    def _is_library(self, dotted: str) -> bool:
        return any(dotted == origin or dotted.startswith(f"{origin}.") for origin in self._module.imports.values())

    def _free(self, found: Found, read: Iterable[str]) -> set[str]:
        """Names of the places around a function that it uses."""
        own = set(parameters(found.function))
        used = {
            node.id
            for node in ast.walk(found.function)
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)
        }
        around = used - own if found.name in self._module.functions and "." not in found.name else set()
        inner = {name for name in around if len(self._state.names) > 1 and name in self._state.names[-1]}
        nested = any(found.function in function.body for function in self._module.functions.values())
        return set(read) | (inner if nested else set())

    # --- objects ------------------------------------------------------------------------------------------------------

    def _objects_of(self, name: str) -> frozenset[int]:
        for names in (self._state.names[-1], *self._state.names[-2::-1]):
            if name in names:
                return names[name]
        return frozenset()

    def _elsewhere(self, node: ast.Name | ast.Attribute) -> frozenset[int]:
        """What a name of another file of the project refers to."""
        dotted = resolved(node, self._module)
        if dotted is None or not self._is_library(dotted):
            return frozenset()
        there, rest = self._project.leads_to(self._module, dotted)
        name = rest.partition(".")[0]
        if there is None or there is self._module or name not in there.variables:
            return frozenset()
        key = seen_from(self._module, there, name)
        if key not in self._state.names[0]:
            self._state.names[0][key] = self._new(NOBODY, frozenset())
        return self._state.names[0][key]

    def _bind(self, name: str, objects: frozenset[int]) -> None:
        self._state.names[-1][name] = objects

    def _new(self, authors: frozenset[int], holds: frozenset[int]) -> frozenset[int]:
        self._objects += 1
        self._state.writers[self._objects] = authors
        if self._inside is not None:
            self._own.add(self._objects)
        self._hold(self._objects, holds)
        return frozenset({self._objects})

    def _hold(self, thing: int, others: Iterable[int]) -> None:
        self._held.setdefault(thing, set()).update(
            other for other in others if other not in self._plain and other != thing
        )

    def _reach(self, objects: Iterable[int]) -> set[int]:
        found, waiting = set(objects), list(objects)
        while waiting:
            for held in self._held.get(waiting.pop(), ()):
                if held not in found:
                    found.add(held)
                    waiting.append(held)
        return found

    def _read(self, value: Value) -> frozenset[int]:
        """The steps whose work is in a value; inside of a step, that step needs them."""
        return self._look_at(value, self._inside, "")

    def _look_at(self, value: Value, step: Step | None, name: str) -> frozenset[int]:
        authors = set(value.steps)
        itself = {step.number} if step is not None else set()
        needed = value.steps - itself
        for thing in self._reach(value.objects):
            writers = self._state.writers.get(thing, NOBODY)
            authors |= writers
            needed |= writers - itself if thing in self._own else writers
            if step is not None:
                self._state.readers[thing] = self._state.readers.get(thing, NOBODY) | itself
        if step is not None:
            for author in needed:
                self._need(author, step, f"value {name}" if name else "value")
        return frozenset(authors)

    def _change(
        self, value: Value, authors: frozenset[int], step: Step | None = None, *, only_itself: bool = False
    ) -> None:
        """An object and all it holds get new authors; a collection that only gets one more does not touch the others."""
        step = step or self._inside
        for thing in (value.objects if only_itself else self._reach(value.objects)) - self._plain:
            if step is None:
                self._state.writers[thing] = self._state.writers.get(thing, NOBODY) | authors
                continue
            itself = frozenset({step.number})
            writers = self._state.writers.get(thing, NOBODY)
            for other in (self._state.readers.get(thing, NOBODY) - itself) | (
                writers - itself if thing in self._own else writers
            ):
                self._need(other, step, "before it changes")
            if step is self._inside:
                self._own.add(thing)
            self._state.writers[thing] = itself
            self._state.readers[thing] = NOBODY

    def _need(self, earlier: int, step: Step, why: str) -> None:
        pair = (earlier, step.number)
        for loop, second in reversed(self._rounds_of):
            if second and loop in self._common(earlier, step):
                if pair not in self.edges:
                    loop.carried.add(why)
                return
        if earlier < step.number:
            self.edges.setdefault(pair, set()).add(why)

    def _common(self, earlier: int, step: Step) -> Iterator[Loop]:
        both = set(map(id, self.steps[earlier].loops))
        return (loop for loop in step.loops if id(loop) in both)

    @contextmanager
    def _under(self, steps: Iterable[int], why: str) -> Iterator[None]:
        """What is inside runs only if something made by these steps says so."""
        kept = dict(self._control)
        self._control |= {step: why for step in steps if step not in self._control}
        yield
        self._control = kept

    @contextmanager
    def _on_side(self, when: When) -> Iterator[None]:
        self._whens = (*self._whens, when)
        yield
        self._whens = self._whens[:-1]

    def _count(self, source: ast.expr) -> int | None:
        """How many rounds, where that is written down."""
        source = unwrapped(source, self._module)
        match source:
            case ast.List() | ast.Tuple() | ast.Set():
                return len(source.elts)
            case ast.Dict():
                return len(source.keys)
            case ast.Name(id=name):
                return literal_length(name, self._module)
            case ast.Call(func=ast.Name(id="range" | "trange"), args=args) if args:
                numbers = [number_of(arg, self._scope) for arg in args]
                whole = [number for number in numbers if number is not None]
                if len(whole) == len(args) and not (len(whole) > 2 and whole[2] == 0):
                    return len(range(*whole))
        return None

    # --- files --------------------------------------------------------------------------------------------------------

    def _files(self) -> None:
        """Steps that use the same files keep the order of the code."""
        using = [step for step in self.steps if step.seen.touches_files]
        unseen = [step for step in self.steps if "runs text" in step.seen.effects]
        pairs = {(one.number, other.number) for one in using for other in using if one.number < other.number}
        pairs |= {tuple(sorted((one.number, two.number))) for one in unseen for two in self.steps if one is not two}  # type: ignore[misc]
        for pair in sorted(pairs):
            earlier, later = self.steps[pair[0]], self.steps[pair[1]]
            if exclusive(earlier, later):
                continue
            whys = {*shared_files(earlier.seen, later.seen), *unseen_effects(earlier.seen, later.seen)}
            if whys:
                self.edges.setdefault(pair, set()).update(whys)
        for step in self.steps:
            for loop in step.loops:
                loop.carried |= {f"file {unmarked(path)}" for path in step.seen.writes if loop.mark not in path}
                if "waits" in step.seen.effects:
                    loop.carried.add("programs that it starts")
            for later in self.steps[step.number :] if step.loops and step.seen.reads else ():
                for loop in self._common(later.number, step):
                    theirs = Seen(writes={path for path in later.seen.writes if loop.mark not in path})
                    loop.carried |= set(shared_files(theirs, step.seen, only_results=True))
