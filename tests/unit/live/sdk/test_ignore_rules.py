"""`.gpuyardignore`: the same files stay as with a `.gitignore` of the same content, which git itself decides here."""

import os
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

from gpuyard.core.domain.errors import WrongInput
from gpuyard.live.sdk.ignore_rules import IgnoreRules

FILES = (
    "a.txt", "b.pt", "src/a.txt", "src/deep/b.pt", "src/deep/keep.pt", "data/raw/x.csv", "data/y.csv", "data/raw/keep.csv", "x/data/z.csv",
    "#odd", "!odd", "sp ace", "trailing ", "file1", "file2", "filez", "file]", "file-", "a/b/c/d.log", "a/d.log", "a/bb/d.log", "build/out",
    "src/build/out", "builder", "back\\slash", "UPPER.TXT", "new/.hidden", "café.txt",
)  # fmt: skip
LISTS = (
    ["*.pt", "!keep.pt"], ["data/"], ["/data"], ["data/raw", "!data/raw/keep.csv"], ["data/raw/*", "!data/raw/keep.csv"],
    ["build"], ["/build/"], ["src/build"], ["a/**/d.log"], ["**/d.log"], ["a/**"], ["**"], ["*", "!src", "!*.txt"], ["*", "!*/", "!*.csv"],
    ["# comment", "", "\\#odd", "\\!odd"], ["file[12]"], ["file[!12]"], ["file[^0-9]"], ["file[]-]"], ["file[12"], ["file?"],
    ["trailing\\ "], ["sp ace   "], ["back\\\\slash"], ["*.TXT"], ["a/*/d.log"], ["/*.txt"], ["**/build/**"], [".*"],
    ["src/**/*.pt", "!src/deep/"], ["/"], ["!a.txt"], ["a.txt", "!a.txt"], ["*.txt\r"], ["foo**"], ["fi**1"], ["\\"], ["x/*"], ["deep/b.pt"],
)  # fmt: skip


def made(folder: Path, **files: list[str]) -> None:
    for name in FILES:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()
    for where, lines in files.items():
        (folder / where.replace("_", "/") / ".gpuyardignore").write_text("\n".join(lines) + "\n")


def kept(folder: Path) -> set[str]:
    rules = IgnoreRules(folder)
    every = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file() and ".git" not in path.parts}
    return {path for path in every if not rules.leaves_out(path, is_folder=False)}


def kept_by_git(folder: Path) -> set[str]:
    env = {**os.environ, "GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_SYSTEM": "/dev/null"}
    subprocess.run(["git", "init", "-q", folder], check=True, env=env)
    words = ["git", "-C", str(folder), "ls-files", "-o", "-z", "--exclude-per-directory=.gpuyardignore"]
    done = subprocess.run(words, check=True, env=env, capture_output=True)
    return {os.fsdecode(name) for name in done.stdout.split(b"\0") if name}


@pytest.mark.parametrize("lines", LISTS, ids=" ".join)
def test_a_list_leaves_out_what_git_would(lines: list[str], tmp_path: Path) -> None:
    made(tmp_path, **{"": lines})
    assert kept(tmp_path) == kept_by_git(tmp_path)


def test_a_list_in_a_folder_counts_from_there_and_comes_before_that_above(tmp_path: Path) -> None:
    made(
        tmp_path,
        **{
            "": ["*.pt", "/data", "d.log"],
            "src_deep": ["!b.pt"],
            "src": ["/a.txt"],
            "a": ["!d.log", "b"],
            "data": ["!y.csv"],
        },
    )
    found = kept(tmp_path)
    assert found == kept_by_git(tmp_path)
    assert {"src/deep/b.pt", "a/d.log", "a/bb/d.log"} <= found
    assert not {"src/a.txt", "src/deep/keep.pt", "a/b/c/d.log", "data/y.csv"} & found


def test_defaults_come_first(tmp_path: Path) -> None:
    made(tmp_path, **{"": ["!b.pt"]})
    rules = IgnoreRules(tmp_path, ("*.pt", "data"))
    assert [rules.leaves_out(name, is_folder=False) for name in ("b.pt", "src/deep/keep.pt", "data/y.csv")] == [
        False,
        True,
        True,
    ]


def test_a_question_mark_is_a_character(tmp_path: Path) -> None:
    made(tmp_path, **{"": ["caf?.txt"]})
    assert set(FILES) - kept(tmp_path) == {"café.txt"}


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("*a" * 14 + "b", "a" * 200),
        ("**/" * 12 + "x", "/".join(["d"] * 300)),
        ("**/*a*a/" * 9 + "x", "/".join(["a" * 50] * 20)),
    ],
    ids=["stars", "folders", "both"],
)
def test_no_line_takes_long(line: str, name: str) -> None:
    """In a process of its own: an expression that goes back and forth cannot be interrupted."""
    asks = "import sys; from gpuyard.live.sdk.ignore_rules import rule_of; print(rule_of(sys.argv[1]).paths.fullmatch(sys.argv[2]))"
    done = subprocess.run(
        [sys.executable, "-c", asks, line, name], capture_output=True, text=True, timeout=10, check=True
    )
    assert done.stdout == "None\n"


@pytest.mark.parametrize(
    "line",
    ["file[a--b]1", "file[[1]", "file[1--]", "file[a&&1]", "file[1||2]", "file[1~~2]", "file[z-a]", "file[!z-a]"],
)
def test_signs_in_brackets_are_signs(line: str, tmp_path: Path) -> None:
    made(tmp_path, **{"": [line]})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert kept(tmp_path) == kept_by_git(tmp_path)


def test_a_list_that_is_no_file_is_refused_at_once(tmp_path: Path) -> None:
    path = tmp_path / ".gpuyardignore"
    for make, said in (
        (lambda: os.mkfifo(path), "this is a pipe, not a file"),
        (lambda: path.symlink_to("/dev/zero"), "this is a device, not a file"),
        (lambda: path.write_bytes(b"\n" * ((1 << 20) + 1)), "it is larger than 1 MiB"),
        (lambda: path.write_text("x\n" + "*" * 4097), "line 2: it has more than 4,096 characters"),
    ):
        make()
        with pytest.raises(WrongInput, match=said):
            IgnoreRules(tmp_path).leaves_out("a", is_folder=False)
        path.unlink()
