"""Reads what the code says about itself: docstrings of classes, of their fields, and of enum members.

Python keeps no docstring of a field; it is the string that follows the field in the source.
"""

import ast
import inspect
from dataclasses import dataclass
from functools import cache
from types import ModuleType


@dataclass(frozen=True)
class Field:
    """A field of a class, as it is written."""

    name: str
    kind: str
    default: str
    doc: str


def said(thing: object) -> str:
    """The docstring of a module, class or function, on one line."""
    return " ".join((inspect.getdoc(thing) or "").split())


def paragraphs(module: ModuleType) -> str:
    """The docstring of a module, with its lines as they are."""
    return inspect.getdoc(module) or ""


def fields(kind: type) -> list[Field]:
    """The fields a class itself has (or the members, if it is an enum), in the order they are written."""
    body = _classes(inspect.getsourcefile(kind) or "")[kind.__name__].body
    found = []
    for place, line in enumerate(body):
        doc = _string(body[place + 1]) if place + 1 < len(body) else ""
        if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name):
            default = ast.unparse(line.value) if line.value else ""
            found.append(Field(line.target.id, ast.unparse(line.annotation), default, doc))
        elif isinstance(line, ast.Assign) and isinstance(line.targets[0], ast.Name):
            found.append(Field(line.targets[0].id, "", ast.unparse(line.value), doc))
    return found


@cache
def _classes(path: str) -> dict[str, ast.ClassDef]:
    with open(path, encoding="utf-8") as file:  # noqa: PTH123  inspect gives a string
        tree = ast.parse(file.read())
    return {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}


def _string(line: ast.stmt) -> str:
    """The words of a line that is only a string."""
    if isinstance(line, ast.Expr) and isinstance(line.value, ast.Constant) and isinstance(line.value.value, str):
        return " ".join(line.value.value.split())
    return ""
