"""Reads Python files without running them: functions, classes, imports, and the project file that defines a name.

A name is *resolved* to a dotted name: `F.relu` is `torch.nn.functional.relu` where the file says `import
torch.nn.functional as F`. A dotted name may refer to a function or class in another file next to the script.
"""

import ast
import hashlib
import os
import warnings
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, TypeGuard

from gpuyard.core.domain.errors import WrongInput
from gpuyard.input.files import is_file

Function = ast.FunctionDef | ast.AsyncFunctionDef
DEEPEST_PACKAGE = 20
EXPLICIT = {"__init__", "__post_init__", "__call__", "__enter__", "__exit__"}
"""Special methods that run only where the code shows it."""


@dataclass
class Module:
    """One Python file."""

    path: Path
    shown: str
    """Its name in messages."""
    tree: ast.Module
    source: bytes
    functions: dict[str, Function] = field(default_factory=dict)
    """Functions by name, methods as Class.name."""
    methods: list[tuple[str, Function]] = field(default_factory=list)
    """All methods as Class.name; a property and its setter have the same name."""
    classes: dict[str, ast.ClassDef] = field(default_factory=dict)
    stateful: set[str] = field(default_factory=set)
    """Classes whose objects may share something that changes."""
    imports: dict[str, str] = field(default_factory=dict)
    """The dotted name that an imported name stands for."""
    variables: set[str] = field(default_factory=set)
    """Names that the file assigns outside of functions."""
    local: set[str] = field(default_factory=set)
    """Names that it assigns anywhere, and parameters."""
    shared: set[str] = field(default_factory=set)
    """Names that functions assign as well."""
    constants: dict[str, Any] | None = None
    """Names that are assigned only one string; `paths.constants` fills it."""


@dataclass(frozen=True)
class Found:
    """A function of the project, and the file it is in."""

    module: Module
    function: Function
    name: str
    """Its name in the file; Class.name for a method."""

    @property
    def is_method(self) -> bool:
        """Whether its first parameter is the object itself."""
        decorators = {node.id for node in self.function.decorator_list if isinstance(node, ast.Name)}
        return "." in self.name and "staticmethod" not in decorators


class Project:
    """The script and the files next to it that it imports, directly or through others."""

    def __init__(self, script: Path) -> None:
        self.script_path = script
        self._modules: dict[Path, Module] = {}
        self._targets: dict[tuple[Path, str], tuple[Module | None, str]] = {}
        self._methods: dict[str, list[Found]] = {}

    def module(self, path: Path) -> Module:
        """Return a file of the project, read once, with all files that it imports."""
        path = Path(os.path.normpath(path))
        known = self._modules.get(path)
        if known is None:
            shown = path.name if path == self.script_path else os.path.relpath(path, self.script_path.parent)
            known = self._modules[path] = read_module(path, shown)
            for name, function in known.methods:
                self._methods.setdefault(name.partition(".")[2], []).append(Found(known, function, name))
            for dotted in known.imports.values():
                self.target(known, dotted)
        return known

    def function(self, module: Module, dotted: str) -> Found | None:
        """Return the function that a dotted name refers to, as seen from a file; None if it is not in the project."""
        there, name = self._definition(module, dotted)
        first = name.partition(".")[0]
        known = name in there.functions and (first in there.classes or first not in there.variables)
        return Found(there, there.functions[name], name) if known else None

    def find_class(self, module: Module, dotted: str) -> tuple[Module, str] | None:
        """Return the class that a dotted name refers to, and its file; None if it is not in the project."""
        there, name = self._definition(module, dotted)
        return (there, name) if name in there.classes else None

    def variable(self, module: Module, dotted: str) -> tuple[Module, str] | None:
        """Return the module-level variable of another file that a dotted name refers to."""
        there, name = self._definition(module, dotted)
        first = name.partition(".")[0]
        return (there, first) if there is not module and first in there.variables else None

    def _definition(self, module: Module, dotted: str) -> tuple[Module, str]:
        """Return the file that defines a name, following imports of other files, and its name there."""
        for _ in range(DEEPEST_PACKAGE):
            first = dotted.partition(".")[0]
            there, rest = (None, "") if first in {*module.functions, *module.classes} else self.target(module, dotted)
            if there is None or there is module or not rest:
                break
            module, first = there, rest.partition(".")[0]
            dotted = module.imports.get(first, first) + rest[len(first) :]
        return module, dotted

    def method(self, owner: tuple[Module, str], name: str) -> Found | None:
        """Return a method of a class, its own or inherited from a class of the project."""
        module, called = owner
        if f"{called}.{name}" in module.functions:
            return Found(module, module.functions[f"{called}.{name}"], f"{called}.{name}")
        above = (self.find_class(module, resolved(base, module) or "") for base in module.classes[called].bases)
        found = (self.method(one, name) for one in above if one is not None and one != owner)
        return next((one for one in found if one is not None), None)

    def methods_named(self, name: str) -> list[Found]:
        """Return the methods of that name of any class: those that a call on an unknown object may reach."""
        return self._methods.get(name, [])

    @cached_property
    def special_methods(self) -> list[Found]:
        """Return the methods that operators and library functions may run."""
        files = {"write", "writelines", "read", "readline", "readinto", "flush", "close"}  # an object used as a file
        named = [name for name in self._methods if name in files or (name.startswith("__") and name not in EXPLICIT)]
        return [found for name in named for found in self._methods[name]]

    def is_own(self, made: tuple[Module, str]) -> bool:
        """Return whether a class and all classes above it are in the project."""
        module, name = made
        above = [resolved(base, module) or "" for base in module.classes[name].bases]
        found = [self.find_class(module, dotted) for dotted in above if dotted != "object"]
        return all(one is not None and one != made and self.is_own(one) for one in found)

    def modules(self) -> list[Module]:
        """Return all files that were read."""
        return list(self._modules.values())

    def target(self, module: Module, dotted: str) -> tuple[Module | None, str]:
        """Return the file that the longest prefix of a dotted name refers to, and the rest of the name."""
        key = (module.path.parent, dotted)
        if key not in self._targets:
            self._targets[key] = self._target(module, dotted)
        return self._targets[key]

    def _target(self, module: Module, dotted: str) -> tuple[Module | None, str]:
        dots = len(dotted) - len(dotted.lstrip("."))
        parts = dotted.lstrip(".").split(".")
        folder = module.path.parent
        folders = [folder, self.script_path.parent]
        if dots:
            for _ in range(dots - 1):
                folder = folder.parent
            folders = [folder]
        for length in range(min(len(parts), DEEPEST_PACKAGE), 0, -1):
            for start in folders:
                place = start.joinpath(*parts[:length])
                files = [place.with_name(f"{place.name}.py")] if parts[0] else []
                for path in (*files, place / "__init__.py"):
                    if is_file(path):
                        with suppress(WrongInput):
                            return self.module(path), ".".join(parts[length:])
        return None, ""


def digest(source: bytes) -> str:
    """Return what identifies the content of a file."""
    return hashlib.sha256(source).hexdigest()[:16]


def read_module(path: Path, shown: str) -> Module:
    """Read one file and resolve its names. An error names the file and the line."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            source = path.read_bytes()
            tree = ast.parse(source, filename=shown)
    except OSError as error:
        raise WrongInput(f"{shown}: {error.strerror}.") from None
    except (SyntaxError, ValueError) as error:
        line = f":{error.lineno}" if isinstance(error, SyntaxError) and error.lineno else ""
        raise WrongInput(f"{shown}{line}: this is not valid Python: {getattr(error, 'msg', error)}.") from None
    except (RecursionError, MemoryError):
        raise WrongInput(f"{shown}: it is nested too deeply to be read.") from None
    module = Module(path, shown, tree, source)
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            module.imports |= _imported(node)
        elif isinstance(node, ast.Global):
            module.shared |= set(node.names)
        elif isinstance(node, ast.arg):
            module.local.add(node.arg)
        module.local |= assigned(node) if isinstance(node, ast.stmt) else set()
    _collect(module, tree.body, "")
    return module


def _collect(module: Module, body: list[ast.stmt], owner: str) -> None:
    for node in statements(body):
        if isinstance(node, Function):
            twice = f"{owner}{node.name}" in module.functions
            module.variables |= {node.name} if twice and not owner else set()
            module.functions[f"{owner}{node.name}"] = node
            module.methods += [(f"{owner}{node.name}", node)] if owner else []
        elif isinstance(node, ast.ClassDef) and not owner:
            module.classes[node.name] = node
            module.variables.add(node.name)
            module.stateful |= {node.name} if _has_state(node) else set()
            _collect(module, node.body, f"{node.name}.")
        elif not owner:
            module.variables |= assigned(node)


def _has_state(node: ast.ClassDef) -> bool:
    """Return whether objects of a class may share something that changes."""
    values = [part.value for part in node.body if isinstance(part, ast.Assign | ast.AnnAssign) and part.value]
    calls = {id(part): dotted_name(part.func) for part in values if isinstance(part, ast.Call)}
    own = [value for value in values if calls.get(id(value)) not in {"field", "dataclasses.field", "auto", "enum.auto"}]
    names = {part.id for part in ast.walk(node) if isinstance(part, ast.Name)}
    return bool(names & {"cls", "classmethod", "type"}) or not all(isinstance(value, ast.Constant) for value in own)


def statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield these statements and those inside of loops and conditions; not those inside of functions and classes."""
    for node in body:
        yield node
        if not isinstance(node, Function | ast.ClassDef):
            for part in ("body", "orelse", "finalbody"):
                yield from statements(getattr(node, part, []))
            for inner in [*getattr(node, "handlers", []), *getattr(node, "cases", [])]:
                yield from statements(inner.body)


def assigned(node: ast.stmt) -> set[str]:
    """Return the names that this statement alone assigns, including those bound inside of its expressions."""
    found: set[str] = set()
    waiting: list[ast.AST] = [] if isinstance(node, Function | ast.ClassDef) else [node]
    while waiting:
        part = waiting.pop()
        match part:
            case ast.Name(id=name, ctx=ast.Store() | ast.Del()) | ast.arg(arg=name):
                found.add(name)
            case ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)) | ast.ExceptHandler(name=str(name)):
                found.add(name)
        waiting += [inner for inner in ast.iter_child_nodes(part) if not isinstance(inner, ast.stmt)]
    return found


def _imported(node: ast.Import | ast.ImportFrom) -> dict[str, str]:
    if isinstance(node, ast.Import):
        names = [(one.asname, one.name if one.asname else one.name.partition(".")[0]) for one in node.names]
        return {asname or name: name for asname, name in names}
    origin = "." * node.level + (node.module or "")
    joint = "" if origin.endswith(".") else "."
    return {one.asname or one.name: f"{origin}{joint}{one.name}" for one in node.names if one.name != "*"}


def dotted_name(node: ast.expr) -> str | None:
    """Return `a.b.c` as written in the code; None if the expression is not such a chain."""
    parts = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name):
        return None
    return ".".join([node.id, *reversed(parts)])


def resolved(node: ast.expr, module: Module) -> str | None:
    """Return the dotted name with the first part replaced by what it was imported as."""
    name = dotted_name(node)
    if name is None:
        return None
    first, _, rest = name.partition(".")
    origin = module.imports.get(first, first)
    return f"{origin}.{rest}" if rest else origin


def is_main_guard(node: ast.stmt) -> TypeGuard[ast.If]:
    """Return whether a statement is `if __name__ == "__main__":`."""
    return isinstance(node, ast.If) and ast.unparse(node.test) == "__name__ == '__main__'" and not node.orelse


def one_line(node: ast.AST, most: int = 60) -> str:
    """Return the code on one line, truncated if it is long; for a compound statement, its first line."""
    text = ast.unparse(node)
    if isinstance(node, ast.stmt):
        text = text.split("\n")[0].removesuffix(":")
    text = " ".join(text.split())
    return text if len(text) <= most else f"{text[: most - 1]}…"
