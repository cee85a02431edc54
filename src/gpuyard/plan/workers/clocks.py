"""Power levels of a plan, on real cards: NVML locks the clock of a card to that of a level, where it lets us.

Only root may do that, and not every card can. Then the card runs on at full speed: the plan is kept, the energy is not
saved, and whoever asked is told why.
"""

from contextlib import suppress
from typing import Any


class Clocks:
    """The clocks of this machine's cards, by what CUDA calls them: a number or a UUID."""

    def __init__(self, nvml: Any) -> None:
        """The library, opened: `pynvml`, or what behaves like it."""
        self._nvml = nvml
        self._locked: set[str] = set()

    def lock(self, card: str, mhz: int) -> str | None:
        """Let a card run at this clock; why not, where it can not be done."""
        try:
            self._nvml.nvmlDeviceSetGpuLockedClocks(self._handle(card), mhz, mhz)
        except self._nvml.NVMLError as error:
            return f"GPU {card} stays at full speed, its clock can not be locked to {mhz} MHz: {error}.{self._advice(error)}"
        self._locked.add(card)
        return None

    def free(self, card: str) -> None:
        """Give a card its own clock back, if we took it; one that fell off the bus has none."""
        if card in self._locked:
            self._locked.remove(card)
            with suppress(self._nvml.NVMLError):
                self._nvml.nvmlDeviceResetGpuLockedClocks(self._handle(card))

    def free_all(self) -> None:
        """All of them."""
        for card in sorted(self._locked):
            self.free(card)

    def _handle(self, card: str) -> Any:
        if card.isdigit():
            return self._nvml.nvmlDeviceGetHandleByIndex(int(card))
        return self._nvml.nvmlDeviceGetHandleByUUID(card)

    def _advice(self, error: Any) -> str:
        if isinstance(error, self._nvml.NVMLError_NoPermission):
            return " NVIDIA's driver lets only root do that: run as root, or plan without --max-slowdown."
        return ""
