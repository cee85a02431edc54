"""What a piece of code does, gathered through all functions of the project that it calls: signs of its kind, files it uses.

Functions are looked into with the texts they are called with, so that a path given by the caller is known inside. What has
been looked into with the same texts once is remembered; a function that calls itself is not looked into again.
"""

import ast
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

from gpuyard.learn.analysis.graph import Bound, Evidence, Kind
from gpuyard.learn.analysis.signs import (
    CALLS,
    FILE_METHODS,
    METHODS,
    MPI_METHODS,
    STEPPERS,
    TRAINERS,
    FileUse,
    Sign,
    files_of,
    sign_of,
)
from gpuyard.learn.analysis.sources import Found, Function, Module, Project, code, dotted_name, resolved, statements
from gpuyard.learn.analysis.texts import Scope, is_known, text

T = TypeVar("T")
DEEPEST = 20
"""Calls within calls that are followed."""
LOOPS_COUNT = 3
"""Signs in more loops than these count no more."""
SURE = 8.0
"""The weight of a sign of training that nothing else outweighs: whoever computes gradients trains."""
RUNS_A_MODEL = 5.0
"""The weight of a sign of inference that no reading of files outweighs: whoever asks a model has to read what to ask."""
PRODUCT = Sign("hpc", "compute", 1.5, "a matrix product")
IN_SLICES = Sign("hpc", "memory", 1.5, "works through arrays")
MOST_EVIDENCE = 8
NUMBERS = Sign("hpc", "compute", 2, "loops over numbers")
IN_BATCHES = Sign(None, "compute", 2, "works through batches")
BATCHES = re.compile(r"(loader|dataloader|batches|batch_iter)(s|\b|_)", re.IGNORECASE)
"""What is looped over where a loop takes one batch after the other."""
NAMES_GPU = Sign(None, None, 0.5, "names a GPU", gpu=True)
KINDS: tuple[Kind, ...] = ("training", "inference", "hpc", "data")
BOUNDS: tuple[Bound, ...] = ("compute", "communication", "memory", "io")


class Clue(NamedTuple):
    """A sign, where it was seen, and in how many loops."""

    evidence: Evidence
    sign: Sign
    loops: int


@dataclass
class Seen:
    """What was gathered."""

    clues: dict[tuple[str, int, str], Clue] = field(default_factory=dict)
    reads: set[str] = field(default_factory=set)
    writes: set[str] = field(default_factory=set)
    runs: list[str] = field(default_factory=list)
    """Command lines that it starts."""
    effects: set[str] = field(default_factory=set)
    """What can not be seen: it "runs text" as code, it "starts programs" and perhaps "waits" for their end."""
    processes: int = 1
    """That it starts of itself, one for each GPU."""

    def add(self, other: "Seen", loops: int = 0) -> None:
        """All of another one, seen inside so many loops."""
        for key, clue in other.clues.items():
            self.note(key, Clue(clue.evidence, clue.sign, clue.loops + loops))
        self.reads |= other.reads
        self.writes |= other.writes
        self.runs += [line for line in other.runs if line not in self.runs]
        self.effects |= other.effects
        self.processes = max(self.processes, other.processes)

    def note(self, key: tuple[str, int, str], clue: Clue) -> None:
        """One clue, where it counts most."""
        known = self.clues.get(key)
        if known is None or known.loops < clue.loops:
            self.clues[key] = clue

    @property
    def uses_gpu(self) -> bool:
        """Whether anything in it would run on a GPU."""
        return any(clue.sign.gpu for clue in self.clues.values())

    @property
    def touches_files(self) -> bool:
        """Whether it reads or writes any, here or in programs that it starts."""
        told = any(clue.sign.bound == "io" and clue.sign.work for clue in self.clues.values())
        return bool(self.reads or self.writes or self.runs or self.effects) or told

    @property
    def works(self) -> bool:
        """Whether it is work, and no preparation only."""
        signs = (clue.sign for clue in self.clues.values())
        if self.runs or "starts programs" in self.effects:
            return True
        return any(sign.work and sign.kind is not None and sign.weight >= 2 for sign in signs)

    def kind(self) -> Kind:
        """The kind with most weight; gradients decide."""
        scores = _scores(self.clues.values(), KINDS, lambda clue: clue.sign.kind)
        if any(clue.sign.kind == "training" and clue.sign.weight >= SURE for clue in self.clues.values()):
            return "training"
        if any(clue.sign.kind == "inference" and clue.sign.weight >= RUNS_A_MODEL for clue in self.clues.values()):
            scores["data"] = 0.0
        best = max(KINDS, key=lambda kind: scores[kind])
        return best if scores[best] >= 1 else "other"

    def bound(self) -> Bound:
        """What it waits for most."""
        scores = _scores(self.clues.values(), BOUNDS, lambda clue: clue.sign.bound)
        best = max(BOUNDS, key=lambda bound: scores[bound])
        return best if scores[best] >= 1 else "unknown"

    def evidence(self) -> tuple[Evidence, ...]:
        """The strongest clues, in the order of the code."""
        telling = (clue for clue in self.clues.values() if clue.sign.weight > 0)
        strongest = sorted(telling, key=lambda clue: (-_weight(clue), clue.evidence))[:MOST_EVIDENCE]
        return tuple(sorted(clue.evidence for clue in strongest))


def _weight(clue: Clue) -> float:
    return clue.sign.weight * (1 + min(clue.loops, LOOPS_COUNT))


def _scores(clues: Iterable[Clue], of: tuple[T, ...], which: Callable[[Clue], T | None]) -> dict[T, float]:
    scores = dict.fromkeys(of, 0.0)
    for clue in clues:
        found = which(clue)
        if found is not None:
            scores[found] += _weight(clue)
    return scores


class Surveyor:
    """Looks into code of one project."""

    def __init__(self, project: Project) -> None:
        self._project = project
        self._known: dict[tuple[int, tuple[tuple[str, str], ...], tuple[tuple[str, str], ...]], Seen] = {}
        self._open: set[int] = set()

    def look(self, nodes: Iterable[ast.AST], scope: Scope, owner: str = "") -> Seen:
        """At some code, as it would run there. `owner` is the class it is in."""
        nodes = list(nodes)
        makers = makers_of(nodes, scope.module)
        visit = _Visit(self, scope, owner, makers)
        for node in nodes:
            visit.visit(node)
        return visit.seen

    def function(self, found: Found, names: dict[str, str], scope: Scope) -> Seen:
        """At a function that is called with these texts."""
        key = (id(found.function), tuple(sorted(names.items())), tuple(sorted(scope.options.items())))
        known = self._known.get(key)
        if known is not None:
            return known
        if id(found.function) in self._open or len(self._open) >= DEEPEST:
            return Seen()
        self._open.add(id(found.function))
        inner = scope.inside(found.module, dict(names))
        inner.learn(found.function.body)
        owner = found.name.rpartition(".")[0]
        seen = self.look([*found.function.decorator_list, *found.function.body], inner, owner)
        self._open.discard(id(found.function))
        self._known[key] = seen
        return seen

    def target(self, call: ast.Call, module: Module, owner: str, makers: dict[str, str]) -> Found | None:
        """The function of the project that a call calls, if it is one."""
        dotted = resolved(call.func, module)
        if dotted is None:
            return None
        first, _, rest = dotted.partition(".")
        if first in {"self", "cls"} and owner and rest and "." not in rest:
            return self._project.method((module, owner), rest)
        if first in makers and rest and "." not in rest:
            made = self._project.find_class(module, makers[first])
            return self._project.method(made, rest) if made else None
        return self._project.find(module, dotted)


class _Visit(ast.NodeVisitor):
    """One walk through some code."""

    def __init__(self, surveyor: Surveyor, scope: Scope, owner: str, makers: dict[str, str]) -> None:
        self.seen = Seen()
        self._surveyor, self._scope, self._owner, self._makers = surveyor, scope, owner, makers
        self._loops = 0

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        """Defined is not called."""

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> None:
        """Defined is not called."""

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        """Defined is not called."""

    def visit_For(self, node: ast.For | ast.AsyncFor | ast.While) -> None:
        if not isinstance(node, ast.While):
            self.visit(node.iter)
        else:
            self.visit(node.test)
        self._loops += 1
        if isinstance(node, ast.For) and BATCHES.search(ast.unparse(node.iter)):
            self._note(node, IN_BATCHES, code(node))
        if self._loops >= 2 and any(_stores_a_number(inner) for inner in statements(node.body)):
            self._note(node, NUMBERS, code(node))
        for inner in [*node.body, *node.orelse]:
            self.visit(inner)
        self._loops -= 1

    visit_AsyncFor = visit_While = visit_For  # noqa: N815

    def visit_ListComp(self, node: ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp) -> None:
        self._loops += 1
        self.generic_visit(node)
        self._loops -= 1

    visit_SetComp = visit_GeneratorExp = visit_DictComp = visit_ListComp  # noqa: N815

    def visit_With(self, node: ast.With | ast.AsyncWith) -> None:
        self.generic_visit(node)
        for call in leaving(node, self._scope.module, self._makers):
            if self._surveyor.target(call, self._scope.module, self._owner, self._makers) is not None:
                self.visit_Call(call)

    visit_AsyncWith = visit_With  # noqa: N815

    def visit_BinOp(self, node: ast.BinOp) -> None:
        if isinstance(node.op, ast.MatMult):
            self._note(node, PRODUCT, code(node))
        self.generic_visit(node)

    def visit_Assign(self, node: ast.Assign) -> None:
        match node:
            case ast.Assign(targets=[ast.Subscript(slice=place)], value=ast.BinOp()):
                if any(isinstance(part, ast.Slice) for part in ast.walk(place)):
                    self._note(node, IN_SLICES, code(node))
        self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        if isinstance(node.value, str) and (node.value == "cuda" or node.value.startswith("cuda:")):
            self._note(node, NAMES_GPU, repr(node.value))

    def visit_Attribute(self, node: ast.Attribute) -> None:
        """Decorators without brackets tell as much as calls do."""
        sign = sign_of(resolved(node, self._scope.module) or "")
        if sign is not None and sign.weight >= 3 and sign.kind in {"hpc", "inference"} and not node.attr.isupper():
            self._note(node, sign, code(node))
        self.generic_visit(node)

    def visit_Name(self, node: ast.Name) -> None:
        origin = self._scope.module.imports.get(node.id)
        sign = sign_of(origin) if origin else None
        if sign is not None and sign.kind == "hpc" and "kernel" in sign.says:
            self._note(node, sign, code(node))

    def visit_Call(self, node: ast.Call) -> None:
        dotted = resolved(node.func, self._scope.module) or ""
        found = self._surveyor.target(node, self._scope.module, self._owner, self._makers)
        if found is not None:
            inner = self._surveyor.function(found, bound_texts(node, found, self._scope), self._scope)
            self.seen.add(inner, self._loops)
        else:
            self._tell(node, dotted)
        for left in handed_over(node, dotted):
            handed = self._surveyor.target(left, self._scope.module, self._owner, self._makers)
            if handed is not None:
                names = bound_texts(left, handed, self._scope)
                self.seen.add(self._surveyor.function(handed, names, self._scope), self._loops)
        self.generic_visit(node)

    def _tell(self, node: ast.Call, dotted: str) -> None:
        """What a call of something outside tells."""
        sign = sign_of(dotted) if not self._is_variable(dotted) else None
        uses = files_of(dotted)
        if isinstance(node.func, ast.Attribute):
            method = node.func.attr
            sign = sign or self._method_sign(node.func) or METHODS.get(method)
            uses = uses or FILE_METHODS.get(method, ())
            if method == "open" and not uses:
                uses = (FileUse("mode", -1),)
            if method == "cuda":
                sign = NAMES_GPU
        if sign is not None:
            self._note(node, sign, code(node))
        for use in uses:
            self._use(node, use)
        if dotted.startswith(("subprocess.", "os.system", "os.popen")):
            self.seen.runs += filter(None, [command_line(node, self._scope)])
            self.seen.effects.add("starts programs")
            self.seen.effects |= {"waits"} if dotted != "subprocess.Popen" else set()
        if dotted == "exec":
            self.seen.effects.add("runs text")
        if dotted == "torch.multiprocessing.spawn":
            count = next((word.value for word in node.keywords if word.arg == "nprocs"), None)
            count = count or (node.args[2] if len(node.args) > 2 else None)
            if isinstance(count, ast.Constant) and isinstance(count.value, int):
                self.seen.processes = max(1, count.value)

    def _method_sign(self, func: ast.Attribute) -> Sign | None:
        """Methods whose meaning depends on what they are called on."""
        owner = (dotted_name(func.value) or "").split(".")[-1].lower()
        maker = self._makers.get(dotted_name(func.value) or "", "")
        if func.attr == "step" and (any(word in owner for word in STEPPERS) or maker.startswith("torch.optim")):
            return Sign("training", None, 2, "a step of training", gpu=True, work=False)
        if func.attr.lower() in MPI_METHODS and ("comm" in owner or maker.startswith("mpi4py")):
            return CALLS["mpi4py"]
        trains = maker.endswith(TRAINERS) or "trainer" in owner
        if trains and func.attr in {"evaluate", "predict", "test", "validate"}:
            return CALLS["torch.no_grad"]
        if func.attr == "train":
            return METHODS["train_on_batch"] if trains else Sign("training", None, 1, "a model in training", gpu=True)
        return None

    def _is_variable(self, dotted: str) -> bool:
        first = dotted.partition(".")[0]
        return first in self._makers and first not in self._scope.module.imports.values()

    def _use(self, node: ast.Call, use: FileUse) -> None:
        if use.place == -2:
            path = text(node, self._scope)
        elif use.place == -1:
            assert isinstance(node.func, ast.Attribute)
            path = text(node.func.value, self._scope)
        else:
            path = text(argument(node, use.place, use.keyword), self._scope)
        if path is None or not is_known(path) or "://" in path:
            return
        how = use.how
        if how == "mode":
            mode = text(argument(node, use.place + 1, "mode"), self._scope) or "r"
            how = "read" if mode.startswith("r") and "+" not in mode else "write"
        (self.seen.reads if how == "read" else self.seen.writes).add(path)

    def _note(self, node: ast.AST, sign: Sign, seen: str) -> None:
        line = getattr(node, "lineno", 0)
        evidence = Evidence(self._scope.module.shown, line, seen, _told(sign))
        self.seen.note((evidence.file, line, sign.says), Clue(evidence, sign, self._loops))


def _told(sign: Sign) -> str:
    words = [sign.says, *filter(None, [sign.kind]), *([f"{sign.bound}-bound"] if sign.bound else [])]
    return ", ".join(words)


def _stores_a_number(node: ast.stmt) -> bool:
    match node:
        case ast.Assign(targets=[ast.Subscript()], value=ast.BinOp()) | ast.AugAssign(target=ast.Subscript()):
            return True
    return False


def argument(call: ast.Call, place: int, keyword: str) -> ast.expr | None:
    """An argument by its number or name."""
    if place < len(call.args) and not any(isinstance(arg, ast.Starred) for arg in call.args[: place + 1]):
        return call.args[place]
    return next((word.value for word in call.keywords if word.arg == keyword and keyword), None)


def parameters(function: Function) -> list[str]:
    """Those that can be given by place."""
    return [arg.arg for arg in [*function.args.posonlyargs, *function.args.args]]


def bound_arguments(call: ast.Call, found: Found) -> dict[str, ast.expr]:
    """Which expression each parameter gets, as far as it is written down."""
    names = parameters(found.function)
    if found.is_method:
        names = names[1:]
    given: dict[str, ast.expr] = {}
    for name, value in zip(names, call.args, strict=False):
        if isinstance(value, ast.Starred):
            break
        given[name] = value
    given |= {word.arg: word.value for word in call.keywords if word.arg is not None}
    return given


def bound_texts(call: ast.Call, found: Found, scope: Scope) -> dict[str, str]:
    """Which text each parameter gets: what is given, what the command line says, its default."""
    given = bound_arguments(call, found)
    texts: dict[str, str] = {}
    inside = Scope(found.module)
    for name, default in defaults(found.function).items():
        said = scope.options.get(name) or text(default, inside)
        if said is not None:
            texts[name] = said
    for name, value in given.items():
        said = text(value, scope)
        if said is not None:
            texts[name] = said
        else:
            texts.pop(name, None)
    return texts


def defaults(function: Function) -> dict[str, ast.expr]:
    """Of parameters that have one."""
    placed = parameters(function)
    known = dict(zip(placed[len(placed) - len(function.args.defaults) :], function.args.defaults, strict=True))
    named = zip(function.args.kwonlyargs, function.args.kw_defaults, strict=True)
    return known | {arg.arg: value for arg, value in named if value is not None}


def handed_over(call: ast.Call, dotted: str) -> list[ast.Call]:
    """Calls that a call leaves to others: of f in spawn(f, args=(…)), submit(f, …), map(f, …), partial(f, …)."""
    return [
        ast.copy_location(ast.Call(function, given, named), call) for function, given, named in _left_to(call, dotted)
    ]


def _left_to(call: ast.Call, dotted: str) -> list[tuple[ast.expr, list[ast.expr], list[ast.keyword]]]:
    last = dotted.rpartition(".")[2] or (call.func.attr if isinstance(call.func, ast.Attribute) else "")
    words = {word.arg: word.value for word in call.keywords}
    given = words.get("args")
    listed = list(given.elts) if isinstance(given, ast.Tuple | ast.List) else []
    if last in {"Process", "Thread"} and "target" in words:
        return [(words["target"], listed, [])]
    if last == "spawn" and call.args:  # the worker gets its number first
        return [(call.args[0], [ast.Constant(None), *listed], [])]
    if last in {"submit", "step", "apply", "apply_async", "apply_sync", "to_thread", "partial"} and call.args:
        named = call.keywords if last in {"submit", "to_thread", "partial"} else []
        return [(call.args[0], call.args[1:] or listed, named)]
    if (
        last in {"map", "imap", "imap_unordered", "map_async", "starmap", "filter", "run", "Fire", "remote"}
        and call.args
    ):
        return [(call.args[0], [], [])] if not isinstance(call.args[0], ast.Call) else []
    return []


def makers_of(nodes: Iterable[ast.AST], module: Module) -> dict[str, str]:
    """For names that get the result of a call: what was called."""
    found = {}
    for node in statements([node for node in nodes if isinstance(node, ast.stmt)]):
        match node:
            case ast.Assign(targets=[target], value=ast.Call(func=func)):
                name, made = dotted_name(target), resolved(func, module)
                if name is not None and made is not None:
                    found[name] = made
    return found


def leaving(node: ast.With | ast.AsyncWith, module: Module, makers: dict[str, str]) -> list[ast.Call]:
    """Calls of `__exit__` at the end of a `with`, where it is known of which class: each a node that stays the same."""
    calls = []
    for item in node.items:
        named = item.optional_vars or item.context_expr
        if isinstance(item.context_expr, ast.Call) and isinstance(item.optional_vars, ast.Name):
            makers.setdefault(item.optional_vars.id, resolved(item.context_expr.func, module) or "")
        elif isinstance(item.context_expr, ast.Name):
            named = item.context_expr
        if isinstance(named, ast.Name) and named.id in makers:
            made: ast.Call | None = getattr(item, "leaving", None)
            if made is None:
                owner = ast.copy_location(ast.Name(named.id, ast.Load()), node)
                method = ast.copy_location(
                    ast.Attribute(owner, "__exit__" if isinstance(node, ast.With) else "__aexit__", ast.Load()), node
                )
                made = ast.copy_location(ast.Call(method, [], []), node)
                item.leaving = made  # type: ignore[attr-defined]
            calls.append(made)
    return calls


def command_line(call: ast.Call, scope: Scope) -> str | None:
    """What a call of subprocess starts, as a line for the shell."""
    first = call.args[0] if call.args else next((w.value for w in call.keywords if w.arg == "args"), None)
    if isinstance(first, ast.List | ast.Tuple):
        words = [text(word, scope) or "*" for word in first.elts]
        if (
            words
            and isinstance(first.elts[0], ast.Attribute)
            and resolved(first.elts[0], scope.module) == "sys.executable"
        ):
            words[0] = "python"
        return " ".join(words)
    return text(first, scope)
