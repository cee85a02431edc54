"""Evaluates strings and paths as far as they are written in the code, and finds which paths may be the same file.

`os.path.join(OUT, f"part_{i}.npy")` is `runs/part_*.npy` where OUT is "runs": `*` stands for parts that are known only
at run time. Options of argparse and click have the value from the command line, otherwise their default.
"""

import ast
import posixpath
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce

from gpuyard.learn.analysis.source import Function, Module, assigned, resolved, statements

ANY = "*"
EACH = "\0"
"""Stands for the value of a loop variable, which is another one in every iteration."""
SAME_FUNCTIONS = {"str", "os.fspath", "os.path.abspath", "os.path.expanduser", "os.path.normpath", "os.path.realpath"}
SAME_METHODS = {"resolve", "absolute", "as_posix", "expanduser", "__str__", "__fspath__"}
"""Calls that return the path they are given, for the purposes of this analysis."""
PATHS = {"pathlib.Path", "pathlib.PurePath", "os.path.join", "posixpath.join"}
WHOLE_NUMBER = re.compile(r"0?\d*d?")
"""Format specifications that print different integers differently."""
NOT_A_NUMBER = re.compile(r"[^\d.e+*\0-]")
OPTIONS = re.compile(r"(args|arguments|opts?|options|cfg|config|conf|flags|params)$", re.IGNORECASE)
"""Names of objects that hold command-line options."""


@dataclass
class NameScope:
    """The values of names and options at one place in the code."""

    module: Module
    names: dict[str, str] = field(default_factory=dict)
    options: Mapping[str, str] = field(default_factory=dict)
    """From the command line: the value of --out-dir as out_dir."""
    arguments: Sequence[str] = ()
    """The command line itself."""
    local: set[str] = field(default_factory=set)
    """In a function: names that are not those of the file."""

    def inside(self, module: Module, function: Function, names: Mapping[str, str]) -> "NameScope":
        """Return the scope of a function that is called with these values of parameters."""
        local = {part.arg for part in ast.walk(function.args) if isinstance(part, ast.arg)}
        scope = NameScope(module, dict(names), self.options, self.arguments, local)
        scope.learn(function.body)
        return scope

    def learn(self, body: list[ast.stmt]) -> None:
        """Record names that are assigned one string and nothing else."""
        seen = set(self.names)  # parameters have a value already
        self.local |= {name for node in statements(body) for name in assigned(node)}
        for node in statements(body):
            for name in assigned(node):
                is_single = isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
                found = text(node.value, self) if isinstance(node, ast.Assign) and is_single else None
                self.names.pop(name, None)
                if found is not None and name not in seen:
                    self.names[name] = found
                seen.add(name)


def text(node: ast.expr | None, scope: NameScope) -> str | None:
    """Return the string that an expression evaluates to; None if nothing of it is known."""
    match node:
        case ast.Constant(value=str() | int() | float() as value) if not isinstance(value, bool):
            return str(value)
        case ast.JoinedStr():
            return "".join(_piece(part, scope) for part in node.values)
        case ast.BinOp(op=ast.Add() | ast.Div() as operator, left=left, right=right):
            one, other = (text(side, scope) or ANY for side in (left, right))
            if not any(NOT_A_NUMBER.search(side) for side in (one, other)):
                return None  # both may be numbers
            return _join(one, other) if isinstance(operator, ast.Div) else one + other
        case ast.Name() | ast.Attribute():
            return _named(node, scope)
        case ast.Subscript(value=base, slice=ast.Constant(value=int() as place)):
            words = ["", *scope.arguments]
            known = resolved(base, scope.module) == "sys.argv" and -len(words) <= place < len(words)
            return words[place] if known else None
        case ast.Call():
            return _called(node, scope)
    return None


def _piece(part: ast.expr, scope: NameScope) -> str:
    if not isinstance(part, ast.FormattedValue):
        return text(part, scope) or ANY
    found = text(part.value, scope) or ANY
    spec = ast.unparse(part.format_spec)[2:-1] if part.format_spec else ""
    is_same = not spec or (found == EACH and WHOLE_NUMBER.fullmatch(spec))
    return found if is_same and part.conversion in {-1, ord("s")} else ANY


def _join(one: str, other: str) -> str:
    if other.startswith("/"):
        return other
    return f"{one}{'' if one.endswith('/') else '/'}{other}"


def _named(node: ast.Name | ast.Attribute, scope: NameScope) -> str | None:
    if isinstance(node, ast.Name) and node.id in scope.names:
        return scope.names[node.id]
    match node:
        case ast.Name(id="__file__"):
            return scope.module.shown
        case ast.Name():
            return constants(scope.module).get(node.id) if node.id not in scope.local else None
        case ast.Attribute(attr="parent"):
            return _folder(text(node.value, scope))
        case ast.Attribute(value=ast.Name(id=name), attr=option) if option in scope.options and OPTIONS.search(name):
            return scope.options[option]
    return None


def _called(node: ast.Call, scope: NameScope) -> str | None:
    name = resolved(node.func, scope.module) or ""
    first = node.args[0] if node.args else None
    if name in PATHS and node.args:
        return reduce(_join, (text(arg, scope) or ANY for arg in node.args))
    if name in SAME_FUNCTIONS:
        return text(first, scope)
    if name == "os.path.dirname":
        return _folder(text(first, scope))
    if isinstance(node.func, ast.Attribute):
        base = text(node.func.value, scope)
        return _method(node, node.func.attr, base, scope) if base is not None else None
    return None


def _method(node: ast.Call, method: str, base: str, scope: NameScope) -> str | None:
    first = (text(node.args[0], scope) or ANY) if node.args else ANY
    match method:
        case "joinpath" | "glob" | "rglob":
            return _join(base, first)
    return base if method in SAME_METHODS else None


def _folder(path: str | None) -> str | None:
    return None if path is None else posixpath.dirname(path) or "."


def constants(module: Module) -> dict[str, str]:
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
                name = dest or _option(max(names, key=len))
                default = text(given.get("default"), NameScope(module))
                if default is not None:
                    found[name] = default
                if not names[0].startswith("-"):
                    positional.append(name)
    found |= _given(arguments, positional)
    for node in ast.walk(module.tree):
        match node:
            case ast.Call(func=ast.Attribute(attr="parse_args" | "parse_known_args"), args=[_, *_]):
                return {}  # the command line is not what is parsed
            case ast.Attribute(attr=attr, ctx=ast.Store()):
                found.pop(attr, None)
            case ast.ClassDef(body=body):
                for name in {name for part in body for name in assigned(part)}:
                    found.pop(name, None)
    return found


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


def normal(path: str) -> str:
    """Return a path without `./` and the like; one with `..` may be any file."""
    return ANY if ".." in path.split("/") else posixpath.normpath(path)


def may_meet(one: str, other: str) -> bool:
    """Return whether two patterns may be the same file, or one may be inside the other. In doubt, return True."""
    one, other = normal(one), normal(other)
    if "." in {one, other}:  # the current directory
        return True
    if any(path.startswith(("/", "~", ANY)) for path in (one, other)):  # it may be an absolute path
        one, other = (path if path.startswith("/") else f"{ANY}/{path}" for path in (one, other))
    return _overlap(one, other) or _may_hold(one, other) or _may_hold(other, one)


def _may_hold(folder: str, path: str) -> bool:
    """Return whether `folder` may contain `path`. A name with a suffix is a folder only if written as one."""
    if path.partition(ANY)[0].startswith(f"{folder}/"):
        return True
    return not posixpath.splitext(folder)[1] and _overlap(path, f"{folder}/{ANY}")


def _overlap(one: str, other: str) -> bool:
    """Return whether the texts before the first `*` and after the last one allow both patterns to be the same."""
    if ANY not in one or ANY not in other:
        plain, pattern = (one, other) if ANY not in one else (other, one)
        return re.fullmatch(".*".join(map(re.escape, pattern.split(ANY))), plain) is not None
    heads, tails = ((path.partition(ANY)[0], path.rpartition(ANY)[2]) for path in (one, other))
    (head, tail), (head_too, tail_too) = heads, tails
    return (head.startswith(head_too) or head_too.startswith(head)) and (
        tail.endswith(tail_too) or tail_too.endswith(tail)
    )
