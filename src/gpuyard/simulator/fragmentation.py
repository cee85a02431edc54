"""Fragmentation: the share of free GPUs on nodes that have too few free GPUs for the open tasks.

For every open task, waiting or running, count the free GPUs of all nodes that could ever hold it, and those of them on
nodes that currently have no room for it. The share of the second count in the first, over all tasks, is the
fragmentation at an instant: the share that another task like one of these, drawn at random, could not use. It is the
measure of FGD (Weng et al., USENIX ATC 2023) for whole GPUs; for a task that needs a share of a GPU, every free GPU is
usable.
"""

from collections.abc import Sequence

from gpuyard.core.domain import events
from gpuyard.core.domain.task import Resources
from gpuyard.core.engine.state import State
from gpuyard.core.placement.device_group_mask import DeviceGroupMask
from gpuyard.core.placement.shape import Shape
from gpuyard.simulator.samples import Samples

SAMPLES = 500


class FragmentationSampler:
    """Samples the fragmentation of a world; registered as one of its listeners."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._shapes: dict[Resources, Shape] = {}
        self.line: Samples[tuple[int, int]] = Samples(SAMPLES)
        """Unusable free GPUs and all free GPUs, each counted once for every open task that the node could ever hold."""

    def hear(self, at: float, _new_events: Sequence[events.Event]) -> None:
        """Take a sample if one is due."""
        if self.line.wants(at):
            self.line.add(at, self._look())

    @property
    def average(self) -> float:
        """Average over time, weighted by the number of free GPUs."""
        useless = free = 0.0
        for (at, point), (until, _) in zip(self.line.points, self.line.points[1:], strict=False):
            useless += point[0] * (until - at)
            free += point[1] * (until - at)
        return useless / free if free else 0.0

    def _look(self) -> tuple[int, int]:
        index = self._state.index
        # Tasks with the same eligible nodes share one pass over the free GPUs, so the cost is independent of the queue.
        asks: dict[DeviceGroupMask, dict[int, int]] = {}
        for ask, count in self._state.demand.asks():
            if not ask.gpus and ask.share is None:
                continue
            shape = self._shapes.get(ask)
            if shape is None:
                shape = self._shapes[ask] = Shape(ask)
            shape.refresh(index)
            sizes = asks.setdefault(shape.eligible, {})
            gpus = max(ask.gpus, 1)
            sizes[gpus] = sizes.get(gpus, 0) + count
        useless = free = 0
        for eligible, sizes in asks.items():
            by_free = [
                (device_groups & eligible).bit_count() * gpus for gpus, device_groups in enumerate(index.by_free)
            ]
            total = sum(by_free)
            for gpus, count in sizes.items():
                free += count * total
                useless += count * sum(by_free[:gpus])
        return useless, free
