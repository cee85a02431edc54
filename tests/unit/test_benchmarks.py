"""Every benchmark can be started: its imports exist."""

import subprocess
import sys
from pathlib import Path

import pytest

FILES = [file for file in sorted((Path(__file__).parents[2] / "benchmarks").glob("*.py")) if file.stem != "__init__"]


@pytest.mark.slow
@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_benchmark_describes_its_usage(file: Path) -> None:
    said = subprocess.run([sys.executable, file, "--help"], capture_output=True, text=True, timeout=120, check=False)
    assert said.returncode == 0, said.stderr
    assert "usage" in said.stdout.lower()
