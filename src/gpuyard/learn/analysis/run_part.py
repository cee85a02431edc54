"""`python -m …run_part SCRIPT --analyzed FILE=DIGEST --without LINES --round-of LINE -- ARGUMENTS`: run a part of a script.

The statements that begin on the lines of `--without` are left out. Of the loop that begins on the line of `--round-of`
one iteration runs, the one selected by GPUYARD_ARRAY_INDEX. The rest runs as if the script had been called, with its
own name, folder, arguments and line numbers. Nothing runs if the script, or a file of its project, is not as it was
when it was analyzed: other statements may be on these lines, and their dependencies are not known.
"""

import argparse
import ast
import os
import sys
from pathlib import Path
from types import ModuleType

from gpuyard.learn.analysis.source import digest


class Part(ast.NodeTransformer):
    """A script with statements left out and one loop cut to one iteration; an empty body becomes `pass`."""

    def __init__(self, without: set[int], round_of: int | None, number: int) -> None:
        self._without, self._round_of, self._number = without, round_of, number

    def generic_visit(self, node: ast.AST) -> ast.AST:
        """Transform each body of a node."""
        if isinstance(node, ast.For) and node.lineno == self._round_of:
            every = ast.Call(ast.Name("list", ast.Load()), [node.iter], [])
            chosen = ast.Subscript(every, ast.Constant(self._number), ast.Load())
            node.iter = ast.copy_location(ast.List([chosen], ast.Load()), node.iter)
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


def changed(folder: Path, analyzed: list[str]) -> str | None:
    """Return the first file that is not as it was when it was analyzed; None if all are."""
    for name, _, known in (one.rpartition("=") for one in analyzed):
        try:
            source = (folder / name).read_bytes()
        except OSError:
            return name
        if digest(source) != known:
            return name
    return None


def main() -> None:
    """Run the remaining script."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("script")
    parser.add_argument("--analyzed", action="append", default=[], metavar="FILE=DIGEST")
    parser.add_argument("--without", default="", metavar="LINES")
    parser.add_argument("--round-of", type=int, metavar="LINE")
    place = sys.argv.index("--") if "--" in sys.argv else len(sys.argv)
    options = parser.parse_args(sys.argv[1:place])
    other = changed(Path(options.script).parent, options.analyzed)
    if other is not None:
        sys.exit(f"{other} was changed after the script was divided; analyze and submit {options.script} again.")
    without = {int(line) for line in options.without.split(",") if line}
    number = int(os.environ.get("GPUYARD_ARRAY_INDEX", "0"))
    tree = ast.parse(Path(options.script).read_bytes(), options.script)
    tree = Part(without, options.round_of, number).visit(tree)
    sys.argv = [options.script, *sys.argv[place + 1 :]]
    sys.path[0] = str(Path(options.script).resolve().parent)
    module = ModuleType("__main__")
    module.__dict__["__file__"] = options.script
    sys.modules["__main__"] = module
    exec(compile(tree, options.script, "exec"), module.__dict__)  # noqa: S102 - this is what it is for


if __name__ == "__main__":
    main()
