"""Simulated GPUs: for trying out a cluster, for tests, and for nodes that represent others.

Tasks run on them as real processes. Their readings depend only on whether a task runs on them, and for how long: they
warm up and cool down as a card does. They have no memory that could be filled, so their used memory is what tasks
declare.
"""

import re
import time
import uuid
from collections.abc import Callable, Mapping
from math import exp

from gpuyard.live.agent.inventory.port import GpuDevice, GpuUsage, NoSuchInventory
from gpuyard.live.wire.limits import MOST_GPUS_IN_A_NODE

DEFAULT_MODEL = "virtual"
DEFAULT_MEMORY_GB = 24
_NAMESPACE = uuid.UUID("6f5d6f0e-52d4-4c0f-9d0b-1f9a4a7f3c11")
_POWER_LIMIT_WATTS = 300.0
_BUSY_CELSIUS, _IDLE_CELSIUS = 65.0, 30.0
_WARMING_SECONDS = 30.0
"""Time in which the difference to the final temperature falls to a third."""


class Virtual:
    """A number of simulated GPUs of one model."""

    def __init__(
        self,
        spec: str,
        node: str,
        busy: Callable[[], Mapping[int, int]] = dict,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """The spec is `N`, `N:MODEL` or `N:MODEL:MEMORY_GB`.

        `busy` returns the GPUs on which a task runs, each with the MiB that its tasks declare to use there.
        """
        count, model, memory_gb = read_spec(spec)
        self._busy = busy
        self._now = now
        self._celsius = [_IDLE_CELSIUS] * count
        self._measured_at = now()
        self._devices = tuple(
            GpuDevice(
                index,
                f"VIRTUAL-{uuid.uuid5(_NAMESPACE, f'{node}/{index}')}",
                model,
                memory_gb * 1024,
                virtual=True,
            )
            for index in range(count)
        )

    def devices(self) -> tuple[GpuDevice, ...]:
        """Return the GPUs. They have the same UUIDs at every start of this node."""
        return self._devices

    def use(self) -> list[GpuUsage]:
        """Return full use for a busy GPU, and idle values for the others."""
        busy, now = self._busy(), self._now()
        cooling = exp(-max(0.0, now - self._measured_at) / _WARMING_SECONDS)
        self._measured_at = now
        return [self._usage(device, busy.get(device.index), cooling) for device in self._devices]

    def _usage(self, device: GpuDevice, declared_mib: int | None, cooling: float) -> GpuUsage:
        final = _IDLE_CELSIUS if declared_mib is None else _BUSY_CELSIUS
        celsius = self._celsius[device.index] = final + (self._celsius[device.index] - final) * cooling
        if declared_mib is not None:
            memory_mib, power = min(declared_mib, device.memory_mib), 0.9 * _POWER_LIMIT_WATTS
            return GpuUsage(device.index, 100.0, memory_mib, celsius, power, _POWER_LIMIT_WATTS, 60.0)
        return GpuUsage(device.index, 0.0, 0, celsius, 0.1 * _POWER_LIMIT_WATTS, _POWER_LIMIT_WATTS, 0.0)


def read_spec(spec: str) -> tuple[int, str, int]:
    """Parse count, model and memory in GB. Raise `NoSuchInventory` if the spec is wrong."""
    count, *rest = spec.split(":")
    if len(rest) > 2:
        raise NoSuchInventory(
            f"{spec!r} has too many parts. Give virtual GPUs as COUNT[:MODEL[:GB]], such as 4:RTX4090:24."
        )
    if not re.fullmatch(r"[0-9]{1,9}", count):
        raise NoSuchInventory(
            f"{spec!r} does not begin with a number of GPUs up to {MOST_GPUS_IN_A_NODE}. "
            "Use for example 4 or 4:RTX4090:24."
        )
    if int(count) > MOST_GPUS_IN_A_NODE:
        raise NoSuchInventory(
            f"{spec!r} are {int(count)} GPUs; a node has at most {MOST_GPUS_IN_A_NODE}. "
            "Use fewer, such as 4:RTX4090:24, and start further agents for the others."
        )
    model = rest[0] if rest else DEFAULT_MODEL
    if not model.strip():
        raise NoSuchInventory(f"{spec!r} has no model between the colons. Use for example 4:RTX4090:24.")
    memory = rest[1] if len(rest) == 2 else str(DEFAULT_MEMORY_GB)
    if not re.fullmatch(r"[0-9]{1,5}", memory) or int(memory) == 0:
        raise NoSuchInventory(f"{spec!r} does not end with a whole number of GB above 0. Use for example 4:RTX4090:24.")
    return int(count), model.strip(), int(memory)
