"""What the monitor saw: samples of the whole yard, kept for a while, in memory, as many as fit into a fixed room.

A sample of a large yard takes more room than one of a small yard, so there are fewer of them: the room is counted in
GPUs, not in samples. It is forgotten at a restart.
"""

from collections import deque
from collections.abc import Iterator

from gpuyard.live.control_plane.rest.legacy.messages import SystemMetrics

MOST_SAMPLES = 86_400
"""A day, one every second."""
KEEP_SECONDS = 86_400.0
MOST_GPU_SAMPLES = 50_000
"""About 20 MB."""


class History:
    """A ring of samples, the oldest first."""

    def __init__(
        self,
        most_samples: int = MOST_SAMPLES,
        most_gpu_samples: int = MOST_GPU_SAMPLES,
        keep_seconds: float = KEEP_SECONDS,
    ) -> None:
        self._samples: deque[tuple[float, SystemMetrics]] = deque()
        self._keep_seconds = keep_seconds
        self._gpu_samples = 0
        self._most_samples = most_samples
        self._most_gpu_samples = most_gpu_samples

    def add(self, sample: SystemMetrics, at: float) -> None:
        """One more, taken at this second of any steady clock; the oldest make room."""
        self._samples.append((at, sample))
        self._gpu_samples += len(sample.device_metrics)
        while len(self._samples) > 1 and (
            len(self._samples) > self._most_samples
            or self._gpu_samples > self._most_gpu_samples
            or self._samples[0][0] < at - self._keep_seconds
        ):
            self._gpu_samples -= len(self._samples.popleft()[1].device_metrics)

    def newest(self, limit: int) -> Iterator[SystemMetrics]:
        """At most so many, in the order of time."""
        first = max(0, len(self._samples) - limit)
        return (sample for _, sample in list(self._samples)[first:])
