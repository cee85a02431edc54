"""What `gpuyard top` costs with 100,000 tasks and 1,600 GPUs, in a real terminal of 140 × 50.

    python benchmarks/top.py [--seconds 10]

A made-up scheduler answers; the program runs in a pseudo-terminal that is read as fast as it writes. Figures: seconds from
the start to the first screen with tasks; from End to the last row on the screen; CPU and bytes a second while only the live
stream changes; and while Page Down is pressed ten times a second.
"""

import argparse
import json
import os
import sys
import time
from pathlib import Path

import pexpect

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tools.manual.demo_cluster import demo_cluster

TASKS = 100_000


def cpu_of(pid: int) -> float:
    """CPU seconds of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def drain(child: "pexpect.spawn[bytes]", seconds: float, keys: bytes = b"", every: float = 0.1) -> tuple[float, float]:
    """Read for so long; return CPU seconds and bytes, each for one second."""
    began, cpu, size, press_at = time.monotonic(), cpu_of(child.pid), 0, time.monotonic()
    while (now := time.monotonic()) - began < seconds:
        if keys and now >= press_at:
            child.send(keys)
            press_at += every
        try:
            size += len(child.read_nonblocking(65536, timeout=0.02))
        except pexpect.TIMEOUT:
            continue
    passed = time.monotonic() - began
    return (cpu_of(child.pid) - cpu) / passed, size / passed


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=10.0)
    asked = parser.parse_args()
    program = str(Path(sys.executable).with_name("gpuyard"))
    with demo_cluster(nodes=200, gpus_each=8, running=1500, waiting=TASKS - 1500) as demo:
        began = time.monotonic()
        child = pexpect.spawn(
            program, ["top", "--server", demo.url], env={**os.environ, "TERM": "xterm-256color"}, dimensions=(50, 140)
        )
        child.expect(b"task-1 ", timeout=60)
        first = time.monotonic() - began
        drain(child, 2.0)
        began = time.monotonic()
        child.send(b"\x1b[F")
        child.expect(b"task-%d " % TASKS, timeout=60)
        end = time.monotonic() - began
        child.send(b"\x1b[H")
        drain(child, 2.0)
        idle = drain(child, asked.seconds)
        paging = drain(child, asked.seconds, b"\x1b[6~")
        memory = int(Path(f"/proc/{child.pid}/status").read_text().partition("VmHWM:")[2].split()[0]) / 1024
        child.send(b"q")
        child.expect(pexpect.EOF, timeout=30)
    print(
        json.dumps({
            "tasks": TASKS, "gpus": 1600, "load": os.getloadavg()[0], "first_screen_s": round(first, 2),
            "jump_to_the_end_s": round(end, 3), "idle_cpu": round(idle[0], 3), "idle_bytes_per_s": round(idle[1]),
            "paging_cpu": round(paging[0], 3), "paging_bytes_per_s": round(paging[1]), "memory_mib": round(memory),

        }, indent=1)
    )  # fmt: skip


if __name__ == "__main__":
    main()
