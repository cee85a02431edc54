"""Power levels of a plan, on real cards: NVML locks the clock of a card to that of a level, where it lets us.

Only root may do that, and not every card can. Then the card runs on at full speed: the plan is kept, the energy is not
saved, and whoever asked is told why.
"""

from typing import Any


class Clocks:
    """The clocks of this machine's cards; those that were locked are set free when it is over."""

    def __init__(self, nvml: Any) -> None:
        """The library, opened: `pynvml`, or what behaves like it."""
        self._nvml = nvml
        self._locked: set[str] = set()

    def lock(self, uuid: str, mhz: int) -> str | None:
        """Let a card run at this clock; why not, where it can not be done."""
        nvml = self._nvml
        try:
            nvml.nvmlDeviceSetGpuLockedClocks(nvml.nvmlDeviceGetHandleByUUID(uuid), mhz, mhz)
        except nvml.NVMLError as error:
            return (
                f"{uuid} stays at full speed, its clock can not be locked to {mhz} MHz: {error}.{self._advice(error)}"
            )
        self._locked.add(uuid)
        return None

    def free(self) -> None:
        """Give the cards their own clocks back; one that fell off the bus has none."""
        nvml = self._nvml
        for uuid in sorted(self._locked):
            try:
                nvml.nvmlDeviceResetGpuLockedClocks(nvml.nvmlDeviceGetHandleByUUID(uuid))
            except nvml.NVMLError:
                continue
        self._locked.clear()

    def _advice(self, error: Any) -> str:
        if isinstance(error, self._nvml.NVMLError_NoPermission):
            return " NVIDIA's driver lets only root do that: run as root, or plan without --slower."
        return ""
