"""Resets the clocks of GPUs if the process that locked them is killed: `python -m gpuyard.system.clock_guard`.

A locked clock stays locked after the process that locked it has ended. That process resets it itself when a run ends,
fails or is interrupted. Against SIGKILL it starts this guard before the first lock and reports what it does:

    run     ── "lock 0", "free 0"             ──►  guard knows which GPUs are locked
    run ended or killed: the pipe is closed   ──►  guard resets the GPUs that are still locked, and ends

The guard has its own session, so that Ctrl-C in a terminal does not end it.
"""

import subprocess
import sys
from collections.abc import Iterable
from contextlib import suppress
from typing import Any, Final

LOCK: Final = "lock"
FREE: Final = "free"


class ClockGuard:
    """The guard of one run; its process starts with the first report."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None

    def locks(self, gpu: str) -> None:
        """Report that a GPU is about to be locked."""
        if self._process is None:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "gpuyard.system.clock_guard"],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                text=True,
                bufsize=1,
                start_new_session=True,
            )
        self._say(LOCK, gpu)

    def frees(self, gpu: str) -> None:
        """Report that a GPU was reset."""
        self._say(FREE, gpu)

    def close(self) -> None:
        """Wait until the guard has reset what is still locked."""
        if self._process is not None:
            self._process.communicate()
            self._process = None

    def _say(self, word: str, gpu: str) -> None:
        if self._process is not None and self._process.stdin is not None:
            with suppress(BrokenPipeError):
                self._process.stdin.write(f"{word} {gpu}\n")


def handle_of(nvml: Any, gpu: str) -> Any:
    """Return NVML's handle of a CUDA device name: a number or a UUID."""
    if gpu.isdigit():
        return nvml.nvmlDeviceGetHandleByIndex(int(gpu))
    return nvml.nvmlDeviceGetHandleByUUID(gpu)


def reset(nvml: Any, gpu: str) -> None:
    """Reset the clock of a GPU. Errors are ignored: the GPU may have fallen off the bus."""
    with suppress(nvml.NVMLError):
        nvml.nvmlDeviceResetGpuLockedClocks(handle_of(nvml, gpu))


def guard(nvml: Any, reports: Iterable[str]) -> None:
    """Read reports until their end; then reset the GPUs that are still locked."""
    locked: dict[str, None] = {}
    for report in reports:
        word, _, gpu = report.strip().partition(" ")
        if word == LOCK:
            locked[gpu] = None
        else:
            locked.pop(gpu, None)
    if locked:
        nvml.nvmlInit()
    for gpu in locked:
        reset(nvml, gpu)


def main() -> None:
    """Guard the GPUs that the parent process reports on standard input."""
    import pynvml  # type: ignore[import-untyped]

    guard(pynvml, sys.stdin)


if __name__ == "__main__":
    main()
