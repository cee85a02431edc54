"""Evaluates strings and paths as far as they are written in the code, and finds which paths may be the same file.

`os.path.join(OUT, f"part_{i}.npy")` is `runs/part_*.npy` where OUT is "runs": `*` stands for parts that are known only
at run time. Options of argparse and click have the value from the command line, otherwise their default.
"""

import ast
import posixpath
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, reduce

from gpuyard.learn.analysis.source import Function, Module, assigned, resolved, statements

ANY = "*"
SAME_FUNCTIONS = {"str", "os.fspath", "os.path.abspath", "os.path.expanduser", "os.path.normpath", "os.path.realpath"}
SAME_METHODS = {"resolve", "absolute", "as_posix", "expanduser", "__str__", "__fspath__"}
"""Calls that return the path they are given, for the purposes of this analysis."""
PATHS = {"pathlib.Path", "pathlib.PurePath", "os.path.join", "posixpath.join"}
WHOLE_NUMBER = re.compile(r"0?\d*d?")
"""Format specifications that print different integers differently."""
NOT_A_NUMBER = re.compile(r"[^\d.e+*-]")
OPTIONS = re.compile(r"(args|arguments|opts?|options|cfg|config|conf|flags|params)$", re.IGNORECASE)
"""Names of objects that hold command-line options."""


@dataclass(frozen=True, slots=True)
class Text:
    """A string as far as it is known; `*` stands for unknown parts."""

    pattern: str
    variables: frozenset[str] = frozenset()
    """Loop variables, if every `*` is the value of one of them, so that different values give different strings."""

    @property
    def is_known(self) -> bool:
        """Whether everything is known except values of loop variables."""
        return ANY not in self.pattern or bool(self.variables)

    def __add__(self, other: "Text") -> "Text":
        both = self.variables | other.variables if self.is_known and other.is_known else frozenset()
        return Text(self.pattern + other.pattern, both)

    def changed(self, pattern: str) -> "Text":
        """Return the text after an operation on the pattern; if a `*` was cut off, the loop variables are dropped."""
        kept = self.variables if pattern.count(ANY) == self.pattern.count(ANY) else frozenset()
        return Text(pattern, kept)


UNKNOWN = Text(ANY)


@dataclass
class NameScope:
    """The values of names and options at one place in the code."""

    module: Module
    names: dict[str, Text] = field(default_factory=dict)
    options: Mapping[str, str] = field(default_factory=dict)
    """From the command line: the value of --out-dir as out_dir."""
    arguments: Sequence[str] = ()
    """The command line itself."""

    def inside(self, module: Module, names: dict[str, Text]) -> "NameScope":
        """Return the scope of a function that is called from here."""
        return NameScope(module, names, self.options, self.arguments)

    def learn(self, body: list[ast.stmt]) -> None:
        """Record names that are assigned one string and nothing else."""
        seen = set(self.names)  # parameters have a value already
        for node in statements(body):
            for name in assigned(node):
                is_single = isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
                found = text(node.value, self) if isinstance(node, ast.Assign) and is_single else None
                self.names.pop(name, None)
                if found is not None and name not in seen:
                    self.names[name] = found
                seen.add(name)


def text(node: ast.expr | None, scope: NameScope) -> Text | None:
    """Return the string that an expression evaluates to; None if nothing of it is known."""
    match node:
        case ast.Constant(value=str() | int() | float() as value) if not isinstance(value, bool):
            return Text(str(value))
        case ast.JoinedStr():
            return sum((_piece(part, scope) for part in node.values), Text(""))
        case ast.BinOp(op=ast.Add() | ast.Div() as operator, left=left, right=right):
            one, other = (text(side, scope) or UNKNOWN for side in (left, right))
            if not any(NOT_A_NUMBER.search(side.pattern) for side in (one, other)):
                return None  # both may be numbers
            return _join(one, other) if isinstance(operator, ast.Div) else one + other
        case ast.Name() | ast.Attribute():
            return _named(node, scope)
        case ast.Subscript(value=base, slice=ast.Constant(value=int() as place)):
            words = ["", *scope.arguments]
            known = resolved(base, scope.module) == "sys.argv" and -len(words) <= place < len(words)
            return Text(words[place]) if known else None
        case ast.Call():
            return _called(node, scope)
    return None


def _piece(part: ast.expr, scope: NameScope) -> Text:
    if not isinstance(part, ast.FormattedValue):
        return text(part, scope) or UNKNOWN
    found = text(part.value, scope) or UNKNOWN
    spec = ast.unparse(part.format_spec)[2:-1] if part.format_spec else ""
    return found if not spec or (found.variables and WHOLE_NUMBER.fullmatch(spec)) else UNKNOWN


def _join(one: Text, other: Text) -> Text:
    if other.pattern.startswith("/"):
        return other
    return one + Text("" if one.pattern.endswith("/") else "/") + other


def _named(node: ast.Name | ast.Attribute, scope: NameScope) -> Text | None:
    if isinstance(node, ast.Name) and node.id in scope.names:
        return scope.names[node.id]
    match node:
        case ast.Name(id="__file__"):
            return Text(scope.module.shown)
        case ast.Name():
            return constants(scope.module).get(node.id)
        case ast.Attribute(attr="parent"):
            return _mapped(text(node.value, scope), lambda path: posixpath.dirname(path) or ".")
        case ast.Attribute(value=ast.Name(id=name), attr=option) if option in scope.options and OPTIONS.search(name):
            return Text(scope.options[option])
    return None


def _called(node: ast.Call, scope: NameScope) -> Text | None:
    name = resolved(node.func, scope.module) or ""
    first = node.args[0] if node.args else None
    if name in PATHS and node.args:
        return reduce(_join, (text(arg, scope) or UNKNOWN for arg in node.args))
    if name in SAME_FUNCTIONS:
        return text(first, scope)
    if name == "os.path.dirname":
        return _mapped(text(first, scope), lambda path: posixpath.dirname(path) or ".")
    if isinstance(node.func, ast.Attribute):
        base = text(node.func.value, scope)
        return _method(node, node.func.attr, base, scope) if base is not None else None
    return None


def _method(node: ast.Call, method: str, base: Text, scope: NameScope) -> Text | None:
    first = (text(node.args[0], scope) or UNKNOWN) if node.args else UNKNOWN
    match method:
        case "joinpath" | "glob" | "rglob":
            return _join(base, first)
        case "with_suffix":
            return base.changed(posixpath.splitext(base.pattern)[0]) + first
    return base if method in SAME_METHODS else None


def _mapped(found: Text | None, change: Callable[[str], str]) -> Text | None:
    return None if found is None else found.changed(change(found.pattern))


def constants(module: Module) -> dict[str, Text]:
    """Return strings that a file assigns to names, once and outside of functions."""
    if module.constants is None:
        module.constants = {}
        NameScope(module, module.constants).learn([node for node in module.tree.body if not isinstance(node, Function)])
        for name in module.shared:
            module.constants.pop(name, None)
    return module.constants


def options_of(module: Module, arguments: Sequence[str] = ()) -> dict[str, str]:
    """Return options declared to argparse or click: their defaults, overridden by values of the command line."""
    found: dict[str, str] = {}
    positional: list[str] = []
    for node in ast.walk(module.tree):
        match node:
            case ast.Call(func=ast.Attribute(attr="add_argument" | "option")):
                names = [
                    name.value for name in node.args if isinstance(name, ast.Constant) and isinstance(name.value, str)
                ]
                given = {word.arg: word.value for word in node.keywords}
                if not names:
                    continue
                dest = text(given["dest"], NameScope(module)) if "dest" in given else None
                name = dest.pattern if dest else _option(max(names, key=len))
                default = text(given.get("default"), NameScope(module))
                if default is not None:
                    found[name] = default.pattern
                if not names[0].startswith("-"):
                    positional.append(name)
    found |= _given(arguments, positional)
    reassigned = {
        node.attr
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)
    }
    return {name: value for name, value in found.items() if name not in reassigned}


def _given(arguments: Sequence[str], positional: Sequence[str]) -> dict[str, str]:
    """Parse --out x, --out=x, and words without an option, one for each positional argument."""
    found: dict[str, str] = {}
    waiting = list(positional)
    option: str | None = None
    for word in arguments:
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


# --- which paths may be the same file ----------------------------------------------------------------------------------


def may_meet(one: str, other: str) -> bool:
    """Return whether two patterns may be the same file, or one may be inside the other. In doubt, return True."""
    one, other = posixpath.normpath(one), posixpath.normpath(other)
    if "." in {one, other}:  # the current directory
        return True
    if one.startswith("/") != other.startswith("/") or one.startswith("..") or other.startswith(".."):
        one, other = (path if path.startswith("/") else f"{ANY}/{path.lstrip('./')}" for path in (one, other))
    return _overlap(one, other) or _may_hold(one, other) or _may_hold(other, one)


def _may_hold(folder: str, path: str) -> bool:
    """Return whether `folder` may contain `path`. A name with a suffix is a folder only if written as one."""
    if path.partition(ANY)[0].startswith(f"{folder}/"):
        return True
    return not posixpath.splitext(folder)[1] and _overlap(path, f"{folder}/{ANY}")


@lru_cache(maxsize=65536)
def _overlap(one: str, other: str) -> bool:
    """Return whether there is a string that both patterns match."""
    if ANY not in one and ANY not in other:
        return one == other
    waiting, seen = [(0, 0)], set()
    while waiting:
        at, there = waiting.pop()
        if (at, there) in seen:
            continue
        seen.add((at, there))
        if at == len(one) and there == len(other):
            return True
        wild, wild_there = one[at : at + 1] == ANY, other[there : there + 1] == ANY
        if wild:
            waiting += [(at + 1, there)] + ([(at, there + 1)] if there < len(other) else [])
        if wild_there:
            waiting += [(at, there + 1)] + ([(at + 1, there)] if at < len(one) else [])
        if not wild and not wild_there and at < len(one) and there < len(other) and one[at] == other[there]:
            waiting.append((at + 1, there + 1))
    return False
