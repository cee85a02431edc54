"""The clocks of real GPUs: NVML locks the clock of a GPU, for power levels of plans and for measurements.

Only root may do that, and not every GPU supports it. Otherwise the GPU stays at full speed: the plan is kept, the
energy is not saved, and the caller is told why. A clock that was locked here is reset at the latest when the process
ends, however it ends (`clock_guard`).
"""

from typing import Any

from gpuyard.system.clock_guard import ClockGuard, handle_of, reset


class Clocks:
    """The clocks of this machine's GPUs, by CUDA device name: a number or a UUID."""

    def __init__(self, nvml: Any, guard: ClockGuard | None = None) -> None:
        """Take the opened library, `pynvml` or an object with the same interface, and the guard of the clocks."""
        self._nvml = nvml
        self._guard = guard
        self._locked: set[str] = set()

    def lock(self, gpu: str, mhz: int) -> str | None:
        """Lock a GPU to this clock; return why that failed, or None."""
        was_locked = gpu in self._locked
        if not was_locked and self._guard is not None:
            self._guard.locks(gpu)
        self._locked.add(gpu)
        try:
            self._nvml.nvmlDeviceSetGpuLockedClocks(handle_of(self._nvml, gpu), mhz, mhz)
        except self._nvml.NVMLError as error:
            if was_locked:
                self.free(gpu)  # otherwise it would stay at the clock of an earlier level
            else:
                self._forget(gpu)
            return (
                f"GPU {gpu} stays at full speed: its clock cannot be locked to {mhz} MHz: {error}.{self._advice(error)}"
            )
        return None

    def free(self, gpu: str) -> None:
        """Reset the clock of a GPU if it was locked here."""
        if gpu in self._locked:
            reset(self._nvml, gpu)
            self._forget(gpu)

    def close(self) -> None:
        """Reset all clocks that were locked here."""
        for gpu in sorted(self._locked):
            self.free(gpu)
        if self._guard is not None:
            self._guard.close()

    def _forget(self, gpu: str) -> None:
        self._locked.discard(gpu)
        if self._guard is not None:
            self._guard.frees(gpu)

    def _advice(self, error: Any) -> str:
        if isinstance(error, self._nvml.NVMLError_NoPermission):
            return " The NVIDIA driver allows this only to root: run as root, or plan without --max-slowdown."
        return ""
