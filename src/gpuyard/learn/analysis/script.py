"""The tasks of one Python file.

Where all the work is done by one function (`main()`), that function is walked into instead, and so on until there is more than
one step. A file that does nothing when it is run is a library: its functions are the tasks, and whoever calls one needs it.
"""

import ast
from collections.abc import Iterable, Sequence
from pathlib import Path

from gpuyard.learn.analysis.changes import Changing
from gpuyard.learn.analysis.flow import Flow
from gpuyard.learn.analysis.graph import Graph, Need, Task, graph_of
from gpuyard.learn.analysis.shapes import is_main_guard
from gpuyard.learn.analysis.sources import Found, Function, Module, Project, code
from gpuyard.learn.analysis.steps import Step, exclusive
from gpuyard.learn.analysis.survey import Seen, Surveyor
from gpuyard.learn.analysis.texts import Scope, options_of, unmarked

MOST_WORKERS = 64
"""GPUs a script is believed to want when it says how many processes it starts."""


class Script:
    """One Python file as a program, called with some words."""

    def __init__(self, project: Project, module: Module, words: Sequence[str] = ()) -> None:
        self.module = module
        self._project = project
        self.scope = Scope(module, options=options_of(module, words), words=words)
        self._surveyor = Surveyor(project)
        self._changing = Changing(project, self._surveyor)
        self.flow = self._walk()

    @property
    def is_library(self) -> bool:
        """Whether it does nothing when it is run."""
        return not self.flow.steps and not any(_acts(node) for node in self.module.tree.body)

    @property
    def has_guard(self) -> bool:
        """Whether it asks if it is the one that is run."""
        return any(isinstance(node, ast.If) and is_main_guard(node) for node in self.module.tree.body)

    def whole(self) -> Seen:
        """All that it does, as one."""
        seen = self._surveyor.look(self.module.tree.body, self.scope)
        for step in self.flow.steps:
            seen.add(step.seen)
        return seen

    def _walk(self) -> Flow:
        entered: list[int] = []
        flow = self._walked(entered)
        while flow.steps and all(step.found is not None and not step.loops for step in flow.steps):
            only = {id(step.found.function) for step in flow.steps if step.found is not None}
            pairs = [(one, other) for one in flow.steps for other in flow.steps[: one.number]]
            if len(only) > 1 or not all(exclusive(one, other) for one, other in pairs):
                break
            entered += only
            deeper = self._walked(entered)
            if not deeper.steps:
                break
            flow = deeper
        return flow

    def _walked(self, entered: Sequence[int]) -> Flow:
        flow = Flow(self._project, self._surveyor, self._changing, self.scope, entered)
        flow.walk()
        return flow

    def tasks(self) -> list[Task]:
        """Its steps; where there are none, all of it or its functions."""
        if self.flow.steps:
            return self._of_steps()
        return self._of_functions() if self.is_library else [self._as_one()]

    def _of_steps(self) -> list[Task]:
        names = self.names()
        needs: dict[int, list[Need]] = {}
        for (earlier, later), whys in sorted(self.flow.edges.items()):
            needs.setdefault(later, []).append(Need(names[earlier], _spoken(whys)))
        return [self._of_step(step, names[step.number], needs.get(step.number, [])) for step in self.flow.steps]

    def names(self) -> list[str]:
        """Of its steps, as tasks."""
        return unique(step.name for step in self.flow.steps)

    def _of_step(self, step: Step, name: str, needs: list[Need]) -> Task:
        rounds = 1
        for loop in step.loops:
            rounds *= loop.rounds or 1
        return task_of(
            name,
            step.seen,
            does=code(step.node),
            file=step.module.shown,
            line=step.node.lineno,
            end_line=step.node.end_lineno or step.node.lineno,
            needs=needs,
            repeats="; ".join(loop.text for loop in step.loops) or None,
            rounds=rounds if step.loops and all(loop.rounds is not None for loop in step.loops) else None,
            independent=bool(step.loops) and not any(loop.carried for loop in step.loops),
            when=" and ".join(when.text.removeprefix("if ") for when in step.whens) or None,
        )

    def _as_one(self) -> Task:
        acting = [node for node in self.module.tree.body if _acts(node)]
        last = acting[-1].end_lineno or acting[-1].lineno
        return task_of(
            Path(self.module.shown).stem, self.whole(), does=code(acting[0]), file=self.module.shown,
            line=acting[0].lineno, end_line=last,
        )  # fmt: skip

    def _of_functions(self) -> list[Task]:
        """Functions that call each other in a circle are one task."""
        functions = {
            name: node for name, node in self.module.functions.items() if _is_outermost(name, node, self.module)
        }
        calls = {name: self._called(name, node, set(functions)) for name, node in functions.items()}
        circle_of = circles(calls)
        members: dict[str, list[str]] = {}
        for name in functions:
            members.setdefault(circle_of[name], []).append(name)
        ids = {head: " and ".join(names) for head, names in members.items()}
        made = []
        for head, names in members.items():
            seen = Seen()
            for name in names:
                seen.add(self._surveyor.function(Found(self.module, functions[name], name), {}, self.scope))
            needed = sorted({circle_of[called] for name in names for called in calls[name]} - {head})
            first = functions[head]
            needs = [Need(ids[other], f"calls {other}") for other in needed]
            made.append(task_of(
                ids[head], seen, does=code(first), file=self.module.shown, line=first.lineno,
                end_line=first.end_lineno or first.lineno, needs=needs,
            ))  # fmt: skip
        return made

    def _called(self, name: str, function: Function, known: set[str]) -> set[str]:
        owner = name.rpartition(".")[0]
        calls = (node for node in ast.walk(function) if isinstance(node, ast.Call))
        targets = (self._surveyor.target(call, self.module, owner, {}) for call in calls)
        return {found.name for found in targets if found is not None and found.module is self.module} & known


def task_of(
    name: str, seen: Seen, *, does: str, file: str, line: int, end_line: int, needs: Iterable[Need] = (),
    repeats: str | None = None, rounds: int | None = None, independent: bool = False, when: str | None = None,
) -> Task:  # fmt: skip
    """A task as what was seen makes it."""
    return Task(
        id=name,
        does=does,
        file=file,
        line=line,
        end_line=end_line,
        kind=seen.kind(),
        bound=seen.bound(),
        needs=tuple(needs),
        repeats=repeats,
        rounds=rounds,
        independent=independent,
        when=when,
        reads=tuple(sorted(set(map(unmarked, seen.reads)))),
        writes=tuple(sorted(set(map(unmarked, seen.writes)))),
        gpus=gpus_of(seen),
        evidence=seen.evidence(),
    )


def gpus_of(seen: Seen) -> int:
    """How many GPUs it would use."""
    if not seen.uses_gpu or seen.kind() == "data":
        return 0
    return min(MOST_WORKERS, seen.processes)


def unique(names: Iterable[str]) -> list[str]:
    """The same names, with a number where one comes again."""
    seen: dict[str, int] = {}
    made = []
    for name in names:
        seen[name] = seen.get(name, 0) + 1
        made.append(name if seen[name] == 1 else f"{name}-{seen[name]}")
    return made


def script_graph(script: Script) -> Graph:
    """Of one file."""
    module, notes = script.module, []
    hidden = sorted(call.lineno for call in ast.walk(module.tree) if isinstance(call, ast.Call) and _runs_text(call))
    if hidden:
        lines = " and ".join(map(str, hidden[:5]))
        notes.append(f"{module.shown}:{lines}: text is run as code there; what that does is not seen.")
    if script.is_library:
        notes.append(f"{module.shown} does nothing when it is run: its functions are shown, and whom they call.")
    return graph_of(module.shown, "library" if script.is_library else "script", script.tasks(), notes)


def _spoken(whys: set[str]) -> str:
    """In one line; that something is used says already that it must not change before."""
    return "; ".join(sorted(whys - {"before it changes"} or whys))


def _runs_text(call: ast.Call) -> bool:
    return isinstance(call.func, ast.Name) and call.func.id in {"exec", "eval"}


def _acts(node: ast.stmt) -> bool:
    """Whether a statement of a file does anything but give names to things."""
    match node:
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef() | ast.Import() | ast.ImportFrom() | ast.Pass():
            return False
        case ast.Expr(value=ast.Constant()):
            return False
        case ast.Assign() | ast.AnnAssign():
            return any(isinstance(part, ast.Call) for part in ast.walk(node))
        case ast.If(test=ast.Name(id="TYPE_CHECKING") | ast.Attribute(attr="TYPE_CHECKING")):
            return False
    return True


def _is_outermost(name: str, function: Function, module: Module) -> bool:
    """Not one that stands inside of another function."""
    if "." in name:
        return True
    return any(node is function for node in module.tree.body) or not any(
        function in other.body for other in module.functions.values()
    )


def circles(calls: dict[str, set[str]]) -> dict[str, str]:
    """For each function the first of those it calls and is called by, through others or not: itself, mostly (Tarjan)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    trail: list[str] = []
    found: dict[str, str] = {}
    for start, first in calls.items():
        if start in index:
            continue
        work = [(start, iter(sorted(first)))]
        index[start] = low[start] = len(index)
        trail.append(start)
        while work:
            name, following = work[-1]
            for called in following:
                if called not in index:
                    index[called] = low[called] = len(index)
                    trail.append(called)
                    work.append((called, iter(sorted(calls[called]))))
                    break
                if called not in found:
                    low[name] = min(low[name], index[called])
            else:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[name])
                if low[name] == index[name]:
                    together: list[str] = []
                    while not together or together[-1] != name:
                        together.append(trail.pop())
                    head = min(together, key=list(calls).index)
                    found |= dict.fromkeys(together, head)
    return found
