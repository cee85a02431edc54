"""What a script does, step by step, and which step needs what of which other.

The script is walked as a reader would walk it: from its first line, into `main()`, through loops and conditions. What is seen
on the way is one of three things:

- a *step*: a call of a function of the project (or of one nobody knows), a loop that works, a statement that does so by itself;
- *glue*: everything that is quick (constants, options, building a model). It is no task, but what it makes carries on what
  it was made from;
- a compound statement that is only the frame around steps. It is walked into; a loop over batches never is.

`judging` tells which. Values are followed as *objects*: a name refers to objects; an object may hold others (an optimizer the
model). `following` knows who made and changed them, and so which step needs which.

Branches are walked apart and joined. The body of a loop is walked twice: what the second round needs of the first goes from round to
round.

What is believed of functions nobody can look into is in `changes`. What goes through names made at run time or libraries
that keep a state is not seen; text that is run as code may do anything.
"""

import ast
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple, TypeVar

from gpuyard.learn.analysis.changes import (
    Changes,
    Changing,
    base_name,
    may_change,
    may_refer,
    seen_from,
    stateful_names,
)
from gpuyard.learn.analysis.following import Following
from gpuyard.learn.analysis.judging import Judge, Place
from gpuyard.learn.analysis.objects import NOBODY, NOTHING, State, Value, together
from gpuyard.learn.analysis.shapes import (
    base,
    has_star,
    is_main_guard,
    leaves,
    name_of,
    written_rounds,
)
from gpuyard.learn.analysis.signs import CHANGES_ARGUMENTS, COLLECTS, changes_object
from gpuyard.learn.analysis.sources import Found, Project, code, resolved, statements
from gpuyard.learn.analysis.steps import (
    PLAIN,
    PLAIN_METHODS,
    QUICK,
    Loop,
    Step,
    When,
)
from gpuyard.learn.analysis.survey import (
    Seen,
    Surveyor,
    bound_arguments,
    bound_texts,
    handed_over,
    leaving,
    makers_of,
    parameters,
)
from gpuyard.learn.analysis.texts import Scope

T = TypeVar("T")


class _Given(NamedTuple):
    """What a function of the project is handed in."""

    by_name: dict[str, Value]
    spoken: dict[str, str]
    """How each is written where it is called."""
    others: list[Value]
    """What no parameter is known for."""


class Flow:
    """One walk through a script."""

    def __init__(
        self, project: Project, surveyor: Surveyor, changing: Changing, scope: Scope, entered: Sequence[int] = ()
    ) -> None:
        self._project, self._surveyor, self._changing = project, surveyor, changing
        self._following = Following()
        self.steps, self.edges = self._following.steps, self._following.edges
        self.glue: list[tuple[ast.stmt, frozenset[int]]] = []
        """Statements that are no steps, with the steps whose work they use."""
        self.body: list[ast.stmt] = []
        """What was walked last: of the file, or of the function that does the work."""
        self._place = Place(scope, makers_of(scope.module.tree.body, scope.module))
        self._entered = set(entered)
        """Functions whose calls are walked into instead of being steps."""
        self._judge = Judge(surveyor, self._entered, lambda name: bool(self._following.objects_of(name)))
        self._walked: dict[int, Value] = {}
        self._numbers: dict[tuple[int, int], Step] = {}
        self._loops: tuple[Loop, ...] = ()
        self._whens: tuple[When, ...] = ()
        self._known_loops: dict[int, Loop] = {}
        self._contexts: list[Seen] = []
        self._rests: dict[ast.Call, ast.Call] = {}
        """For what begins a `with`: the same call as its end."""
        self._top: ast.stmt | None = None
        self._discarded: ast.expr | None = None
        """The call whose result nobody uses."""
        self._depth = 0
        self._returned: list[Value] = []
        self._conditions = 0

    def walk(self) -> None:
        """The whole script."""
        for name in stateful_names(self._place.module):
            self._following.bind(name, self._following.new(NOBODY, frozenset()))
        self.body = [
            inner
            for node in self._place.module.tree.body
            for inner in (node.body if isinstance(node, ast.If) and is_main_guard(node) else [node])
        ]
        self._block(self._place.module.tree.body)
        self._following.files()

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
        if self._following.inside is None and not self._judge.divides(node, self._place):
            seen = self._judge.look(node, self._place)
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
        self._following.inside, self._following.own = step, set()
        self._inner(node)
        self._following.inside, self._following.own = None, set()

    def _compound(self, node: ast.stmt) -> bool:
        match node:
            case ast.If():
                self._if(node)
            case ast.For() | ast.AsyncFor():
                self._for(node)
            case ast.While():
                with self._following.under(self._reading(node.test), code(node)):
                    self._rounds(node, [*node.body, *node.orelse], self._loop(node, code(node), None))
            case ast.With() | ast.AsyncWith():
                for item in node.items:
                    value = self._value(item.context_expr)
                    if item.optional_vars is not None:
                        self._store(item.optional_vars, value)
                self._contexts.append(
                    self._surveyor.look([item.context_expr for item in node.items], self._place.scope)
                )
                self._each(node.body)
                self._contexts.pop()
                for call in leaving(node, self._place.module, self._place.makers):
                    self._value(call)
                for item in node.items:
                    self._finish(item)
            case ast.Try() | ast.TryStar():
                before = self._following.state.copy()
                self._each([*node.body, *node.orelse])
                before.join(self._following.state)  # it may have come as far as it goes before something went wrong
                for handler in node.handlers:
                    self._side(before, handler.body)
                self._each(node.finalbody)
            case ast.Match():
                self._conditions += 1
                with self._following.under(self._reading(node.subject), code(node)):
                    before, number = self._following.state.copy(), self._conditions
                    for side, case in enumerate(node.cases):
                        with self._on_side(When(number, side, f"case {ast.unparse(case.pattern)}")):
                            self._side(before, case.body)
            case _:
                return False
        return True

    def _finish(self, item: ast.withitem) -> None:
        """The rest of a function that a `with` began: what stands behind its yield is a step of its own if it works."""
        begun = item.context_expr
        found = self._judge.target(begun, self._place) if isinstance(begun, ast.Call) else None
        if not isinstance(begun, ast.Call) or found is None or not self._judge.works_after_yield(found, self._place):
            return
        if begun not in self._rests:
            named = [item.optional_vars] if isinstance(item.optional_vars, ast.Name) else []
            self._rests[begun] = ast.copy_location(ast.Call(begun.func, [*begun.args, *named], begun.keywords), begun)
        self._value(self._rests[begun])

    def _each(self, body: Iterable[ast.stmt]) -> None:
        for node in body:
            self._statement(node)

    def _side(self, before: State, body: list[ast.stmt]) -> None:
        """One of several ways, taken from `before`; then either may have been."""
        other = self._following.state
        self._following.state = before.copy()
        self._each(body)
        if not (body and leaves(body[-1])):
            other.join(self._following.state)
        self._following.state = other

    def _if(self, node: ast.If) -> None:
        condition = self._reading(node.test)
        self._conditions += 1
        number, text_ = self._conditions, code(node)
        before = self._following.state.copy()
        control = dict(self._following.control)
        with self._following.under(condition, text_):
            with self._on_side(When(number, 0, text_)):
                self._each(node.body)
            left = self._following.state
            self._following.state = before
            with self._on_side(When(number, 1, f"not {text_.removeprefix('if ')}")):
                self._each(node.orelse)
        first_leaves = bool(node.body) and leaves(node.body[-1])
        second_leaves = bool(node.orelse) and leaves(node.orelse[-1])
        if first_leaves and not second_leaves:
            pass
        elif second_leaves and not first_leaves:
            self._following.state = left
        else:
            left.join(self._following.state)
            self._following.state = left
        self._following.control = control
        if any(leaves(inner) for inner in statements([*node.body, *node.orelse])):
            self._following.control |= dict.fromkeys(condition, text_)  # what follows runs only if this did not leave

    def _for(self, node: ast.For | ast.AsyncFor) -> None:
        source = self._value(node.iter)
        made_of = self._following.read(source)

        loop = self._loop(node, code(node), written_rounds(node.iter, self._place.scope))

        def begins() -> None:
            self._store(node.target, Value(source.objects, made_of))
            self._mark(node.target, loop)
            if source.objects and source.objects <= self._following.plain and isinstance(node.target, ast.Name):
                self._following.plain |= self._following.objects_of(node.target.id)

        with self._following.under(made_of, code(node)):
            self._rounds(node, node.body, loop, begins)
        self._unmark(node.target)
        self._each(node.orelse)

    def _rounds(
        self, node: ast.stmt, body: list[ast.stmt], loop: Loop, begins: Callable[[], None] = lambda: None
    ) -> None:
        def walk() -> None:
            begins()
            if isinstance(node, ast.While):
                self._following.control |= dict.fromkeys(self._reading(node.test), code(node))
            self._each(body)

        before = self._following.state.copy()
        self._twice(loop, walk)
        self._following.state.join(before)

    def _loop(self, node: ast.AST, text_: str, rounds: int | None) -> Loop:
        """The same in every round of the loops around it."""
        if id(node) not in self._known_loops:
            self._known_loops[id(node)] = Loop(text_, rounds, chr(0xE000 + len(self._known_loops) % 6000))
        return self._known_loops[id(node)]

    def _mark(self, target: ast.expr, loop: Loop) -> None:
        self._place.scope.names |= {name.id: loop.mark for name in ast.walk(target) if isinstance(name, ast.Name)}

    def _unmark(self, target: ast.expr) -> None:
        for name in ast.walk(target):
            if isinstance(name, ast.Name):
                self._place.scope.names.pop(name.id, None)

    def _twice(self, loop: Loop, walk: Callable[[], T]) -> T:
        """What the second round needs of the first goes from round to round."""
        before = self._following.state.copy()
        self._loops = (*self._loops, loop)
        self._following.rounds_of.append((loop, False))
        walk()
        self._following.rounds_of[-1] = (loop, True)
        self._following.state.join(before)
        last = walk()
        self._following.rounds_of.pop()
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
                used = self._following.read(old) | self._reading(node.value)
                self._following.change(old, used)
                if isinstance(node.target, ast.Name):
                    self._following.bind(node.target.id, old.objects | self._following.new(used, old.objects))
            case ast.Return():
                self._returned.append(self._value(node.value))
            case ast.Expr():
                self._discarded = node.value.value if isinstance(node.value, ast.Await) else node.value
                used = self._value(node.value).steps
            case ast.Delete():
                for gone in node.targets:
                    if not isinstance(gone, ast.Name):
                        self._following.change(self._value(base(gone)), NOBODY)
            case ast.Assert() | ast.Raise():
                for part in ast.iter_child_nodes(node):
                    if isinstance(part, ast.expr):
                        used |= self._reading(part)
        if self._following.inside is None and not any(second for _, second in self._following.rounds_of):
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
            self._following.plain |= self._following.objects_of(target.id)

    def _store(self, target: ast.expr, value: Value) -> None:
        match target:
            case ast.Name():
                objects = value.objects
                if self._following.inside is not None:
                    objects |= self._following.new(frozenset({self._following.inside.number}), objects)
                elif value.steps or not objects:
                    objects |= self._following.new(value.steps, objects)
                self._following.bind(target.id, objects)
            case ast.Tuple() | ast.List():
                for one in target.elts:
                    self._store(one, value)
            case ast.Starred():
                self._store(target.value, value)
            case _:
                steps = self._following.read(value)
                owner = self._value(base(target))
                self._following.change(owner, steps, only_itself=isinstance(getattr(target, "value", None), ast.Name))
                for thing in owner.objects:
                    self._following.hold(thing, value.objects)

    # --- expressions --------------------------------------------------------------------------------------------------

    def _value(self, node: ast.expr | None) -> Value:
        match node:
            case None | ast.Constant():
                return NOTHING
            case ast.Name():
                return Value(self._following.objects_of(node.id) or self._elsewhere(node))
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
        return self._following.read(self._value(node))

    def _lambda(self, node: ast.Lambda) -> Value:
        names = {name.id for name in ast.walk(node.body) if isinstance(name, ast.Name)}
        names -= {arg.arg for arg in node.args.args}
        return Value(frozenset().union(*(self._following.objects_of(name) for name in names)))

    def _comprehension(self, node: ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp) -> Value:
        """A loop whose rounds put something into a collection."""
        self._following.state.names.append({})
        first = node.generators[0]
        rounds = written_rounds(first.iter, self._place.scope) if len(node.generators) == 1 and not first.ifs else None
        loop = self._loop(node, f"for {ast.unparse(first.target)} in {code(first.iter, 40)}", rounds)
        for part in node.generators:
            source = self._value(part.iter)
            self._store(part.target, Value(source.objects, self._following.read(source)))
            self._mark(part.target, loop)
            for condition in part.ifs:
                self._reading(condition)
        parts = [node.key, node.value] if isinstance(node, ast.DictComp) else [node.elt]
        value = self._twice(loop, lambda: together(self._value(part) for part in parts))
        self._following.state.names.pop()
        for part in node.generators:
            self._unmark(part.target)
        return value

    # --- calls --------------------------------------------------------------------------------------------------------

    def _call(self, node: ast.Call) -> Value:
        dotted = resolved(node.func, self._place.module) or ""
        for made in handed_over(node, dotted):
            found = self._judge.target(made, self._place)
            if found is not None:
                return self._handed_call(node, made, found)
        found = self._judge.target(node, self._place)
        if found is not None:
            return self._project_call(node, found, [])
        if self._following.inside is None and self._judge.is_task(node, self._place):
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
                self._following.change(owner, result.steps, self._numbered(result))
                return result
        if not made.args and rest and not isinstance(node.func, ast.Name):
            loop = self._loop(node, f"for each of {code(rest[0], 40)}", written_rounds(rest[0], self._place.scope))
            each = ast.copy_location(ast.Call(made.func, [ast.Constant(loop.mark)], []), node)
            return self._twice(loop, lambda: self._project_call(each, found, values, whole=node))
        return self._project_call(made, found, values, whole=node)

    def _numbered(self, value: Value) -> Step | None:
        return self.steps[max(value.steps)] if len(value.steps) == 1 and self._following.inside is None else None

    def _project_call(self, node: ast.Call, found: Found, more: list[Value], whole: ast.Call | None = None) -> Value:
        """A function of the project is called: a step unless it is quick, or a part of the one we are in."""
        if id(found.function) in self._entered and self._following.inside is None:
            return self._enter(node, found)
        done = self._changing.of(found)
        given = self._handed_in(node, found, done)
        actor = self._step_of(node, found, whole) or self._following.inside
        steps = NOBODY
        for name, value in given.by_name.items():
            steps |= self._following.look_at(value, actor, given.spoken.get(name, name))
        for value in [*more, *given.others]:
            steps |= self._following.look_at(value, actor, "an argument")
        if actor is None:
            texts = bound_texts(node, found, self._place.scope)
            reads = self._surveyor.function(found, texts, self._place.scope).reads
            steps |= self._following.writers_of_files({*reads, *texts.values()}, self._whens)
        author = steps if actor is None else frozenset({actor.number})
        self._change_all(found, done, given.by_name, author, actor)
        is_maker = found.name.endswith("__init__")
        handed_back = [name for name in given.by_name if is_maker or name in done.given_back]
        objects = frozenset().union(*(given.by_name[name].objects for name in handed_back))
        made = self._following.new(author, objects)
        if QUICK.match(found.name) and actor is None:
            self._following.plain |= made
            return Value(made, author)
        return Value(made if is_maker else made | objects, author)  # what is given back may be what was given

    def _handed_in(self, node: ast.Call, found: Found, done: Changes) -> _Given:
        """Arguments, the object it is a method of, and what it reads of the names around it (these end in a space)."""
        given = bound_arguments(node, found)
        by_name = {name: self._value(value) for name, value in given.items()}
        spoken = {name: code(value, 30) for name, value in given.items()}
        known = set(map(id, given.values()))
        rest = [value for value in [*node.args, *(word.value for word in node.keywords)] if id(value) not in known]
        others = [self._value(value) for value in rest]
        own = parameters(found.function)
        if found.is_method and own and isinstance(node.func, ast.Attribute):
            by_name[own[0]] = self._value(node.func.value)
            spoken[own[0]] = code(node.func.value, 30)
        read = {seen_from(self._place.module, found.module, name) for name in done.globals_read}
        for name in self._free(found, read) if found.module is self._place.module else read:
            if name not in self._following.state.names[0] and ":" in name:
                self._following.state.names[0][name] = self._following.new(NOBODY, frozenset())
            by_name.setdefault(f"{name} ", Value(self._following.objects_of(name)))
            spoken[f"{name} "] = name.rpartition(":")[2]
        return _Given(by_name, spoken, others)

    def _step_of(self, node: ast.Call, found: Found, whole: ast.Call | None) -> Step | None:
        """The step that a call is; none where it is quick, or where we are inside of one."""
        if self._following.inside is not None or self._judge.is_quick(found, self._place):
            return None
        seen = Seen()
        seen.add(self._surveyor.function(found, bound_texts(node, found, self._place.scope), self._place.scope))
        if whole is not None:
            seen.add(self._judge.look(whole, self._place))
        return self._step(whole or node, found, seen)

    def _change_all(
        self, found: Found, done: Changes, by_name: dict[str, Value], author: frozenset[int], actor: Step | None
    ) -> None:
        """What a function does to what it was handed in, and to the names around it."""
        changed = {seen_from(self._place.module, found.module, name) for name in done.globals_changed}
        for name, value in by_name.items():
            if name in done.changed or name.strip() in changed:
                self._following.change(value, author, actor)
        for name in changed:
            before = self._following.state.names[0].get(name, frozenset())
            self._following.state.names[0][name] = before | self._following.new(author, before)
        named = {name.strip(): value for name, value in by_name.items()}
        for holder, held in done.holds:
            for thing in named[holder].objects if holder in named and held in named else ():
                self._following.hold(thing, named[held].objects)

    def _unknown_call(self, node: ast.Call, dotted: str) -> Value:
        """A function nobody can look into: a step that uses all it is given."""
        values = self._arguments(node)
        step = self._step(
            node, None, self._judge.look(ast.copy_location(ast.Call(node.func, [], []), node), self._place)
        )
        author = frozenset({step.number})
        for name, value in values:
            self._following.look_at(value, step, name)
        if may_change(dotted):
            for _, value in values:
                self._following.change(value, author, step)
        objects = frozenset().union(*(value.objects for _, value in values))
        return Value(objects | self._following.new(author, objects), author)

    def _library_call(self, node: ast.Call, dotted: str) -> Value:
        values = self._arguments(node)
        steps = NOBODY
        if self._following.inside is None and self.steps:
            reads = self._judge.look(node, self._place).reads
            steps |= self._following.writers_of_files(reads, self._whens)
        for name, value in values:
            steps |= self._following.look_at(value, self._following.inside, name)
        author = steps if self._following.inside is None else frozenset({self._following.inside.number})
        state = base_name(node.func) in stateful_names(self._place.module)
        is_method = isinstance(node.func, ast.Attribute) and (state or not self._judge.is_library(dotted, self._place))
        receiver = node.func.value if is_method and isinstance(node.func, ast.Attribute) else None
        held = [value for _, value in values] if may_refer(dotted, is_method=receiver is not None) else []
        if receiver is not None and isinstance(node.func, ast.Attribute):
            value = self._value(receiver)
            steps |= self._following.look_at(value, self._following.inside, code(receiver, 30))
            author = steps if self._following.inside is None else author
            if state or changes_object(node.func.attr, discarded=self._discarded is node):
                self._following.change(
                    value, author, self._following.inside, only_itself=state or node.func.attr in COLLECTS
                )
                for thing in value.objects:
                    for _, one in values:
                        self._following.hold(thing, one.objects)
            held.append(value)
        elif not isinstance(node.func, ast.Name | ast.Attribute):
            steps |= self._reading(node.func)
            author = steps if self._following.inside is None else author
        elif dotted and self._following.objects_of(dotted):
            value = Value(self._following.objects_of(dotted))
            steps |= self._following.look_at(value, self._following.inside, dotted)
            author = steps if self._following.inside is None else author
        changes = may_change(dotted) if receiver is None else node.func.attr in CHANGES_ARGUMENTS  # type: ignore[attr-defined]
        if changes:
            for _, value in values:
                self._following.change(value, author, self._following.inside)
        objects = frozenset().union(*(value.objects for value in held))
        made = self._following.new(author, objects)
        if dotted in PLAIN or dotted.rpartition(".")[2] in PLAIN_METHODS or QUICK.match(dotted):
            for thing in made:
                self._following.held.pop(thing, None)
            self._following.plain |= made
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
        names = bound_texts(node, found, self._place.scope)
        arguments = {name: self._value(value) for name, value in bound_arguments(node, found).items()}
        kept = self._place, self._returned, self._depth
        scope = self._place.scope.inside(found.module, names)
        scope.learn(found.function.body)
        makers = makers_of(found.function.body, found.module)
        self._place, self._returned, self._depth = Place(scope, makers, found.name.rpartition(".")[0]), [], 0
        self._following.state.names.append({})
        for name, value in arguments.items():
            self._store(ast.Name(name, ast.Store()), value)
        self.body = found.function.body
        self._block(found.function.body)
        self._following.state.names.pop()
        value = together(self._returned)
        self._place, self._returned, self._depth = kept
        self._walked[id(found.function)] = value
        return value

    # --- steps and names ----------------------------------------------------------------------------------------------

    def _step(self, node: ast.stmt | ast.expr, found: Found | None, seen: Seen) -> Step:
        """A new one; in the second round of a loop the same as in the first."""
        key = (id(node), id(found.function) if found else 0)
        if key not in self._numbers:
            assert self._top is not None
            name = name_of(node, found, seen)
            step = Step(
                len(self.steps), node, self._place.module, self._top, found, name, self._loops, self._whens, seen
            )
            for context in self._contexts:
                seen.add(context)
            self._numbers[key] = step
            self.steps.append(step)
        step = self._numbers[key]
        for earlier, why in self._following.control.items():
            self._following.need(earlier, step, f"decides: {why}")
        return step

    def _free(self, found: Found, read: Iterable[str]) -> set[str]:
        """Names of the places around a function that it uses."""
        own = set(parameters(found.function))
        used = {
            node.id
            for node in ast.walk(found.function)
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)
        }
        around = used - own if found.name in self._place.module.functions and "." not in found.name else set()
        inner = {
            name for name in around if len(self._following.state.names) > 1 and name in self._following.state.names[-1]
        }
        nested = any(found.function in function.body for function in self._place.module.functions.values())
        return set(read) | (inner if nested else set())

    def _elsewhere(self, node: ast.Name | ast.Attribute) -> frozenset[int]:
        """What a name of another file of the project refers to."""
        dotted = resolved(node, self._place.module)
        if dotted is None or not self._judge.is_library(dotted, self._place):
            return frozenset()
        there, rest = self._project.leads_to(self._place.module, dotted)
        name = rest.partition(".")[0]
        if there is None or there is self._place.module or name not in there.variables:
            return frozenset()
        key = seen_from(self._place.module, there, name)
        if key not in self._following.state.names[0]:
            self._following.state.names[0][key] = self._following.new(NOBODY, frozenset())
        return self._following.state.names[0][key]

    @contextmanager
    def _on_side(self, when: When) -> Iterator[None]:
        self._whens = (*self._whens, when)
        yield
        self._whens = self._whens[:-1]
