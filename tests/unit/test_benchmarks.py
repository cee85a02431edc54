"""Every benchmark can be started: its imports exist."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "benchmarks"
FILES = [file for file in sorted(FOLDER.glob("*.py")) if file.stem != "__init__"]
# All in one process: what they import is loaded once.
STARTED = """
import contextlib, io, json, runpy, sys, traceback
said = {}
for file in sys.argv[1:]:
    sys.argv = [file, "--help"]
    printed = io.StringIO()
    try:
        with contextlib.redirect_stdout(printed):
            runpy.run_path(file, run_name="__main__")
    except SystemExit as ended:
        said[file] = [ended.code, printed.getvalue()]
    except BaseException:
        said[file] = [1, traceback.format_exc()]
print(json.dumps(said))
"""


@pytest.mark.slow
def test_every_benchmark_describes_its_usage() -> None:
    words = [sys.executable, "-c", STARTED, *map(str, FILES)]
    done = subprocess.run(words, cwd=FOLDER.parent, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    said: dict[str, tuple[int, str]] = json.loads(done.stdout)
    assert len(said) == len(FILES)
    assert {file: answer for file, answer in said.items() if answer[0] or "usage" not in answer[1].lower()} == {}
