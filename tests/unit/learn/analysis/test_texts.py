"""Paths out of expressions, and which of them can be the same file."""

import ast
from pathlib import Path

import pytest

from gpuyard.learn.analysis.sources import read_module
from gpuyard.learn.analysis.texts import Scope, meet, options_of, text

HEAD = """
import os, sys
from os.path import join
from pathlib import Path
OUT = "runs"
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
        ("(Path(OUT) / 'm.pt').with_suffix('.onnx')", "runs/m.onnx"),
        ("Path('a/b/c').parent", "a/b"),
        ("Path('a/b/c').parents[1]", "a"),
        ("'log_%d.txt' % i", "log_*.txt"),
        ("'{}/x'.format(OUT)", "*/x"),
        ("args.out", "there"),
        ("config['out']", "there"),
        ("sys.argv[2]", "second"),
        ("os.environ.get('DATA', '/data')", "/data"),
        ("unknown", None),
        ("TWICE", None),
        ("LEFT + '/' + OTHER", "l/same"),
        ("RIGHT / ONE", "r/same"),
        ("GROWN", None),
        ("LEFT_OVER", None),
        ("f'{a}/{b}'", None),
    ],
)
def test_a_text_is_reckoned_as_far_as_it_is_written_down(tmp_path: Path, expression: str, meant: str | None) -> None:
    path = tmp_path / "a.py"
    path.write_text(HEAD)
    scope = Scope(read_module(path, "a.py"), options={"out": "there"}, words=("first", "second"))
    assert text(ast.parse(expression, mode="eval").body, scope) == meant


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
        ("*/a.html", "tests/*", False),
        ("*/src", "pyproject.toml", False),
    ],
)
def test_two_paths_meet_if_one_file_can_be_both_or_one_holds_the_other(one: str, other: str, same: bool) -> None:
    assert meet(one, other) is same
    assert meet(other, one) is same


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
