"""Paths out of expressions, and which of them may be the same file."""

import ast
from pathlib import Path

import pytest

from gpuyard.learn.analysis.paths import EACH, NameScope, may_meet, options_of, text
from gpuyard.learn.analysis.source import read_module

HEAD = """
import os, sys
from os.path import join
from pathlib import Path
OUT = "runs"
COUNT = 3
TWICE = "a"
TWICE = "b"
LEFT, (RIGHT, _) = "l", (Path("r"), 3)
ONE = OTHER = "same"
GROWN = "g"
GROWN += "h"
for LEFT_OVER in ("x", "y"): pass
"""


@pytest.mark.parametrize(
    ("expression", "meant"),
    [
        ("'a' + '/b'", "a/b"),
        ("os.path.join(OUT, 'x', name)", "runs/x/*"),
        ("join('a', 'b')", "a/b"),
        ("f'{OUT}/part_{i:03d}.npy'", "runs/part_*.npy"),
        ("Path(OUT) / 'm' / f'{i}.pt'", "runs/m/*.pt"),
        ("(Path(OUT) / 'm.pt').with_suffix('.onnx')", None),
        ("Path('a/b/c').parent", "a/b"),
        ("args.out", "there"),
        ("sys.argv[2]", "second"),
        ("unknown", None),
        ("TWICE", None),
        ("ONE", "same"),
        ("'part_' + str(COUNT)", "part_3"),
        ("COUNT + 1", None),
        ("other.out", None),
        ("os.environ.get('DATA', '/data')", None),
        ("f'{a}/{b}'", "*/*"),
        ("LEFT", None),
        ("GROWN", None),
        ("LEFT_OVER", None),
    ],
)
def test_a_string_is_known_as_far_as_it_is_literal(tmp_path: Path, expression: str, meant: str | None) -> None:
    path = tmp_path / "a.py"
    path.write_text(HEAD)
    scope = NameScope(read_module(path, "a.py"), options={"out": "there"}, arguments=("first", "second"))
    found = text(ast.parse(expression, mode="eval").body, scope)
    assert found == meant


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("a/b", "./a/b", True),
        ("a/b", "a/c", False),
        ("out", "out/model.pt", True),
        ("out", "output/model.pt", False),
        ("part_*.npy", "part_7.npy", True),
        ("part_*.npy", "part_7.csv", False),
        ("runs/*/x", "runs/a*", True),
        ("*/model.pt", "runs/model.pt", True),
        ("*/a.html", "tests/*", True),
        ("*/src.py", "pyproject.toml", False),
        ("*/x.npy", "x.npy", True),
        ("a/b/../x.npy", "a/y.npy", True),
        ("a*b*c.npy", "a1d2c.npy", False),
        ("a*1.npy", "ac*2.npy", False),
        ("*", "anything/at/all", True),
        ("/data/out/x.npy", "x.npy", True),
        ("/data/out/x.npy", "y.npy", False),
        ("../x.npy", "/data/x.npy", True),
    ],
)
def test_two_paths_may_overlap_if_one_file_can_be_both_or_contain_the_other(one: str, other: str, same: bool) -> None:
    assert may_meet(one, other) is same
    assert may_meet(other, one) is same


def test_options_have_their_defaults_until_the_command_line_says_otherwise(tmp_path: Path) -> None:
    path = tmp_path / "a.py"
    path.write_text(
        "import argparse\np = argparse.ArgumentParser()\np.add_argument('source')\n"
        "p.add_argument('-o', '--out-dir', default='runs')\np.add_argument('--n', type=int, default=3)\n"
    )
    module = read_module(path, "a.py")
    assert options_of(module) == {"out_dir": "runs", "n": "3"}
    assert options_of(module, ["data.csv", "--out-dir=x", "--n", "5"]) == {
        "source": "data.csv",
        "out_dir": "x",
        "n": "5",
    }


@pytest.mark.parametrize(
    ("expression", "differs"),
    [
        ("f'{i}.pt'", True),
        ("f'{i:03d}.pt'", True),
        ("f'{i:.1f}.pt'", False),
        ("f'{i!r:>2}.pt'", False),
        ("f'{i}_{name}.pt'", False),
        ("str(i) + '.pt'", True),
        ("f'{i + 1}.pt'", False),
    ],
)
def test_a_path_differs_in_every_iteration_only_if_nothing_else_in_it_is_unknown(
    tmp_path: Path, expression: str, differs: bool
) -> None:
    path = tmp_path / "a.py"
    path.write_text("")
    scope = NameScope(read_module(path, "a.py"), {"i": EACH})
    found = text(ast.parse(expression, mode="eval").body, scope)
    assert found is not None
    assert (EACH in found and "*" not in found) is differs
