"""`.gpuyardignore`: the same files stay as with a `.gitignore` of the same content, which git itself decides here."""

import os
import subprocess
from pathlib import Path

import pytest

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


def test_a_question_mark_is_a_character_and_a_wrong_range_matches_nothing(tmp_path: Path) -> None:
    made(tmp_path, **{"": ["caf?.txt", "file[z-a]"]})
    assert set(FILES) - kept(tmp_path) == {"café.txt"}
