"""A script is submitted in parts only after they left the files of the script itself, in two orders."""

import sys
from pathlib import Path
from textwrap import dedent

import pytest
from msgspec.structs import replace

from gpuyard.learn.analysis import TaskGraph, Trial, analyze, try_division

SCRIPT = """
import os, sys
from pathlib import Path
SIZE = int(sys.argv[1])
def first(n): Path("a.txt").write_text("a" * n)
def second(n): Path("b.txt").write_text("b" * n + os.environ.get("MORE", ""))
def last(): Path("c.txt").write_text(Path("a.txt").read_text() + Path("b.txt").read_text())
first(SIZE)
second(SIZE)
last()
"""


def tried(path: Path, large: str = "1000", small: str = "3", **options: object) -> Trial:
    graph = analyze(path, [large], python=sys.executable)
    assert graph.is_divided
    return try_division(graph, analyze(path, [small], python=sys.executable), **options)  # type: ignore[arg-type]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "script.py"
    path.write_text(SCRIPT)
    return path


@pytest.mark.slow
def test_parts_that_leave_the_files_of_the_script_pass(path: Path) -> None:
    found = tried(path)
    assert (found.outcome, found.says) == (
        "equal",
        "The division was tried: its parts left the files of the script in both orders.",
    )
    assert [file.name for file in path.parent.iterdir()] == ["script.py"]  # only copies of the folder were written to


@pytest.mark.slow
def test_variables_of_the_trial_reach_the_script_and_its_parts(path: Path) -> None:
    (path.parent / "note.txt").write_text("here")
    source = SCRIPT.replace('os.environ.get("MORE", "")', 'Path(os.environ["MORE"]).read_text()')
    path.write_text(source)
    assert (
        tried(path).says == "The division could not be tried: the script ended with exit status 1 (KeyError: 'MORE')."
    )
    assert tried(path, variables={"MORE": "note.txt"}).outcome == "equal"


def wrong(graph: TaskGraph) -> TaskGraph:
    """A graph whose last part does not wait for the others."""
    *others, last = graph.requests
    return replace(graph, requests=(*others, replace(last, after=())))


@pytest.mark.slow
def test_a_missing_dependency_is_found(path: Path) -> None:
    path.with_name("b.txt").write_text("old")
    path.with_name("a.txt").write_text("old")
    large, small = (wrong(analyze(path, [size], python=sys.executable)) for size in ("1000", "3"))
    found = try_division(large, small)
    assert (found.outcome, found.says) == (
        "different",
        "The division failed its trial: its parts left another c.txt than the script.",
    )
    path.with_name("a.txt").unlink()
    assert "the part last ended with exit status 1 (FileNotFoundError" in try_division(large, small).says


@pytest.mark.slow
def test_numbers_in_texts_may_differ_by_rounding(tmp_path: Path) -> None:
    path = tmp_path / "script.py"
    path.write_text(
        dedent(
            """
            import os, sys
            from pathlib import Path
            TINY = float(os.environ.get("TINY", "0"))
            for i in range(2):
                Path(f"n_{i}.json").write_text(str(1 + TINY * int(os.environ.get("GPUYARD_ARRAY_INDEX", "0"))))
            """
        )
    )
    graph = analyze(path, python=sys.executable)
    assert [request.array for request in graph.requests] == [2]
    assert try_division(graph, graph, {"TINY": "1e-9"}).outcome == "equal"
    assert try_division(graph, graph, {"TINY": "1e-3"}).outcome == "different"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ('"c.txt"', '"/nowhere/c.txt"', "the script may write outside of its folder (/nowhere/c.txt)"),
        ("last()\n", "last()\nwhile True: pass\n", "the script took longer than the trial may take"),
    ],
)
def test_what_cannot_be_tried_is_said(path: Path, old: str, new: str, why: str) -> None:
    before, _, after = SCRIPT.rpartition(old)
    path.write_text(before + new + after)
    found = tried(path, seconds=2)
    assert (found.outcome, found.says) == ("not possible", f"The division could not be tried: {why}.")


@pytest.mark.slow
def test_a_script_without_files_or_without_its_interpreter_is_not_compared(path: Path) -> None:
    graph = analyze(path, ["3"], python="no-such-python")
    assert "cannot be started (No such file or directory: no-such-python)" in try_division(graph, graph).says
    path.write_text("def f(): return 1\ndef g(): return 2\nf()\ng()\n")
    assert tried(path).says.endswith("the script wrote no file that could be compared.")


def test_arguments_that_divide_the_script_differently_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "script.py"
    path.write_text(
        "import argparse\nfrom pathlib import Path\nparser = argparse.ArgumentParser()\n"
        "parser.add_argument('--n', type=int, default=3)\nargs = parser.parse_args()\n"
        "for i in range(args.n):\n    Path(f'{i}.txt').write_text('1')\n"
    )
    graph, small = analyze(path, python=sys.executable), analyze(path, ["--n", "1"], python=sys.executable)
    assert try_division(graph, small).says == (
        "The division could not be tried: with the arguments of the trial the script is divided differently."
    )
