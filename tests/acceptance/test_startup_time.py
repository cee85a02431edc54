"""The command line starts quickly: CPU time above `python -c pass`, which other work of the machine hardly changes."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.acceptance.cli_cluster import GPUYARD, CliCluster, running_cluster

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CliCluster]:
    with running_cluster(tmp_path_factory.mktemp("cluster")) as made:
        yield made


def cpu_seconds(words: list[str], env: dict[str, str], folder: Path) -> float:
    """The least CPU time of a few calls."""
    found = []
    for _ in range(5):
        process = subprocess.Popen(words, env=env, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        assert process.returncode == 0, words
        found.append(used.ru_utime + used.ru_stime)
    return min(found)


@pytest.mark.parametrize(
    ("words", "most"),
    [
        ([sys.executable, "-c", "import gpuyard"], 0.15),
        ([GPUYARD, "--help"], 0.3),
        ([GPUYARD, "ps"], 0.3),
        ([GPUYARD, "submit", "-g", "0", "--cpus", "1", "true"], 0.3),
        ([GPUYARD, "run", "-q", "-g", "1", "--", "true"], 0.4),
    ],
)
def test_a_command_starts_quickly(cluster: CliCluster, words: list[str], most: float) -> None:
    base = cpu_seconds([sys.executable, "-c", "pass"], cluster.env, cluster.folder)
    assert cpu_seconds(words, cluster.env, cluster.folder) - base < most
