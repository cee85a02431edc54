"""The real console script in its own process."""

import subprocess
import sys
from pathlib import Path

import pytest

from gpuyard import __version__

GPUYARD = Path(sys.executable).with_name("gpuyard")


def gpuyard(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([GPUYARD, *words], capture_output=True, text=True, timeout=120, check=False)


def test_help_names_every_command() -> None:
    done = gpuyard("--help")

    assert done.returncode == 0
    assert all(verb in done.stdout for verb in ("submit", "plan", "simulate"))
    assert done.stderr == ""


def test_help_loads_nothing_heavy() -> None:
    look = "import sys; import gpuyard.cli; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", look], capture_output=True, text=True, check=True).stdout.split()

    assert not {"rich", "msgspec", "gpuyard.core.engine", "gpuyard.simulator", "pydantic"} & set(loaded)


def test_version() -> None:
    assert gpuyard("--version").stdout == f"gpuyard {__version__}\n"


def test_a_closed_pipe_ends_a_command_without_a_traceback() -> None:
    line = f"'{GPUYARD}' plan generate chain 20000 4 | head -c 1"
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, timeout=120, check=False)

    assert (done.stdout, done.stderr) == ("{", "")


@pytest.mark.parametrize(
    "words", [("simulate", "--colour"), ("plan", "generate", "chain", "0", "1"), ("submit", "-g", "x")]
)
def test_wrong_use_is_one_sentence_and_code_2(words: tuple[str, ...]) -> None:
    done = gpuyard(*words)

    assert done.returncode == 2
    assert done.stdout == ""
    assert len(done.stderr.splitlines()) == 1
