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

    def lock(self, card: str, mhz: int) -> str | None:
        """Lock a GPU to this clock; return why that failed, or None."""
        try:
            self._nvml.nvmlDeviceSetGpuLockedClocks(self._handle(card), mhz, mhz)
        except self._nvml.NVMLError as error:
            return (
                f"GPU {card} stays at full speed: its clock cannot be locked to {mhz} MHz: "
                f"{error}.{self._advice(error)}"
            )
        self._locked.add(card)
        return None

    def free(self, card: str) -> None:
        """Reset the clock of a GPU if it was locked here. Errors are ignored: the GPU may have fallen off the bus."""
        if card in self._locked:
            self._locked.remove(card)
            with suppress(self._nvml.NVMLError):
                self._nvml.nvmlDeviceResetGpuLockedClocks(self._handle(card))

    def free_all(self) -> None:
        """Reset all clocks that were locked here."""
        for card in sorted(self._locked):
            self.free(card)

    def _handle(self, card: str) -> Any:
        if card.isdigit():
            return self._nvml.nvmlDeviceGetHandleByIndex(int(card))
        return self._nvml.nvmlDeviceGetHandleByUUID(card)

    def _advice(self, error: Any) -> str:
        if isinstance(error, self._nvml.NVMLError_NoPermission):
            return " The NVIDIA driver allows this only to root: run as root, or plan without --max-slowdown."
        return ""
