"""Which routes has a path? A look into a dictionary for most, a walk down a tree of its parts for those with names in them."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TypeAlias

from gpuyard.live.control_plane.rest.call import Route

MOST_PATH = 2048

Methods: TypeAlias = dict[str, Route]
"""The routes of one path, by method."""
Find: TypeAlias = Callable[[str], tuple[Methods | None, dict[str, str]]]


@dataclass(slots=True)
class _Step:
    """A place in the tree of paths."""

    methods: Methods = field(default_factory=dict)
    below: dict[str, "_Step"] = field(default_factory=dict)
    named: "_Step | None" = None
    """Whatever stands here has a name."""
    name: str = ""


def make_table(routes: Iterable[Route]) -> Find:
    """How to find the routes of a path, with the parts of it that have names."""
    root = _Step()
    whole: dict[str, Methods] = {}
    """Paths without names in them: most requests go there."""
    for route in routes:
        step = root
        for part in route.path.strip("/").split("/"):
            if part.startswith("{"):
                step.named = step.named or _Step()
                step = step.named
                step.name = part.strip("{}")
            else:
                step = step.below.setdefault(part, _Step())
        step.methods[route.method] = route
        if "{" not in route.path:
            whole[route.path] = step.methods

    def find(path: str) -> tuple[Methods | None, dict[str, str]]:
        named: dict[str, str] = {}
        methods = whole.get(path)
        if methods is not None or len(path) > MOST_PATH:
            return methods, named
        step = root
        for part in path.removeprefix("/").split("/"):
            below = step.below.get(part)
            if below is None and step.named is not None and part:
                below = step.named
                named[below.name] = part
            if below is None:
                return None, named
            step = below
        return step.methods or None, named

    return find
