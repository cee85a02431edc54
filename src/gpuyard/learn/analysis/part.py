"""`python -m gpuyard.learn.analysis.part SCRIPT --without LINES --round-of LINE -- WORDS`: run a part of a script.

The statements that begin on the lines of `--without` are left out. Of the loop that begins on the line of `--round-of` one round
is run, the one that GPUYARD_ARRAY_INDEX says. The rest runs as if the script had been called, with its own name, folder, arguments
and line numbers.
"""

import argparse
import ast
import os
import sys
from pathlib import Path
from types import ModuleType


class Part(ast.NodeTransformer):
    """A script with statements left out and one loop cut to one round; what would be empty passes."""

    def __init__(self, without: set[int], round_of: int | None, number: int) -> None:
        self._without, self._round_of, self._number = without, round_of, number

    def generic_visit(self, node: ast.AST) -> ast.AST:
        """One body after the other."""
        if isinstance(node, ast.For) and node.lineno == self._round_of:
            chosen = ast.parse(f"[list(_)[{self._number}]]", mode="eval").body
            assert isinstance(chosen, ast.List)
            assert isinstance(chosen.elts[0], ast.Subscript)
            assert isinstance(chosen.elts[0].value, ast.Call)
            chosen.elts[0].value.args = [node.iter]
            node.iter = ast.copy_location(chosen, node.iter)
            ast.fix_missing_locations(node)
        for name in ("body", "orelse", "finalbody"):
            body = getattr(node, name, None)
            if not isinstance(body, list):
                continue
            kept = [statement for statement in body if statement.lineno not in self._without]
            if body and not kept and name == "body":
                kept = [ast.copy_location(ast.Pass(), body[0])]
            setattr(node, name, kept)
        return super().generic_visit(node)


def main() -> None:
    """Run what is left."""
    parser = argparse.ArgumentParser(prog="python -m gpuyard.learn.analysis.part", description=__doc__)
    parser.add_argument("script")
    parser.add_argument("--without", default="", metavar="LINES")
    parser.add_argument("--round-of", type=int, metavar="LINE")
    own, _, words = _divided(sys.argv[1:])
    asked = parser.parse_args(own)
    without = {int(line) for line in asked.without.split(",") if line}
    number = int(os.environ.get("GPUYARD_ARRAY_INDEX", "0"))
    tree = ast.parse(Path(asked.script).read_bytes(), asked.script)
    tree = Part(without, asked.round_of, number).visit(tree)
    sys.argv = [asked.script, *words]
    sys.path[0] = str(Path(asked.script).resolve().parent)
    module = ModuleType("__main__")
    module.__dict__["__file__"] = asked.script
    sys.modules["__main__"] = module
    exec(compile(tree, asked.script, "exec"), module.__dict__)  # noqa: S102 - this is what it is for


def _divided(words: list[str]) -> tuple[list[str], list[str], list[str]]:
    """Before --, it, and behind it."""
    place = words.index("--") if "--" in words else len(words)
    return words[:place], words[place : place + 1], words[place + 1 :]


if __name__ == "__main__":
    main()
