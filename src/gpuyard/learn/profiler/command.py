"""Measures any command: its run time, and the resource usage of its GPU and processes."""

import os
import select
import subprocess
import time
from collections.abc import Sequence
from contextlib import nullcontext
from resource import RUSAGE_SELF, getrusage

import msgspec
import psutil

from gpuyard.learn.profiler.watch import GpuWatch


class CommandUsage(msgspec.Struct, frozen=True):
    """Resource usage of one command. GPU fields are None without a GPU, or if nothing was observed on it."""

    command: str
    exit_code: int
    seconds: float
    cpu_seconds: float
    memory_mib: float
    """Peak host memory of all its processes together."""
    gpu_memory_mib: float | None
    """Peak GPU memory of its processes."""
    utilization: float | None
    power_w: float | None
    energy_j: float | None


FIRST_SAMPLE_S = 0.005
"""Interval of the first samples: a command may be short, so sampling starts often and slows down with every sample."""


def watch_command(argv: Sequence[str], watch: GpuWatch | None, every_s: float = 0.1) -> CommandUsage:
    """Run the command to its end and sample it. Its output goes to our own output.

    CPU time and the peak memory of its largest process come from the kernel's accounting at its end; samples add
    processes that run at the same time, and processes that it does not wait for.

    If sampling fails, the error is raised after the end of the command.
    """
    own_mib, began = getrusage(RUSAGE_SELF).ru_maxrss / 2**10, time.monotonic()
    pause_s = min(FIRST_SAMPLE_S, every_s)
    host_mib, gpu_mib, cpu_s = 0.0, 0.0, 0.0
    with watch or nullcontext(), subprocess.Popen(list(argv)) as process:  # noqa: S603
        root = psutil.Process(process.pid)
        with os.fdopen(os.pidfd_open(process.pid)) as ending:
            while not select.select([ending], [], [], pause_s)[0]:
                pause_s = min(2 * pause_s, every_s)
                family = _family(root)
                host_mib = max(host_mib, sum(memory for memory, _ in family.values()))
                cpu_s = max(cpu_s, sum(cpu for _, cpu in family.values()))
                if watch:
                    gpu_mib = max(gpu_mib, watch.memory_of(set(family)))
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = code = os.waitstatus_to_exitcode(status)
        seconds = time.monotonic() - began
        cpu_s = max(cpu_s, used.ru_utime + used.ru_stime)
        peak_mib = used.ru_maxrss / 2**10
        if peak_mib > own_mib:  # otherwise it may be ours: the kernel starts to count before the program is loaded
            host_mib = max(host_mib, peak_mib)
    seen = watch.seen if watch else None
    return CommandUsage(
        " ".join(argv), code, seconds, cpu_s, host_mib, gpu_mib if watch else None,
        seen.utilization if seen else None, seen.power_w if seen else None,
        seen.power_w * seconds if seen and seen.power_w else None,
    )  # fmt: skip


def _family(process: psutil.Process) -> dict[int, tuple[float, float]]:
    """Return the memory in MiB and the CPU seconds of the process and each of its descendants."""
    found = {}
    try:
        for one in (process, *process.children(recursive=True)):
            with one.oneshot():
                times = one.cpu_times()
                found[one.pid] = (one.memory_info().rss / 2**20, times.user + times.system)
    except psutil.NoSuchProcess:
        return found
    return found
