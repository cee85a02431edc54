"""A million calls on a thousand GPUs: read, planned and checked on one machine, close to the lower bound."""

import json
import os
import subprocess
import sys
from pathlib import Path

GPUYARD = str(Path(sys.executable).parent / "gpuyard")


def test_a_million_calls_are_planned_within_a_minute_and_two_gigabytes(tmp_path: Path) -> None:
    """What is good at ten thousand calls was bad at a million once, so this is the full size; of one core, the seconds."""
    file = str(tmp_path / "million.json")
    subprocess.run([GPUYARD, "plan", "generate", "multi_gpu", "1000000", "1000", "--out", file], check=True)
    solve = [GPUYARD, "plan", "solve", file, "--strategy", "heft_affinity", "--rounds", "2", "--json"]
    with subprocess.Popen(solve, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        said = json.loads(process.stdout.read())
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0
    assert said["valid"]
    assert said["gap"] < 0.02
    assert used.ru_utime + used.ru_stime < 60
    assert used.ru_maxrss < 2 * 1024 * 1024
