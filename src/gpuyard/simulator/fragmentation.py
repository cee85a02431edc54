"""How much of what is free is of no use: GPUs on nodes with too few free ones for the tasks there are.

For every open task, waiting or running, the free GPUs of the nodes that could ever hold it are counted, and those of
them on nodes that have room for it no longer. The share of the second in the first, over all tasks, is the fragmentation
of an instant: what another task like one of these, drawn at random, could not use. It is the measure of FGD (Weng et
al., USENIX ATC 2023) for whole GPUs; a share of a GPU finds every free one of use.
"""

from collections.abc import Sequence

from gpuyard.core.domain import events as fact
from gpuyard.core.domain.task import Resources
from gpuyard.core.engine.state import State
from gpuyard.core.placement.device_group_mask import DeviceGroupMask
from gpuyard.core.placement.shape import Shape
from gpuyard.simulator.samples import Samples

SAMPLES = 500


class FragmentationSampler:
    """A listener of a world, from which it samples."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._shapes: dict[Resources, Shape] = {}
        self.line: Samples[tuple[int, int]] = Samples(SAMPLES)
        """Free GPUs of no use, and all free GPUs, each counted once for every open task that could be there."""

    def hear(self, at: float, _facts: Sequence[fact.Event]) -> None:
        """Look, now and then."""
        if self.line.wants(at):
            self.line.add(at, self._look())

    @property
    def average(self) -> float:
        """Over time; instants with much free count for more."""
        useless = free = 0.0
        for (at, point), (until, _) in zip(self.line.points, self.line.points[1:], strict=False):
            useless += point[0] * (until - at)
            free += point[1] * (until - at)
        return useless / free if free else 0.0

    def _look(self) -> tuple[int, int]:
        index = self._state.index
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
