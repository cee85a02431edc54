"""Watch any command: how long it ran, what its GPUs and its processes did meanwhile."""

import subprocess
import time
from collections.abc import Sequence
from resource import RUSAGE_CHILDREN, getrusage

import msgspec
import psutil

from gpuyard.learn.profiler.watch import GpuWatch


class CommandUsage(msgspec.Struct, frozen=True):
    """Of one command. None where there is no GPU, or nothing was seen on it."""

    command: str
    exit_code: int
    seconds: float
    cpu_seconds: float
    memory_mib: float
    """The most its processes held together, of the host."""
    gpu_memory_mib: float | None
    """The most they held on the GPU."""
    utilisation: float | None
    power_w: float | None
    energy_j: float | None


FIRST_LOOK_S = 0.005
"""A command may be over soon, so it is looked at often in the beginning and less often with every look."""


def watch_command(argv: Sequence[str], gpu: int | None, every_s: float = 0.1) -> CommandUsage:
    """Run it to its end. Its output goes where ours goes."""
    watch = GpuWatch(gpu) if gpu is not None else None
    before, began = _ended_cpu_s(), time.monotonic()
    pause_s = min(FIRST_LOOK_S, every_s)
    if watch:
        watch.__enter__()
    process = subprocess.Popen(list(argv))  # noqa: S603
    host_mib, gpu_mib, cpu_s = 0.0, 0.0, 0.0
    known = {process.pid: psutil.Process(process.pid)}
    while True:
        try:
            code = process.wait(pause_s)
            break
        except subprocess.TimeoutExpired:
            pause_s = min(2 * pause_s, every_s)
            family = _family(known[process.pid])
            host_mib = max(host_mib, sum(memory for memory, _ in family.values()))
            cpu_s = max(cpu_s, sum(cpu for _, cpu in family.values()))
            if watch:
                gpu_mib = max(gpu_mib, watch.memory_of(set(family)))
    seconds = time.monotonic() - began
    cpu_s = max(cpu_s, _ended_cpu_s() - before)
    if watch:
        watch.__exit__(None, None, None)
    seen = watch.seen if watch else None
    return CommandUsage(
        " ".join(argv), code, seconds, cpu_s, host_mib, gpu_mib if watch else None,
        seen.utilisation if seen else None, seen.power_w if seen else None,
        seen.power_w * seconds if seen and seen.power_w else None,
    )  # fmt: skip


def _ended_cpu_s() -> float:
    """Processor seconds of all processes that have ended below this one, as far as somebody waited for them."""
    used = getrusage(RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _family(process: psutil.Process) -> dict[int, tuple[float, float]]:
    """Its processes: memory in MiB and processor seconds of each."""
    found = {}
    try:
        for one in (process, *process.children(recursive=True)):
            with one.oneshot():
                times = one.cpu_times()
                found[one.pid] = (one.memory_info().rss / 2**20, times.user + times.system)
    except psutil.NoSuchProcess:
        return found
    return found
