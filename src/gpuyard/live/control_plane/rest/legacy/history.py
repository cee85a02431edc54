"""The history of the monitor: samples of the whole cluster, kept in memory for a while, within a fixed size.

A sample of a large cluster takes more memory than one of a small cluster. The size is therefore limited in GPUs, not in
samples, and a large cluster keeps fewer samples. The history is lost at a restart.
"""

from collections import deque
from collections.abc import Iterator

from gpuyard.live.control_plane.rest.legacy.messages import SystemMetrics

MOST_SAMPLES = 86_400
"""One day at one sample per second."""
KEEP_SECONDS = 86_400.0
MOST_GPU_SAMPLES = 50_000
"""About 20 MB."""


class History:
    """A ring buffer of samples, oldest first."""

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
        """Add a sample taken at `at` seconds of any monotonic clock; drop the oldest ones if there is no room."""
        self._samples.append((at, sample))
        self._gpu_samples += len(sample.device_metrics)
        while len(self._samples) > 1 and (
            len(self._samples) > self._most_samples
            or self._gpu_samples > self._most_gpu_samples
            or self._samples[0][0] < at - self._keep_seconds
        ):
            self._gpu_samples -= len(self._samples.popleft()[1].device_metrics)

    def newest(self, limit: int) -> Iterator[SystemMetrics]:
        """Return the newest samples, at most `limit`, in chronological order."""
        first = max(0, len(self._samples) - limit)
        return (sample for _, sample in list(self._samples)[first:])
