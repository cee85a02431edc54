"""The search of the score `fragmentation`: find the cheapest room without examining every node.

Device groups with the same cost before their node's CPUs and memory are considered form a class: they have the same
number of free GPUs, or a shared GPU with the same amount left, and models under the same pressure. Classes are tried
from the cheapest on, and only while the largest possible saving on a node (`least_stranding`) could still beat the best
choice so far. In each class, `LOOKS` nodes with room are compared.
"""

from collections.abc import Iterator
from itertools import chain

from gpuyard.core.domain.placement import Placement, Slice
from gpuyard.core.domain.values import MILLI, Link
from gpuyard.core.placement.device_group_mask import DeviceGroupMask, members, without
from gpuyard.core.placement.index import DeviceGroup, Index
from gpuyard.core.placement.model_cache_affinity import ModelKey, pick
from gpuyard.core.placement.room import candidates, fits_now, gpu_for_share, share_slice, whole_slice
from gpuyard.core.placement.scores.fragmentation import FragmentationCosts
from gpuyard.core.placement.shape import Shape

LOOKS = 16
"""How many nodes with room are compared in each class."""
MOST_LOOKS = 96
"""How many nodes are compared in all classes together; checked between classes, once a node with room is found."""

CostClass = tuple[float, int, int, DeviceGroupMask]
"""Cost; thousandths left on the shared GPU, or MILLI or more for free GPUs; thousandths taken; the device groups."""


def find_cheapest(
    shape: Shape, index: Index, costs: FragmentationCosts, eligible: DeviceGroupMask, model: ModelKey | None
) -> Placement | None:
    """Return the cheapest placement of a single-node shape, or None. Ties in a class go to where the model ran last."""
    warm = index.model_cache.device_groups(model)
    possible = candidates(shape, index) & eligible
    best, best_cost, best_left, looks = None, 0.0, 0, 0
    full: DeviceGroupMask = 0
    for cost, left, milli, device_groups in sorted(_classes(shape, index, costs, possible)):
        least = cost + costs.least_stranding(milli, shape.cpus, shape.memory_mib)
        if best is not None and (looks >= MOST_LOOKS or least >= best_cost):
            break
        here = 0
        possible_here = without(device_groups, full)
        for number in chain(members(possible_here & warm), members(without(possible_here, warm))):
            device_group = index.device_group(number)
            if not fits_now(shape, device_group):
                full |= device_group.bit  # do not check it again in later classes
            elif left >= MILLI or gpu_for_share(shape, device_group, left) is not None:
                price = round(cost + costs.stranding(device_group.host, milli, shape.cpus, shape.memory_mib), 6)
                if best is None or price < best_cost:
                    best, best_cost, best_left = device_group, price, left
                here += 1
                if here == LOOKS:
                    break
        looks += here
    return None if best is None else Placement((_slice(shape, best, best_left, model),))


def _classes(shape: Shape, index: Index, costs: FragmentationCosts, possible: DeviceGroupMask) -> Iterator[CostClass]:
    if not shape.gpus and shape.share is None:  # CPUs only: keep nodes with GPUs free for tasks that need them
        yield -1.0, MILLI, 0, possible & index.without_gpus
        for device_groups in index.by_model.values():
            yield 0.0, MILLI, 0, possible & device_groups
        return
    for pressure, models in costs.tiers:
        among = possible & models
        if not among:
            continue
        if shape.share is None:
            for free in range(shape.gpus, len(index.by_free)):
                if device_groups := index.by_free[free] & among:
                    milli = shape.gpus * MILLI
                    yield round(costs.whole(free, shape.gpus) + pressure * milli, 6), MILLI + free, milli, device_groups
            continue
        assert shape.needs is not None
        for milli, having in shape.needs.items():
            if within := among & having:
                for left, device_groups in index.by_left.items():
                    if left >= milli and (device_groups := device_groups & within):
                        yield round(costs.rest(left, milli) + pressure * milli, 6), left, milli, device_groups
                for free in range(1, len(index.by_free)):
                    if device_groups := index.by_free[free] & within:
                        yield round(costs.fresh(free, milli) + pressure * milli, 6), MILLI + free, milli, device_groups


def _slice(shape: Shape, device_group: DeviceGroup, left: int, model: ModelKey | None) -> Slice:
    if shape.share is None:
        return whole_slice(shape, device_group, model)
    gpu = gpu_for_share(shape, device_group, left) if left < MILLI else pick(device_group, 1, Link.ANY, model)[0]
    assert gpu is not None
    return share_slice(shape, device_group, gpu)
