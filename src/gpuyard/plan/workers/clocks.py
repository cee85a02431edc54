"""Power levels of a plan on real GPUs: NVML locks the clock of a GPU to that of a level, where permitted.

Only root may do that, and not every GPU supports it. Otherwise the GPU stays at full speed: the plan is kept, the
energy is not saved, and the caller is told why.
"""

from contextlib import suppress
from typing import Any


class Clocks:
    """The clocks of this machine's GPUs, by CUDA device name: a number or a UUID."""

    def __init__(self, nvml: Any) -> None:
        """Take the opened library: `pynvml`, or an object with the same interface."""
        self._nvml = nvml
        self._locked: set[str] = set()

    def lock(self, gpu: str, mhz: int) -> str | None:
        """Lock a GPU to this clock; return why that failed, or None."""
        try:
            self._nvml.nvmlDeviceSetGpuLockedClocks(self._handle(gpu), mhz, mhz)
        except self._nvml.NVMLError as error:
            return (
                f"GPU {gpu} stays at full speed: its clock cannot be locked to {mhz} MHz: {error}.{self._advice(error)}"
            )
        self._locked.add(gpu)
        return None

    def free(self, gpu: str) -> None:
        """Reset the clock of a GPU if it was locked here. Errors are ignored: the GPU may have fallen off the bus."""
        if gpu in self._locked:
            self._locked.remove(gpu)
            with suppress(self._nvml.NVMLError):
                self._nvml.nvmlDeviceResetGpuLockedClocks(self._handle(gpu))

    def free_all(self) -> None:
        """Reset all clocks that were locked here."""
        for gpu in sorted(self._locked):
            self.free(gpu)

    def _handle(self, gpu: str) -> Any:
        if gpu.isdigit():
            return self._nvml.nvmlDeviceGetHandleByIndex(int(gpu))
        return self._nvml.nvmlDeviceGetHandleByUUID(gpu)

    def _advice(self, error: Any) -> str:
        if isinstance(error, self._nvml.NVMLError_NoPermission):
            return " The NVIDIA driver allows this only to root: run as root, or plan without --max-slowdown."
        return ""
