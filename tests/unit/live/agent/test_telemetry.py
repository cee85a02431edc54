"""When a GPU counts as used from outside."""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gpuyard.core.domain.values import GpuHealth
from gpuyard.live.agent import telemetry
from gpuyard.live.agent.inventory import GpuDevice, GpuProcess, GpuUsage
from gpuyard.live.agent.supervisor import proc, process_tag
from gpuyard.live.agent.supervisor.messages import AttemptKey
from gpuyard.live.agent.telemetry import GpuReading, Occupant
from tests.unit.live.agent.supervised import until

FOLDER_MARK = "feedfacefeedface"
CARDS = (GpuDevice(0, "GPU-a", "A100", 81920), GpuDevice(1, "GPU-b", "A100", 81920))
Starter = Callable[..., int]


@pytest.fixture
def starts() -> Iterator[Starter]:
    """Start processes that do nothing; they end with the test."""
    started = []

    def start(
        key: AttemptKey | None = None, program: str = "import time; time.sleep(600)", session: bool = False
    ) -> int:
        env = {} if key is None else {process_tag.NAME: process_tag.value(FOLDER_MARK, key)}
        words = [sys.executable, "-c", program]
        process = subprocess.Popen(words, env=env, start_new_session=session)
        started.append(process)
        shown = "".join(f"{word}\0" for word in words)
        while Path(f"/proc/{process.pid}/cmdline").read_text() != shown and not _is_over(process.pid):
            time.sleep(0.001)  # for a moment it still shows our name, or no arguments and environment at all
        return process.pid

    yield start
    for process in started:
        process.kill()
        process.wait()


def _is_over(pid: int) -> bool:
    found = proc.process(pid)
    return found is None or found.is_over


def judge(pid: int, *occupants: Occupant, display: bool = False) -> GpuReading:
    """The state of GPU 0 with this process on it."""
    uses = [GpuUsage(0, processes=(GpuProcess(pid, 100, display),)), GpuUsage(1)]
    return telemetry.gpus(CARDS, uses, occupants, FOLDER_MARK)[0]


def test_an_unknown_process_makes_a_gpu_external(starts: Starter) -> None:
    pid = starts()
    until(lambda: f"Process {pid} (python" in judge(pid).why)  # a process that has just begun has our name for a moment
    gpu = judge(pid)
    assert gpu.health == GpuHealth.EXTERNAL
    assert "not started by gpuyard" in gpu.why


def test_the_process_of_the_holder_does_not(starts: Starter) -> None:
    pid = starts(AttemptKey(7, 1))
    gpu = judge(pid, Occupant(AttemptKey(7, 1), 1, (0,)))
    assert (gpu.health, gpu.users[0].key) == (GpuHealth.OK, AttemptKey(7, 1))


def test_a_process_in_the_holders_session_belongs_to_the_holder(starts: Starter) -> None:
    pid = starts(session=True)
    assert judge(pid, Occupant(AttemptKey(7, 1), pid, (0,))).health == GpuHealth.OK


def test_a_descendant_of_the_holder_belongs_to_the_holder(starts: Starter) -> None:
    pid = starts()
    assert judge(pid, Occupant(AttemptKey(7, 1), os.getpid(), (0,))).health == GpuHealth.OK


def test_a_task_on_a_gpu_it_was_not_given_makes_it_external(starts: Starter) -> None:
    gpu = judge(starts(AttemptKey(7, 1)), Occupant(AttemptKey(7, 1), 1, (1,)))
    assert gpu.health == GpuHealth.EXTERNAL
    assert "task 7" in gpu.why


def test_a_task_that_has_just_started_does_not(starts: Starter) -> None:
    assert judge(starts(AttemptKey(8, 1))).health == GpuHealth.OK


def test_on_a_leased_gpu_anything_may_run(starts: Starter) -> None:
    assert judge(starts(), Occupant(AttemptKey(7, 1), 0, (0,), lease=True)).health == GpuHealth.OK
    assert judge(starts(), Occupant(AttemptKey(7, 1), 0, (1,), lease=True)).health == GpuHealth.EXTERNAL


def test_a_graphics_process_does_not(starts: Starter) -> None:
    gpu = judge(starts(), display=True)
    assert (gpu.health, gpu.users[0].display) == (GpuHealth.OK, True)


def test_a_desktop_that_computes_a_little_does_not(starts: Starter) -> None:
    pid = starts(program="open('/proc/self/comm', 'w').write('gnome-shell'); import time; time.sleep(600)")
    until(lambda: Path(f"/proc/{pid}/comm").read_text() == "gnome-shell\n")
    assert judge(pid).health == GpuHealth.OK


def test_an_ended_process_does_not(starts: Starter) -> None:
    pid = starts(program="")
    until(lambda: _is_over(pid))
    os.waitpid(pid, 0)
    assert judge(pid).health == GpuHealth.OK


def test_a_broken_gpu_is_offline() -> None:
    gpu = telemetry.gpus(CARDS[:1], [GpuUsage(0, broken="It fell off the bus.")], (), FOLDER_MARK)[0]
    assert (gpu.health, gpu.why) == (GpuHealth.OFFLINE, "It fell off the bus.")


def test_a_virtual_gpu_is_never_external(starts: Starter) -> None:
    card, use = (
        GpuDevice(0, "VIRTUAL-a", "virtual", 1024, virtual=True),
        GpuUsage(0, processes=(GpuProcess(starts(), 1, False),)),
    )
    assert telemetry.gpus([card], [use], (), FOLDER_MARK)[0].health == GpuHealth.OK


def test_the_host_is_measured(tmp_path: Path) -> None:
    host = telemetry.host(tmp_path)
    assert 0 <= host.cpu_percent <= 100
    assert 0 < host.memory_used_mib < host.memory_mib
    assert host.load >= 0
    assert host.disk_free_mib > 0
