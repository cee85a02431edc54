"""The page of findings names tests by path and name: each of them exists."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "hardening.md"
BELOW = (ROOT / "tests", ROOT, ROOT / "src" / "gpuyard")
NAME = re.compile(r"`([\w/]+\.py)?(?:::(\w+))?`")
FAULTS = re.compile(r"`simulation/test_faults\.py` \(([^)]*)\)")


def _named() -> Iterator[tuple[str, str]]:
    """Each file with a function, or with none; a function alone is of the file that was named last."""
    file = ""
    for path, function in NAME.findall(PAGE.read_text(encoding="utf-8")):
        file = path or file
        if path or function:
            yield file, function


def _functions(file: Path) -> set[str]:
    nodes = ast.walk(ast.parse(file.read_text(encoding="utf-8")))
    return {node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}


def test_every_test_that_the_page_of_findings_names_exists() -> None:
    named = list(_named())
    missing = []
    for path, function in named:
        file = next((folder / path for folder in BELOW if (folder / path).is_file()), None)
        if file is None or (function and function not in _functions(file)):
            missing.append(f"{path}::{function}" if function else path)
    assert len(named) > 50
    assert missing == []


def test_every_fault_that_the_page_of_findings_names_is_simulated() -> None:
    """Names with an underscore are faults, or counts of the ledger; the rest are words for people."""
    code = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "tests" / "simulation").rglob("*.py"))
    named = {
        word for names in FAULTS.findall(PAGE.read_text(encoding="utf-8")) for word in re.findall(r"\w+_\w+", names)
    }
    assert named
    assert sorted(word for word in named if word not in code) == []
