"""What attempts took of their GPUs: the most memory they were seen to have, how busy they kept them, and whether it ran out.

Memory is what the driver says of the attempt's own processes, whenever the cards are looked at; a program that takes
memory and gives it back in between is not seen with it. Frameworks keep what they once took, so this is rare. A virtual
card has no memory of its own: what a task says it would take (`VIRTUAL_GPU_MEMORY_MIB` in its environment) stands for it.
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
LAST_BYTES = 32 * 1024
"""Of an attempt's output that are searched: a traceback stands at the end, or a launcher's summary behind it."""
OUT_OF_MEMORY = re.compile(
    rb"CUDA out of memory|torch\.(cuda\.)?OutOfMemoryError|cudaErrorMemoryAllocation|CUDA_ERROR_OUT_OF_MEMORY"
    rb"|cudaMalloc failed: out of memory|CUBLAS_STATUS_ALLOC_FAILED|RESOURCE_EXHAUSTED: Out of memory"
)
"""What PyTorch, CUDA, cuBLAS and XLA say when a GPU has no memory left."""


@dataclass
class UsageSamples:
    """What was seen of one attempt so far."""

    peak_mib: int | None = None
    busy_sum: float = 0.0
    busy_count: int = 0


class Actuals:
    """Of all attempts that are held here."""

    def __init__(self) -> None:
        self._seen: dict[AttemptKey, UsageSamples] = {}

    def said(self, key: AttemptKey, env: Mapping[str, str]) -> None:
        """An attempt on virtual cards begins, and may say what it would take."""
        said = env.get(SAID, "")
        if re.fullmatch("[0-9]{1,9}", said):
            self._seen[key] = UsageSamples(peak_mib=int(said))

    def look(self, gpus: Iterable[GpuReading], occupants: Iterable[Occupant]) -> None:
        """The cards were looked at."""
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
            if gpu.use.utilization_percent is not None:
                for key in (key for key, holder in here.items() if holder.whole):
                    seen = self._seen.setdefault(key, UsageSamples())
                    seen.busy_sum += gpu.use.utilization_percent
                    seen.busy_count += 1

    def of(self, key: AttemptKey) -> Actual | None:
        """What an attempt took, as far as it was seen."""
        seen = self._seen.get(key)
        if seen is None:
            return None
        busy = round(seen.busy_sum / seen.busy_count, 1) if seen.busy_count else None
        return Actual(seen.peak_mib, busy)

    def forget(self, key: AttemptKey) -> None:
        """The attempt is over, and everybody knows what it took."""
        self._seen.pop(key, None)


def ran_out_of_memory(output: Path) -> bool:
    """Whether an attempt that failed said at its end that a GPU had no memory left."""
    piece = outputs.read(output, -LAST_BYTES, LAST_BYTES)
    return piece is not None and OUT_OF_MEMORY.search(piece.data) is not None
