"""Completion where a command, a job script or a task file is named: files of the folder, besides programs of PATH."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from gpuyard.cli.shell.answer import completions
from gpuyard.cli.shell.scripts import BASH

COMPLETE = """
compopt() { :; }  # it works only while a key is handled
gpuyard() { "$PYTHON" -m gpuyard.cli "$@"; }
COMP_WORDS=(gpuyard "$@") COMP_CWORD=$#
_gpuyard gpuyard "${!#}" "${COMP_WORDS[COMP_CWORD-1]}"
printf '%s\\n' "${COMPREPLY[@]}"
"""


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("submit", "mul"), [":command 1", ":files"]),
        (("run", "-g", "1", "mul"), [":command 3", ":files"]),
        (("run", "-g", "1", "--", "mul"), [":command 4", ":files"]),
        (("run", "-g", "1", "--", "python", "tr"), [":command 4"]),
        (("sbatch", "mul"), [":files"]),
        (("sbatch", "--json", "mul"), [":files"]),
        (("sbatch", "multi.sh", "x"), [":command 1"]),
        (("lease", "mul"), []),
    ],
)
def test_the_shell_is_asked_for_programs_and_files(words: tuple[str, ...], expected: list[str]) -> None:
    assert completions(list(words)) == expected


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("sbatch", "mu"), {"multi.sh", "music"}),
        (("submit", "mul"), {"multi.sh"}),
        (("submit", "-g", "1", "tas"), {"tasks.yaml"}),
        (("submit", "music/t"), {"music/tune.sh"}),
        (("run", "--", "mul"), {"multi.sh"}),
        (("run", "--", "mul", "tas"), {"tasks.yaml"}),
        (("submit", "onpa"), {"onpath"}),
    ],
)
def test_bash_offers_files_and_folders_besides_programs(
    words: tuple[str, ...], expected: set[str], tmp_path: Path
) -> None:
    folder, programs = tmp_path / "here", tmp_path / "bin"
    (folder / "music").mkdir(parents=True)
    programs.mkdir()
    for name in ("multi.sh", "tasks.yaml", "music/tune.sh"):
        (folder / name).write_text("")
    (programs / "onpath").write_text("#!/bin/sh\n")
    (programs / "onpath").chmod(0o755)
    env = {**os.environ, "PYTHON": sys.executable, "PATH": f"{programs}:{os.environ['PATH']}"}
    done = subprocess.run(
        ["bash", "--norc", "-c", f"{BASH}\n{COMPLETE}", "bash", *words],
        cwd=folder, env=env, capture_output=True, text=True, check=True, timeout=60,
    )  # fmt: skip
    assert expected <= set(done.stdout.splitlines())
    assert all(line.startswith(words[-1]) for line in done.stdout.splitlines())
