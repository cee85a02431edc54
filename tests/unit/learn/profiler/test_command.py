"""Profiling a command: its time, its resources, its end."""

import sys
from pathlib import Path
from resource import RUSAGE_SELF, getrusage

import pytest

from gpuyard.learn.profiler.command import watch_command
from gpuyard.learn.profiler.watch import GpuWatch
from tests.unit.learn.profiler.test_watch import FakeNvml, NVMLError

BUSY = "import time\nwhile time.process_time() < 0.3: pass"


def test_a_command_runs_to_its_end_and_its_exit_code_is_reported() -> None:
    seen = watch_command(["sh", "-c", "exit 3"], watch=None)
    assert (seen.exit_code, seen.command) == (3, "sh -c exit 3")
    assert seen.seconds > 0
    assert (seen.gpu_memory_mib, seen.utilization, seen.power_w, seen.energy_j) == (None, None, None, None)


def test_a_command_ended_by_a_signal_names_it() -> None:
    assert watch_command(["sh", "-c", "kill -9 $$"], watch=None).exit_code == -9


def test_cpu_seconds_are_known_even_if_the_command_ended_before_the_first_sample() -> None:
    seen = watch_command([sys.executable, "-c", BUSY], watch=None, every_s=60.0)
    assert 0.3 <= seen.cpu_seconds < 5


def test_cpu_seconds_of_ended_children_count() -> None:
    seen = watch_command(["sh", "-c", f"'{sys.executable}' -c '{BUSY}'; '{sys.executable}' -c '{BUSY}'"], watch=None)
    assert seen.cpu_seconds >= 0.6


def test_the_memory_of_all_its_processes_is_added(tmp_path: Path) -> None:
    """Two processes of 100 MB each, which wait for each other so that both are there at once."""
    holds = "import pathlib, sys, time\nheld = bytearray(100_000_000)\npathlib.Path(sys.argv[1]).touch()\nwhile not pathlib.Path(sys.argv[2]).exists(): time.sleep(0.01)\nuntil = time.monotonic() + 0.5\nwhile time.monotonic() < until: time.sleep(0.01)"
    script = tmp_path / "holds.py"
    script.write_text(holds)
    a, b = tmp_path / "a", tmp_path / "b"
    line = f"'{sys.executable}' '{script}' '{a}' '{b}' & '{sys.executable}' '{script}' '{b}' '{a}'; wait"
    seen = watch_command(["sh", "-c", line], watch=None, every_s=0.02)
    assert 200 <= seen.memory_mib < 600


def test_a_very_short_command_is_measured() -> None:
    seen = watch_command([sys.executable, "-c", "held = bytearray(50_000_000)"], watch=None)
    assert seen.memory_mib > 1


@pytest.mark.parametrize("words", [["no-such-program"], ["/"]])
def test_a_command_that_cannot_run_is_an_error_and_leaves_nothing(words: list[str]) -> None:
    with pytest.raises(OSError, match=words[0]):
        watch_command(words, watch=None)


def test_the_watch_is_ended_although_the_command_can_not_be_run() -> None:
    watch = GpuWatch(0, FakeNvml({}))
    with pytest.raises(OSError, match="no-such-program"):
        watch_command(["no-such-program"], watch)
    assert watch.seen is not None


class BrokenNvml(FakeNvml):
    """A GPU that fell off the bus."""

    def nvmlDeviceGetComputeRunningProcesses(self, _gpu: int) -> list[object]:  # noqa: N802 as NVIDIA spells it
        raise NVMLError("GPU is lost")


def test_a_command_whose_gpu_can_not_be_sampled_is_not_left_running(tmp_path: Path) -> None:
    over = tmp_path / "over"
    script = f"import pathlib, time\nwhile time.process_time() < 0.3: pass\npathlib.Path({str(over)!r}).touch()"
    with pytest.raises(NVMLError, match="GPU is lost"):
        watch_command([sys.executable, "-c", script], GpuWatch(0, BrokenNvml({})))
    assert over.exists()


def test_the_peak_memory_of_a_short_command_comes_from_the_kernel_not_from_samples() -> None:
    held_mib = int(2 * getrusage(RUSAGE_SELF).ru_maxrss / 2**10) + 200
    hold = f"b'x' * ({held_mib} * 2**20)"
    seen = watch_command([sys.executable, "-c", hold], watch=None, every_s=60.0)
    assert held_mib <= seen.memory_mib < 1.5 * held_mib


def test_memory_of_a_small_command_is_not_that_of_the_profiler() -> None:
    seen = watch_command(["sh", "-c", "sleep 0.3"], watch=None, every_s=0.02)
    assert 0.0 < seen.memory_mib < 30.0
