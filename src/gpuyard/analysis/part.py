"""`python -m gpuyard.analysis.part SCRIPT --without LINES -- WORDS`: run a script without some of its statements.

The statements that begin on these lines are left out; the rest runs as if the script had been called, with its own name, folder,
arguments and line numbers.
"""

import ast
import sys
from pathlib import Path
from types import ModuleType


class Without(ast.NodeTransformer):
    """Leaves statements out by the lines they begin on; what would be empty passes."""

    def __init__(self, lines: set[int]) -> None:
        self._lines = lines

    def generic_visit(self, node: ast.AST) -> ast.AST:
        """One body after the other."""
        for name in ("body", "orelse", "finalbody"):
            body = getattr(node, name, None)
            if not isinstance(body, list):
                continue
            kept = [statement for statement in body if statement.lineno not in self._lines]
            if body and not kept and name == "body":
                kept = [ast.copy_location(ast.Pass(), body[0])]
            setattr(node, name, kept)
        return super().generic_visit(node)


def main() -> None:
    """Run what is left."""
    path, option, lines, *rest = sys.argv[1:]
    assert option == "--without", option
    tree = Without({int(line) for line in lines.split(",") if line}).visit(ast.parse(Path(path).read_bytes(), path))
    sys.argv = [path, *rest[1:]] if rest[:1] == ["--"] else [path, *rest]
    sys.path[0] = str(Path(path).resolve().parent)
    module = ModuleType("__main__")
    module.__dict__["__file__"] = path
    sys.modules["__main__"] = module
    exec(compile(tree, path, "exec"), module.__dict__)  # noqa: S102 - this is what it is for


if __name__ == "__main__":
    main()
