"""Python files, read and never run: their functions and classes, what names stand for, which file a module is.

A name is *resolved* to a dotted name: `F.relu` is `torch.nn.functional.relu` where the file says
`import torch.nn.functional as F`. A dotted name that leads into a file of the same project leads to its function or class.
"""

import ast
import os
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from gpuyard.core.domain.errors import WrongInput

Function = ast.FunctionDef | ast.AsyncFunctionDef
DEEPEST_PACKAGE = 20
LARGEST_BYTES = 10_000_000
LEFT_OUT = {"__pycache__", "node_modules", "site-packages", "build", "dist", "venv", "env"}
"""Folders that hold what others wrote, or what was made; those that begin with a dot are left out as well."""


class Unreadable(WrongInput):
    """The source can not be read."""


@dataclass
class Module:
    """One Python file."""

    path: Path
    shown: str
    """Its name as people are told it."""
    tree: ast.Module
    functions: dict[str, Function] = field(default_factory=dict)
    """Those of the file by name, those of classes as Class.name."""
    classes: dict[str, ast.ClassDef] = field(default_factory=dict)
    imports: dict[str, str] = field(default_factory=dict)
    """What a name stands for, dotted."""
    stars: list[str] = field(default_factory=list)
    """What it imports all names of."""
    variables: set[str] = field(default_factory=set)
    """Names the file gives values to, outside of functions."""
    texts: dict[str, str] | None = None
    """Those whose value is a text; `texts.constants` finds them when somebody asks."""


@dataclass(frozen=True)
class Found:
    """A function somewhere in the project, and the file it is in."""

    module: Module
    function: Function
    name: str
    """In its file; Class.name for a method."""

    @property
    def is_method(self) -> bool:
        """Whether its first parameter is the object itself."""
        if "." not in self.name:
            return False
        marks = {mark.id for mark in self.function.decorator_list if isinstance(mark, ast.Name)}
        return "staticmethod" not in marks


class Project:
    """Files that may call each other: one, or those of a folder."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._modules: dict[Path, Module | None] = {}
        self._led: dict[tuple[Path, str], tuple[Module | None, str]] = {}

    def module(self, path: Path) -> Module:
        """A file of it, read once."""
        path = Path(os.path.normpath(path))
        known = self._modules.get(path)
        if known is None:
            known = self._modules[path] = read_module(path, _shown(path, self.root))
            self._spell_out_stars(known)
        return known

    def _spell_out_stars(self, module: Module) -> None:
        """`from helpers import *`, where helpers is a file of the project, imports its public names."""
        for origin in module.stars:
            there, rest = self.leads_to(module, origin)
            if there is None or there is module or rest:
                continue
            joint = "" if origin.endswith(".") else "."
            public = {name for name in (*there.functions, *there.classes, *there.variables) if name.isidentifier()}
            meant = {name: there.imports[name] for name in there.imports if there.imports[name][0] != "."}
            meant |= {name: f"{origin}{joint}{name}" for name in public}
            own = {*module.imports, *module.functions, *module.classes, *module.variables}
            module.imports |= {name: meant[name] for name in meant if not name.startswith("_") and name not in own}

    def find(self, module: Module, dotted: str, through: int = 0) -> Found | None:
        """The function a dotted name stands for, as seen from a file; a class is its constructor's."""
        if dotted in module.functions:
            return Found(module, module.functions[dotted], dotted)
        if dotted in module.classes:
            maker = module.functions.get(f"{dotted}.__init__")
            return Found(module, maker, f"{dotted}.__init__") if maker else None
        there, rest = self._defined(module, dotted)
        return self.find(there, rest, through + 1) if there is not None and through < DEEPEST_PACKAGE else None

    def _defined(self, module: Module, dotted: str) -> tuple[Module | None, str]:
        """Another file that a name may be from: what a file imports, those that import it can import from there."""
        there, rest = self.leads_to(module, dotted)
        if there is None or there is module or not rest:
            return None, ""
        first, _, more = rest.partition(".")
        if first not in there.imports or first in there.functions or first in there.classes:
            return there, rest
        further, left = self.leads_to(there, there.imports[first])
        return further, ".".join(filter(None, (left, more)))

    def find_class(self, module: Module, dotted: str, through: int = 0) -> tuple[Module, str] | None:
        """The class a dotted name stands for, and its file."""
        if dotted in module.classes:
            return module, dotted
        there, rest = self._defined(module, dotted)
        return self.find_class(there, rest, through + 1) if there is not None and through < DEEPEST_PACKAGE else None

    def method(self, owner: tuple[Module, str], name: str) -> Found | None:
        """A method of a class, its own or inherited from a class of the project."""
        seen: set[tuple[str, str]] = set()
        waiting = [owner]
        while waiting:
            module, called = waiting.pop(0)
            if (module.shown, called) in seen:
                continue
            seen.add((module.shown, called))
            if f"{called}.{name}" in module.functions:
                return Found(module, module.functions[f"{called}.{name}"], f"{called}.{name}")
            for base in module.classes[called].bases:
                above = self.find_class(module, resolved(base, module) or "")
                if above is not None:
                    waiting.append(above)
        return None

    def leads_to(self, module: Module, dotted: str) -> tuple[Module | None, str]:
        """The file of the longest beginning of a dotted name, and what is left of the name."""
        key = (module.path.parent, dotted)
        if key not in self._led:
            self._led[key] = self._leads_to(module, dotted)
        return self._led[key]

    def _leads_to(self, module: Module, dotted: str) -> tuple[Module | None, str]:
        relative = len(dotted) - len(dotted.lstrip("."))
        parts = dotted.lstrip(".").split(".")
        folder = module.path.parent
        folders = [folder, self.root if self.root.is_dir() else self.root.parent, _above_package(folder)]
        if relative:
            for _ in range(relative - 1):
                folder = folder.parent
            folders = [folder]
        for length in range(len(parts), 0, -1):
            for start in folders:
                place = start.joinpath(*parts[:length])
                for path in (place.with_suffix(".py"), place / "__init__.py"):
                    found = self._if_readable(path)
                    if found is not None:
                        return found, ".".join(parts[length:])
        return None, ""

    def _if_readable(self, path: Path) -> Module | None:
        path = Path(os.path.normpath(path))
        if path not in self._modules:
            try:
                self._modules[path] = self.module(path) if path.is_file() else None
            except WrongInput:
                self._modules[path] = None
        return self._modules[path]


def _above_package(folder: Path) -> Path:
    """Where a package is imported from, by its own files, too."""
    for _ in range(DEEPEST_PACKAGE):
        if not (folder / "__init__.py").is_file():
            break
        folder = Path(os.path.normpath(folder / ".."))
    return folder


def read_module(path: Path, shown: str) -> Module:
    """One file, and what its names mean. What is wrong with it is said with its name and line."""
    content = read_bytes(path, shown)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(content, filename=shown)
    except SyntaxError as error:
        line = f":{error.lineno}" if error.lineno else ""
        raise Unreadable(f"{shown}{line}: this is not valid Python: {error.msg}.") from None
    except ValueError as error:
        raise Unreadable(f"{shown}: this is not valid Python: {error}.") from None
    except (RecursionError, MemoryError):
        raise Unreadable(f"{shown}: it is nested too deeply to be read.") from None
    module = Module(path, shown, tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            module.imports |= _imported(node)
            module.stars += [
                _origin(node) for one in node.names if one.name == "*" and isinstance(node, ast.ImportFrom)
            ]
    _learn(module, tree.body, "")
    for function in [node for node in ast.walk(tree) if isinstance(node, Function)]:
        for inner in statements(function.body):  # functions inside of functions go by their names, too
            if isinstance(inner, Function):
                module.functions.setdefault(inner.name, inner)
    return module


def read_bytes(path: Path, shown: str) -> bytes:
    """What is in a file, if it can be a source."""
    try:
        if not path.is_file():
            raise Unreadable(f"{shown}: this is no file.")
        if path.stat().st_size > LARGEST_BYTES:
            raise Unreadable(f"{shown}: it has more than {LARGEST_BYTES // 1_000_000} MB; that is no source.")
        return path.read_bytes()
    except OSError as error:
        raise Unreadable(f"{shown}: {error.strerror}.") from None


def _learn(module: Module, body: list[ast.stmt], owner: str) -> None:
    for node in statements(body):
        if isinstance(node, Function):
            module.functions[f"{owner}{node.name}"] = node
        elif isinstance(node, ast.ClassDef) and not owner:
            module.classes[node.name] = node
            _learn(module, node.body, f"{node.name}.")
        elif not owner:
            module.variables |= assigned(node)


def statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """These and those inside of loops, conditions and the like; not those inside of functions and classes."""
    for node in body:
        yield node
        if not isinstance(node, Function | ast.ClassDef):
            for part in ("body", "orelse", "finalbody"):
                yield from statements(getattr(node, part, []))
            for inner in [*getattr(node, "handlers", []), *getattr(node, "cases", [])]:
                yield from statements(inner.body)


def assigned(node: ast.stmt) -> set[str]:
    """Names that this statement alone gives values to."""
    targets: list[ast.expr] = []
    match node:
        case ast.Assign():
            targets = node.targets
        case ast.AnnAssign() | ast.AugAssign() | ast.For() | ast.AsyncFor():
            targets = [node.target]
        case ast.With() | ast.AsyncWith():
            targets = [item.optional_vars for item in node.items if item.optional_vars is not None]
    found = {name.id for target in targets for name in ast.walk(target) if _is_stored(name)}  # type: ignore[attr-defined]
    inner = (walrus.target.id for walrus in ast.walk(node) if isinstance(walrus, ast.NamedExpr))
    return found | set(inner)


def _is_stored(node: ast.AST) -> bool:
    return isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)


def _imported(node: ast.Import | ast.ImportFrom) -> dict[str, str]:
    if isinstance(node, ast.Import):
        return {
            one.asname or one.name.split(".")[0]: one.name if one.asname else one.name.split(".")[0]
            for one in node.names
        }
    origin = _origin(node)
    joint = "" if origin.endswith(".") or not origin else "."
    return {one.asname or one.name: f"{origin}{joint}{one.name}" for one in node.names if one.name != "*"}


def _origin(node: ast.ImportFrom) -> str:
    return "." * node.level + (node.module or "")


def dotted_name(node: ast.expr) -> str | None:
    """`a.b.c` as it stands in the code; nothing where it is no such chain."""
    parts = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name):
        return None
    return ".".join([node.id, *reversed(parts)])


def resolved(node: ast.expr, module: Module) -> str | None:
    """The same with the first part replaced by what it was imported as."""
    name = dotted_name(node)
    if name is None:
        return None
    first, _, rest = name.partition(".")
    origin = module.imports.get(first, first)
    return f"{origin}.{rest}" if rest else origin


def files_below(folder: Path, wanted: Callable[[str], bool], tell: Callable[[int], None]) -> list[Path]:
    """In the order of their names; a folder that can not be read is passed over. `tell` hears how many there are so far."""
    found = []
    for place, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if name not in LEFT_OUT and not name.startswith("."))
        found += [Path(place, name) for name in sorted(names) if wanted(name)]
        tell(len(found))
    return found


def _shown(path: Path, root: Path) -> str:
    """From the folder that was asked about; a file alone is called as it was."""
    if root.is_dir() and path.is_relative_to(root):
        return str(path.relative_to(root))
    return path.name if path == root else os.path.relpath(path, root if root.is_dir() else root.parent)


def code(node: ast.AST, most: int = 60) -> str:
    """On one line, cut where it is long. Of a compound statement, its first line."""
    match node:
        case ast.For() | ast.AsyncFor():
            text = f"for {ast.unparse(node.target)} in {ast.unparse(node.iter)}"
        case ast.While():
            text = f"while {ast.unparse(node.test)}"
        case ast.If():
            text = f"if {ast.unparse(node.test)}"
        case ast.With() | ast.AsyncWith():
            text = f"with {', '.join(ast.unparse(item) for item in node.items)}"
        case ast.Try() | ast.TryStar():
            text = "try"
        case ast.Match():
            text = f"match {ast.unparse(node.subject)}"
        case ast.FunctionDef() | ast.AsyncFunctionDef():
            text = f"def {node.name}({ast.unparse(node.args)})"
        case ast.ClassDef():
            text = f"class {node.name}"
        case _:
            text = ast.unparse(node)
    text = " ".join(text.split())
    return text if len(text) <= most else f"{text[: most - 1]}…"
