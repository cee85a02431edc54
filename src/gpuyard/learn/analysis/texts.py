"""Paths out of expressions: what a text would be, with * for what only a run would tell.

`os.path.join(OUT, f"part_{i}.npy")` is `runs/part_*.npy` where OUT is "runs". Options of argparse count with the value from
the command line, else with their default.
"""

import ast
import posixpath
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from gpuyard.learn.analysis.sources import Function, Module, resolved, statements

ANY = "*"
MARK = re.compile("[\ue000-\uf8ff]")
"""Letters nobody writes: each stands for what changes from round to round of one loop. Elsewhere they are like *."""
SAME = {"str", "resolve", "absolute", "as_posix", "expanduser", "rstrip", "strip", "__str__", "__fspath__"}
"""Calls and methods that give back the path they are for, as far as we care."""
SAME_FUNCTIONS = {"str", "os.fspath", "os.path.abspath", "os.path.expanduser", "os.path.normpath", "os.path.realpath"}
PATHS = {"pathlib.Path", "pathlib.PurePath", "pathlib.PosixPath", "upath.UPath"}


@dataclass
class Scope:
    """What names and options stand for at one place."""

    module: Module
    names: dict[str, str] = field(default_factory=dict)
    options: Mapping[str, str] = field(default_factory=dict)
    """Of the command line: the value of --out-dir as out_dir."""
    words: Sequence[str] = ()
    """The command line itself."""

    def inside(self, module: Module, names: dict[str, str]) -> "Scope":
        """Of a function that is called from here."""
        return Scope(module, names, self.options, self.words)

    def learn(self, body: list[ast.stmt]) -> None:
        """Names that get one text and no other."""
        seen: dict[str, str | None] = {}
        for node in statements(body):
            for target, value in _given(node):
                name = _spoken(target)
                if name is None:
                    continue
                found = text(value, self)
                seen[name] = found if name not in seen else None
                if found is not None and seen[name] is not None:
                    self.names[name] = found
                else:
                    self.names.pop(name, None)


def _given(node: ast.stmt) -> Iterator[tuple[ast.expr, ast.expr | None]]:
    """What gets which value; nothing where only a run would tell."""
    match node:
        case ast.Assign(targets=targets, value=value):
            for target in targets:
                yield from _matched(target, value)
        case ast.AnnAssign(target=target, value=value) if value is not None:
            yield target, value
        case ast.AugAssign(target=target) | ast.For(target=target) | ast.AsyncFor(target=target):
            yield from _matched(target, None)


def _matched(target: ast.expr, value: ast.expr | None) -> Iterator[tuple[ast.expr, ast.expr | None]]:
    """`a, b = x, y` one by one."""
    if not isinstance(target, ast.Tuple | ast.List):
        yield target, value
        return
    parts: list[ast.expr] | list[None] = [None] * len(target.elts)
    if isinstance(value, ast.Tuple | ast.List) and len(value.elts) == len(target.elts):
        parts = value.elts
    for one, part in zip(target.elts, parts, strict=True):
        yield from _matched(one, part)


def _spoken(node: ast.expr) -> str | None:
    match node:
        case ast.Name(id=name):
            return name
        case ast.Attribute(value=ast.Name(id="self"), attr=name):
            return f"self.{name}"
    return None


def text(node: ast.expr | None, scope: Scope) -> str | None:
    """What this expression would be as a text; None where nothing of it is known."""
    found = _text(node, scope)
    return found if found is not None and (is_known(found) or MARK.search(found)) else None


def unmarked(pattern: str) -> str:
    """As people are told it."""
    return MARK.sub(ANY, pattern)


def is_known(pattern: str) -> bool:
    """Whether there is anything in it that a run would not have to tell."""
    return re.search(r"\w", pattern) is not None


def _text(node: ast.expr | None, scope: Scope) -> str | None:
    match node:
        case ast.Constant(value=str() | int() | float() as value) if not isinstance(value, bool):
            return str(value)
        case ast.JoinedStr():
            return "".join(_piece(part, scope) for part in node.values)
        case ast.BinOp(op=ast.Add()):
            return _either(scope, node, lambda a, b: a + b)
        case ast.BinOp(op=ast.Div()):
            return _either(scope, node, posixpath.join)
        case ast.BinOp(op=ast.Mod(), left=ast.Constant(value=str() as form)):
            return re.sub(r"%[-+ #0-9.]*[a-zA-Z]", _filler([node.right], scope), form)
        case ast.Name() | ast.Attribute():
            return _named(node, scope)
        case ast.Subscript():
            return _element(node, scope)
        case ast.Call():
            return _called(node, scope)
        case ast.IfExp():
            one, other = _text(node.body, scope), _text(node.orelse, scope)
            return one if one == other else None
        case ast.BoolOp(op=ast.Or()):
            return next((found for found in (_text(value, scope) for value in node.values) if found is not None), None)
    return None


def _piece(part: ast.expr, scope: Scope) -> str:
    if isinstance(part, ast.FormattedValue):
        return _text(part.value, scope) or ANY
    return _text(part, scope) or ANY


def _either(scope: Scope, node: ast.BinOp, join: Callable[[str, str], str]) -> str | None:
    left, right = _text(node.left, scope), _text(node.right, scope)
    return None if left is None and right is None else join(left or ANY, right or ANY)


def _named(node: ast.Name | ast.Attribute, scope: Scope) -> str | None:
    name = _spoken(node)
    if name is not None and name in scope.names:
        return scope.names[name]
    match node:
        case ast.Name(id="__file__"):
            return scope.module.shown
        case ast.Name():
            return constants(scope.module).get(node.id)
        case ast.Attribute(attr="parent"):
            return _of(_text(node.value, scope), lambda path: posixpath.dirname(path) or ".")
        case ast.Attribute(attr="name", value=value):
            return _of(_text(value, scope), posixpath.basename) or scope.options.get("name")
        case ast.Attribute(value=ast.Name(), attr=option) if option in scope.options:
            return scope.options[option]
    return _mark(_text(node.value, scope))


def _element(node: ast.Subscript, scope: Scope) -> str | None:
    match node:
        case ast.Subscript(value=ast.Attribute(value=path, attr="parents"), slice=ast.Constant(value=int() as up)):
            return _of(_text(path, scope), lambda found: posixpath.normpath(posixpath.join(found, *[".."] * (up + 1))))
    match resolved(node.value, scope.module), node.slice:
        case "sys.argv", ast.Constant(value=int() as place):
            words = ["", *scope.words]
            return words[place] if -len(words) <= place < len(words) else None
        case None, _:
            return None
        case _, ast.Constant(value=str() as key) if key in scope.options:  # config["out"], as the command line says
            return scope.options[key]
    return _mark(_text(node.value, scope))


def _called(node: ast.Call, scope: Scope) -> str | None:
    name = resolved(node.func, scope.module) or ""
    first = node.args[0] if node.args else None
    if name in PATHS or name in {"os.path.join", "posixpath.join"}:
        parts = [_text(arg, scope) for arg in node.args]
        return posixpath.join(*(part or ANY for part in parts)) if any(part is not None for part in parts) else None
    if name in SAME_FUNCTIONS:
        return _text(first, scope)
    if name in {"os.environ.get", "os.getenv"}:
        return _text(node.args[1], scope) if len(node.args) > 1 else None
    if name == "os.path.dirname":
        return _of(_text(first, scope), lambda path: posixpath.dirname(path) or ".")
    if isinstance(node.func, ast.Attribute):
        return _of(_text(node.func.value, scope), lambda path: _method(node, path, scope))
    return None


def _method(node: ast.Call, base: str, scope: Scope) -> str | None:
    assert isinstance(node.func, ast.Attribute)
    first = (_text(node.args[0], scope) or ANY) if node.args else ANY
    match node.func.attr:
        case "joinpath":
            return posixpath.join(base, *(_text(arg, scope) or ANY for arg in node.args))
        case "with_suffix":
            return posixpath.splitext(base)[0] + first
        case "with_name":
            return posixpath.join(posixpath.dirname(base), first)
        case "glob" | "rglob":
            return posixpath.join(base, first)
        case "format":
            return re.sub(r"\{[^{}]*\}", _filler([*node.args, *(word.value for word in node.keywords)], scope), base)
        case method if method in SAME:
            return base
    return _mark(base)


def _mark(found: str | None) -> str | None:
    """A part of what changes from round to round changes, too."""
    mark = MARK.search(found) if found is not None else None
    return mark[0] if mark else None


def _filler(nodes: Sequence[ast.expr], scope: Scope) -> str:
    """What stands for values in a text: the mark of a loop where one of them has it."""
    parts = [inner for node in nodes for inner in (node.elts if isinstance(node, ast.Tuple) else [node])]
    return next(filter(None, (_mark(_text(part, scope)) for part in parts)), ANY)


def _of(found: str | None, change: Callable[[str], str | None]) -> str | None:
    return None if found is None else change(found)


def constants(module: Module) -> dict[str, str]:
    """Texts that a file gives names to, once."""
    if module.texts is None:
        module.texts = {}
        Scope(module, module.texts).learn([node for node in module.tree.body if not isinstance(node, Function)])
    return module.texts


def options_of(module: Module, words: Sequence[str] = ()) -> dict[str, str]:
    """What a command line says: the options argparse and click are told of in this file, with their defaults, then its words."""
    found: dict[str, str] = {}
    places: list[str] = []
    for node in ast.walk(module.tree):
        match node:
            case ast.Call(func=ast.Attribute(attr="add_argument" | "option")):
                names = [
                    name.value for name in node.args if isinstance(name, ast.Constant) and isinstance(name.value, str)
                ]
                said = {word.arg: word.value for word in node.keywords}
                if not names:
                    continue
                name = _option(max(names, key=len)) if "dest" not in said else text(said["dest"], Scope(module)) or ""
                default = text(said.get("default"), Scope(module))
                if default is not None:
                    found[name] = default
                if not names[0].startswith("-"):
                    places.append(name)
    return found | _said(words, places)


def _said(words: Sequence[str], places: Sequence[str]) -> dict[str, str]:
    """--out x, --out=x, and words without an option, one for each place."""
    found: dict[str, str] = {}
    waiting = list(places)
    option: str | None = None
    for word in words:
        if word.startswith("--") and "=" in word:
            name, _, value = word.partition("=")
            found[_option(name)] = value
            option = None
        elif re.match(r"--?[A-Za-z]", word):
            option = _option(word)
        elif option is not None:
            found[option] = word
            option = None
        elif waiting:
            found[waiting.pop(0)] = word
    return found


def _option(name: str) -> str:
    return name.lstrip("-").replace("-", "_")


# --- which files are the same -----------------------------------------------------------------------------------------


def meet(one: str, other: str) -> bool:
    """Whether two paths can be the same file, or one is in the folder that the other is."""
    one, other = posixpath.normpath(unmarked(one)), posixpath.normpath(unmarked(other))
    return _common(one, other) or _holds(one, other) or _holds(other, one)


def _holds(folder: str, path: str) -> bool:
    """Only where both are plainly written: a folder nobody knows would hold everything."""
    return ANY not in folder and path.startswith(f"{folder}/")


@lru_cache(maxsize=65536)
def _common(one: str, other: str) -> bool:
    """Whether there is a text that both patterns match."""
    if ANY not in one and ANY not in other:
        return one == other
    if ANY in one and ANY in other and one != other and ANY in {one[0], other[0]}:
        return False  # two that nobody knows the beginning of have nothing in common but chance
    ways = {(0, 0)}
    seen: set[tuple[int, int]] = set()
    while ways:
        at, there = ways.pop()
        if (at, there) in seen:
            continue
        seen.add((at, there))
        if at == len(one) and there == len(other):
            return True
        wild, wild_there = one[at : at + 1] == ANY, other[there : there + 1] == ANY
        if wild:
            ways |= {(at + 1, there)} | ({(at, there + 1)} if there < len(other) else set())
        if wild_there:
            ways |= {(at, there + 1)} | ({(at + 1, there)} if at < len(one) else set())
        if not wild and not wild_there and at < len(one) and there < len(other) and one[at] == other[there]:
            ways.add((at + 1, there + 1))
    return False
