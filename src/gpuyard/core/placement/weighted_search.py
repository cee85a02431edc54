"""The search of the score `weighted`: find the place with the least cost without examining every node.

Nodes of one kind (GPU model and number of GPUs) with the same number of free GPUs have the same cost. These classes are
tried from the cheapest on, and the first node with room is taken.
"""

from collections.abc import Iterator
from itertools import chain
from typing import NamedTuple

from gpuyard.core.domain.placement import Placement
from gpuyard.core.placement.device_group_mask import DeviceGroupMask, members, without
from gpuyard.core.placement.index import Index
from gpuyard.core.placement.model_cache_affinity import ModelKey
from gpuyard.core.placement.room import candidates, fits_now, whole_slice
from gpuyard.core.placement.scores.weighted import WeightedCosts
from gpuyard.core.placement.shape import Shape


class PlaceClass(NamedTuple):
    """Device groups where a task has the same cost."""

    seconds: float
    """Run time, relative to the fastest GPU model that the task names."""
    joules: float
    """Energy, on the same scale for all classes of a task."""
    size: int
    free: int
    device_groups: DeviceGroupMask


def find_lightest(
    shape: Shape, index: Index, costs: WeightedCosts, eligible: DeviceGroupMask, model: ModelKey | None
) -> Placement | None:
    """Return the placement of whole GPUs on one node that costs least, or None. Ties go to where the model ran last."""
    classes = list(_classes(shape, index, costs, candidates(shape, index) & eligible))
    if not classes:
        return None
    weights = costs.weights(index)
    least_seconds = min(it.seconds for it in classes)
    least_joules = min(it.joules for it in classes)
    ordered = []
    for place, it in enumerate(classes):
        cost = (
            weights.time * (it.seconds / least_seconds - 1)
            + weights.energy * (it.joules / least_joules - 1)
            + weights.balance * (1 - (it.free - shape.gpus) / it.size)
            + weights.fragmentation * costs.fragments(it.free, shape.gpus)
        )
        ordered.append((round(cost, 9), it.free, place))
    ordered.sort()
    warm = index.model_cache.device_groups(model)
    for _, _, place in ordered:
        here = classes[place].device_groups
        for number in chain(members(here & warm), members(without(here, warm))):
            device_group = index.device_group(number)
            if fits_now(shape, device_group):
                return Placement((whole_slice(shape, device_group, model),))
    return None


def _classes(shape: Shape, index: Index, costs: WeightedCosts, possible: DeviceGroupMask) -> Iterator[PlaceClass]:
    by_free = index.by_free
    for kind in costs.kinds:
        if among := possible & kind.device_groups:
            seconds = 1 / shape.speed_on(kind.model)
            joules = 1.0 if shape.speeds is None else kind.watts * seconds
            for free in range(shape.gpus, min(kind.size + 1, len(by_free))):
                if device_groups := by_free[free] & among:
                    yield PlaceClass(seconds, joules, kind.size, free, device_groups)
