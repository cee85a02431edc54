"""Profiling a command: its time, its resources, its end."""

import sys
from pathlib import Path

import pytest

from gpuyard.learn.profiler.command import watch_command

BUSY = "import time\nwhile time.process_time() < 0.3: pass"


def test_a_command_runs_to_its_end_and_its_exit_code_is_reported() -> None:
    seen = watch_command(["sh", "-c", "exit 3"], gpu=None)
    assert (seen.exit_code, seen.command) == (3, "sh -c exit 3")
    assert seen.seconds > 0
    assert (seen.gpu_memory_mib, seen.utilisation, seen.power_w, seen.energy_j) == (None, None, None, None)


def test_a_command_ended_by_a_signal_names_it() -> None:
    assert watch_command(["sh", "-c", "kill -9 $$"], gpu=None).exit_code == -9


def test_cpu_seconds_are_known_even_if_the_command_ended_before_the_first_sample() -> None:
    seen = watch_command([sys.executable, "-c", BUSY], gpu=None, every_s=60.0)
    assert 0.3 <= seen.cpu_seconds < 5


def test_cpu_seconds_of_ended_children_count() -> None:
    seen = watch_command(["sh", "-c", f"'{sys.executable}' -c '{BUSY}'; '{sys.executable}' -c '{BUSY}'"], gpu=None)
    assert seen.cpu_seconds >= 0.6


def test_the_memory_of_all_its_processes_is_added(tmp_path: Path) -> None:
    """Two processes of 100 MB each, which wait for each other so that both are there at once."""
    holds = "import pathlib, sys, time\nheld = bytearray(100_000_000)\npathlib.Path(sys.argv[1]).touch()\nwhile not pathlib.Path(sys.argv[2]).exists(): time.sleep(0.01)\nuntil = time.monotonic() + 0.5\nwhile time.monotonic() < until: time.sleep(0.01)"
    script = tmp_path / "holds.py"
    script.write_text(holds)
    a, b = tmp_path / "a", tmp_path / "b"
    line = f"'{sys.executable}' '{script}' '{a}' '{b}' & '{sys.executable}' '{script}' '{b}' '{a}'; wait"
    seen = watch_command(["sh", "-c", line], gpu=None, every_s=0.02)
    assert 200 <= seen.memory_mib < 600


def test_a_very_short_command_is_measured() -> None:
    seen = watch_command([sys.executable, "-c", "held = bytearray(50_000_000)"], gpu=None)
    assert seen.memory_mib > 1


@pytest.mark.parametrize("words", [["no-such-program"], ["/"]])
def test_a_command_that_cannot_run_is_an_error_and_leaves_nothing(words: list[str]) -> None:
    with pytest.raises(OSError, match=words[0]):
        watch_command(words, gpu=None)
