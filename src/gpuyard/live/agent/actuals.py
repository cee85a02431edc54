"""Measures the GPU use of attempts: peak memory, mean utilization and power, idle time, and whether GPU memory ran out.

Memory is what the driver reports for the attempt's own processes at each reading of the GPUs; memory that is allocated
and freed between two readings is missed. Frameworks keep what they once allocated, so this is rare. A virtual GPU has
no memory: the amount that a task declares (`VIRTUAL_GPU_MEMORY_MIB` in its environment) is used instead.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from gpuyard.core.domain.actual import Actual
from gpuyard.live.agent import outputs
from gpuyard.live.agent.supervisor.messages import AttemptKey
from gpuyard.live.agent.telemetry import GpuReading, Occupant

SAID = "VIRTUAL_GPU_MEMORY_MIB"
IDLE_PERCENT = 5.0
"""A GPU whose utilization is below this does not work for its holder."""
LAST_BYTES = 32 * 1024
"""Bytes searched at the end of the output, where a traceback or a launcher's summary is."""
OUT_OF_MEMORY = re.compile(
    rb"CUDA out of memory|torch\.(cuda\.)?OutOfMemoryError|cudaErrorMemoryAllocation|CUDA_ERROR_OUT_OF_MEMORY"
    rb"|cudaMalloc failed: out of memory|CUBLAS_STATUS_ALLOC_FAILED|RESOURCE_EXHAUSTED: Out of memory"
)
"""Out-of-memory messages of PyTorch, CUDA, cuBLAS and XLA."""


@dataclass
class UsageSamples:
    """The readings of one attempt so far."""

    peak_mib: int | None = None
    declared_mib: int = 0
    """Memory that the task declares to use on each of its virtual GPUs."""
    busy_sum: float = 0.0
    busy_count: int = 0
    idle_count: int = 0
    read_count: int = 0
    """Readings of utilization, leases included: those of a lease are of whatever runs on its GPUs."""
    watts_sum: float = 0.0
    watts_count: int = 0


class Actuals:
    """The measured use of all attempts held on this node."""

    def __init__(self) -> None:
        self._seen: dict[AttemptKey, UsageSamples] = {}

    def said(self, key: AttemptKey, env: Mapping[str, str]) -> None:
        """Record the memory that an attempt on virtual GPUs declares in its environment, if it does."""
        said = env.get(SAID, "")
        if re.fullmatch("[0-9]{1,9}", said):
            self._seen[key] = UsageSamples(peak_mib=int(said), declared_mib=int(said))

    def declared_mib(self, key: AttemptKey) -> int:
        """Return the memory that an attempt on virtual GPUs declares to use on each of them; 0 if it declares none."""
        seen = self._seen.get(key)
        return 0 if seen is None else seen.declared_mib

    def look(self, gpus: Iterable[GpuReading], occupants: Iterable[Occupant]) -> None:
        """Record a reading of the GPUs."""
        holders = list(occupants)
        for gpu in gpus:
            by_key: dict[AttemptKey, int] = {}
            for user in gpu.users:
                if user.key is not None and user.memory_mib:
                    by_key[user.key] = by_key.get(user.key, 0) + user.memory_mib
            here = {holder.key: holder for holder in holders if gpu.use.index in holder.gpus and not holder.lease}
            for key, mib in by_key.items():
                if key in here:
                    seen = self._seen.setdefault(key, UsageSamples())
                    seen.peak_mib = max(seen.peak_mib or 0, mib)
            whole = [holder.key for holder in holders if gpu.use.index in holder.gpus and holder.whole]
            self._read(gpu, whole)
            if gpu.use.utilization_percent is not None:
                for key in (key for key, holder in here.items() if holder.whole):
                    seen = self._seen.setdefault(key, UsageSamples())
                    seen.busy_sum += gpu.use.utilization_percent
                    seen.busy_count += 1

    def _read(self, gpu: GpuReading, holders: Iterable[AttemptKey]) -> None:
        """Note idleness and power for attempts that hold the whole GPU."""
        busy, watts = gpu.use.utilization_percent, gpu.use.power_watts
        for key in holders:
            seen = self._seen.setdefault(key, UsageSamples())
            if busy is not None:
                seen.read_count += 1
                seen.idle_count += busy < IDLE_PERCENT
            if watts is not None:
                seen.watts_sum += watts
                seen.watts_count += 1

    def of(self, key: AttemptKey) -> Actual | None:
        """Return the measured use of an attempt; None if nothing was measured."""
        seen = self._seen.get(key)
        if seen is None:
            return None
        busy = round(seen.busy_sum / seen.busy_count, 1) if seen.busy_count else None
        idle = round(seen.idle_count / seen.read_count, 4) if seen.read_count else None
        watts = round(seen.watts_sum / seen.watts_count, 1) if seen.watts_count else None
        return Actual(seen.peak_mib, busy, idle, watts)

    def forget(self, key: AttemptKey) -> None:
        """Forget an attempt whose end is reported and acknowledged."""
        self._seen.pop(key, None)


def ran_out_of_memory(output: Path) -> bool:
    """Return whether the output of a failed attempt ends with an out-of-memory message of a GPU."""
    piece = outputs.read(output, -LAST_BYTES, LAST_BYTES)
    return piece is not None and OUT_OF_MEMORY.search(piece.data) is not None
