"""The clocks of a run are reset however the run ends; NVML is a module that writes to a pipe."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import pytest

from gpuyard.system.clock_guard import guard
from tests.unit.system.test_gpu_clocks import FakeNvml

NVML = """
import os

class NVMLError(Exception): pass
class NVMLError_NoPermission(NVMLError): pass

def _say(words):
    with open(os.environ["HEARD"], "w") as pipe:
        pipe.write(words + "\\n")

def nvmlInit(): pass
def nvmlDeviceGetTotalEnergyConsumption(gpu): raise NVMLError("Not Supported")
def nvmlDeviceGetHandleByIndex(number): return number
def nvmlDeviceSetGpuLockedClocks(gpu, low, high): _say(f"{gpu} {low}")
def nvmlDeviceResetGpuLockedClocks(gpu): _say(f"{gpu} reset")
"""
LOCKS_TWO = """
import sys, pynvml
from gpuyard.system.clock_guard import ClockGuard
from gpuyard.system.gpu_clocks import Clocks

clocks = Clocks(pynvml, ClockGuard())
clocks.lock("0", 900)
clocks.lock("1", 1200)
clocks.free("1")
{then}
"""


@pytest.fixture
def heard(tmp_path: Path) -> Iterator[IO[str]]:
    (tmp_path / "pynvml.py").write_text(NVML)
    os.mkfifo(tmp_path / "heard")
    with os.fdopen(os.open(tmp_path / "heard", os.O_RDWR), "r", closefd=True, buffering=1) as pipe:
        yield pipe


def process(tmp_path: Path, then: str) -> subprocess.Popen[str]:
    env = os.environ | {"PYTHONPATH": str(tmp_path), "HEARD": str(tmp_path / "heard")}
    return subprocess.Popen(
        [sys.executable, "-c", LOCKS_TWO.format(then=then)], env=env, stdin=subprocess.PIPE, text=True
    )


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_the_clock_that_a_killed_process_had_locked_is_reset(
    tmp_path: Path, heard: IO[str], how: signal.Signals
) -> None:
    with process(tmp_path, "sys.stdin.read()") as run:
        assert [heard.readline() for _ in range(3)] == ["0 900\n", "1 1200\n", "1 reset\n"]
        run.send_signal(how)
        assert heard.readline() == "0 reset\n"


LEVELS = [{"speed": 1.0, "watts": 300}, {"speed": 0.5, "watts": 100, "mhz": 600}]
PROBLEM = {
    "format": "planner-instance/1",
    "name": "one",
    "models": {"m": {"memory_gb": 1, "load_time_s": 0}},
    "gpus": [{"id": 0, "idle_watts": 50, "levels": LEVELS}],
    "workflows": {"w": {"nodes": [{"id": "a", "model": "m", "exec_time": 1}]}},
    "requests": [{"id": "r", "workflow": "w"}],
}
PLAN = {
    "format": "planner-plan/1",
    "instance": "one",
    "tasks": [{"request": "r", "node": "a", "gpus": [0], "start": 0, "end": 2, "level": 1}],
}


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_a_killed_or_interrupted_plan_run_leaves_no_locked_clock(
    tmp_path: Path, heard: IO[str], how: signal.Signals
) -> None:
    (tmp_path / "one.json").write_text(json.dumps(PROBLEM))
    (tmp_path / "plan.json").write_text(json.dumps(PLAN))
    (tmp_path / "runtimes.json").write_text(json.dumps({"models": {"m": {"python": "endless:Model"}}}))
    (tmp_path / "endless.py").write_text("class Model:\n    def __call__(self, question):\n        while True: pass\n")
    words = ["plan", "run", "one.json", "--plan", "plan.json", "--runtimes", "runtimes.json"]
    env = os.environ | {"PYTHONPATH": str(tmp_path), "HEARD": str(tmp_path / "heard")}
    with subprocess.Popen(
        [sys.executable, "-m", "gpuyard.cli", *words], env=env, cwd=tmp_path, stdout=subprocess.DEVNULL
    ) as run:
        assert heard.readline() == "0 600\n"
        run.send_signal(how)
        assert heard.readline() == "0 reset\n"


def test_a_run_that_fails_without_cleaning_up_is_cleaned_up_after(tmp_path: Path, heard: IO[str]) -> None:
    with process(tmp_path, "raise SystemError"):
        assert [heard.readline() for _ in range(4)][3] == "0 reset\n"


def test_what_the_run_reset_itself_is_left_alone() -> None:
    nvml = FakeNvml()
    guard(nvml, ["lock GPU-a\n", "lock GPU-a\n", "free GPU-a\n"])
    assert nvml.clocks == {}


def test_a_gpu_that_is_gone_does_not_keep_others_locked() -> None:
    nvml = FakeNvml()
    nvml.clocks["GPU-a"] = 900, 900
    guard(nvml, ["lock GPU-z\n", "lock GPU-a\n"])
    assert nvml.clocks == {}
