"""Finds code whose effects happen at another time or place than where they are written.

A thread, a function that replaces another, code made at run time: the effects of single statements do not tell what
such a program does. All its steps keep their order.
"""

import ast
from collections.abc import Iterator

from gpuyard.learn.analysis import api_patterns as api
from gpuyard.learn.analysis.source import Module, Project, dotted_name, resolved

STREAMS = {"sys.path", "sys.modules", "sys.stdout", "sys.stderr", "sys.stdin"}
BUILTIN = {"eval", "compile", "exec"}
"""Hazards only as functions: model.eval() and re.compile() are harmless."""


def hazard(project: Project) -> str | None:
    """Return the first such place as a sentence; None if there is none."""
    methods = {name.partition(".")[2] for module in project.modules() for name, _ in module.methods}
    for module in sorted(project.modules(), key=lambda module: module.shown):
        found = [(node.lineno, what) for node, what in _hazards(module, project, methods)]
        if found:
            line, what = min(found)
            return f"{module.shown}:{line} {what}"
    return None


def _hazards(
    module: Module, project: Project, methods: set[str]
) -> Iterator[tuple[ast.expr | ast.stmt | ast.arg, str]]:
    for node in ast.walk(module.tree):
        match node:
            case ast.Import(names=names):
                yield from ((node, f"imports {one.name}") for one in names if _is_later(one.name))
            case ast.ImportFrom(module=str(name), level=0) if _is_later(name):
                yield node, f"imports {name}"
            case ast.ImportFrom(module=str(name), names=[ast.alias(name="*")]):
                if project.target(module, name)[0] is None:
                    yield node, f"imports every name of {name}"
            case ast.Name(id=name, ctx=ast.Store()) | ast.arg(arg=name) if name in module.imports:
                yield node, f"uses {name} for an import and a variable"
            case ast.Attribute() if resolved(node, module) in STREAMS:
                yield node, f"uses {ast.unparse(node)}"
            case ast.Name(id=name) | ast.Attribute(attr=name) if name in api.LATER["names"] - module.functions.keys():
                if isinstance(node, ast.Name) or name not in BUILTIN:
                    yield node, f"uses {name}"
            case ast.Attribute(ctx=ast.Store() | ast.Del(), attr=attr, value=value):
                if attr in methods or not _is_variable(value, module):
                    yield node, f"replaces {ast.unparse(node)}"
            case ast.Subscript(ctx=ast.Store() | ast.Del(), value=value) if not _is_variable(value, module):
                if resolved(value, module) != "os.environ":
                    yield node, f"replaces {ast.unparse(node)}"
            case ast.Call(func=func, keywords=words) if resolved(func, module) == "logging.basicConfig":
                if any(word.arg in {"filename", "handlers", "stream"} for word in words):
                    yield node, "logs to a file"
            case ast.ClassDef(keywords=[_, *_]):
                yield node, "has a metaclass"
            case ast.FunctionDef(name=name) if name in api.LATER["methods"] or node is module.functions.get(
                "__getattr__"
            ):
                yield node, f"defines {name}"
            case ast.Assign(value=ast.Name() | ast.Attribute() as value):
                is_import = (dotted_name(value) or "").partition(".")[0] in module.imports
                if is_import and api.is_module(resolved(value, module) or ""):
                    yield node, f"gives {ast.unparse(value)} another name"


def _is_later(name: str) -> bool:
    return name.partition(".")[0] in api.LATER["modules"]


def _is_variable(node: ast.expr, module: Module) -> bool:
    """Return whether a value is reached through a variable, and not through a library, a class or a function."""
    while isinstance(node, ast.Attribute | ast.Subscript):
        node = node.value
    if isinstance(node, ast.Call):
        return dotted_name(node.func) not in {"type", "super", "vars"}
    if not isinstance(node, ast.Name) or node.id == "self":
        return True
    is_defined = node.id in module.imports or node.id in module.classes or node.id in module.functions
    return not is_defined or (node.id in module.local and node.id not in module.imports)
