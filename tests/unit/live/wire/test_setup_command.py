"""The command line of a task with a setup command, run by the shells that `/bin/sh` is on most systems."""

import subprocess
from pathlib import Path

import pytest

from gpuyard.live.wire.setup_command import has_setup, with_setup

WORDS = ("printf", "<%s>", "a  b", "it's $HOME", "", "two\nlines")


def ran(shell: list[str], setup: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*shell, *with_setup(setup, WORDS)[1:]], cwd=folder, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize("shell", [["/bin/sh"], ["/bin/bash", "--posix"]])
@pytest.mark.parametrize(
    "setup",
    ["true", "set -- x", "shift", "set --", ". ./sets.sh", "alias exec=false printf=false", "IFS=' ab'; set -f"],
)
def test_no_setup_changes_the_words_of_the_command(shell: list[str], setup: str, tmp_path: Path) -> None:
    (tmp_path / "sets.sh").write_text("set -- y z\n")
    done = ran(shell, setup, tmp_path)
    assert (done.returncode, done.stdout) == (0, "<a  b><it's $HOME><><two\nlines>"), done.stderr


def test_a_setup_is_recognized_in_the_command_line_of_any_version() -> None:
    assert has_setup(with_setup("true", WORDS))
    assert has_setup(["/bin/sh", "-c", 'eval "$1" || exit; shift; exec "$@"', "gpuyard-setup", "true", *WORDS])
    assert not has_setup(["/bin/sh", "-c", "gpuyard-setup", "true"])
    assert not has_setup(["true"])
