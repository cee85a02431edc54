"""Choose a placement, or explain why there is none at the moment.

`choose` is the fast path: it returns a placement or None, without a reason. `why_not` finds the reason; only `explain`
calls it, and it examines all eligible device groups again.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

from gpuyard.core.domain import refusals as no
from gpuyard.core.domain.placement import Placement, Slice
from gpuyard.core.domain.values import MILLI, Link, NodeId
from gpuyard.core.placement.device_group_mask import DeviceGroupMask, members, without
from gpuyard.core.placement.fragmentation_search import find_cheapest
from gpuyard.core.placement.index import DeviceGroup, Index
from gpuyard.core.placement.model_cache_affinity import ModelKey, pick
from gpuyard.core.placement.room import candidates, fits_now, gpu_for_share, share_slice, whole_slice
from gpuyard.core.placement.scores import NodeOrder
from gpuyard.core.placement.scores.fragmentation import FragmentationCosts
from gpuyard.core.placement.scores.weighted import WeightedCosts
from gpuyard.core.placement.shape import Shape
from gpuyard.core.placement.weighted_search import find_lightest

LINK_CHOICES = 16
"""How many equally full nodes are compared for a task that prefers NVLink or a single NUMA domain."""


def choose(
    shape: Shape,
    index: Index,
    order: NodeOrder,
    forbidden: DeviceGroupMask = 0,
    *,
    wherever: bool = False,
    model: ModelKey | None = None,
) -> Placement | None:
    """Find room for a shape outside the forbidden device groups; return None if there is none.

    Prefer the device groups where the task is fastest, then the order of the score, then where the model ran last.
    `wherever`: ignore speed. The score `weighted` has its own idea of speed.
    """
    eligible = shape.eligible
    if forbidden:
        eligible = without(eligible, forbidden)
    if shape.first_fit and (wherever or shape.speeds is None) and isinstance(order, range):
        by_free, most = index.by_free, len(index.by_free)
        for free in order:
            if free < most and (found := by_free[free] & eligible):
                if model is not None:
                    found = found & index.model_cache.device_groups(model) or found
                device_group = index.device_groups[found.bit_length() - 1]
                assert device_group is not None
                return Placement((Slice(device_group.host.spec.id, pick(device_group, shape.gpus, shape.link, model)),))
        return None
    simple = shape.nodes == 1 and not shape.whole_nodes and shape.link is Link.ANY
    if isinstance(order, WeightedCosts) and simple and shape.gpus:
        return find_lightest(shape, index, order, eligible, model)
    if shape.speeds is not None and not wherever:
        return _choose_fast(shape, index, order, forbidden, model)
    if isinstance(order, FragmentationCosts) and simple:
        return find_cheapest(shape, index, order, eligible, model)
    counts = order if isinstance(order, range) else order.counts(shape.gpus)
    if shape.share is not None:
        return _choose_share(shape, index, eligible, model)
    if shape.nodes > 1:
        return _choose_gang(shape, index, counts, eligible, model)
    device_group = _first(shape, index, counts, eligible, model)
    return None if device_group is None else Placement((whole_slice(shape, device_group, model),))


def _choose_fast(
    shape: Shape, index: Index, order: NodeOrder, forbidden: DeviceGroupMask, model: ModelKey | None
) -> Placement | None:
    """Try one speed after another, fastest first. A gang mixes speeds only if no single speed has room for the gang."""
    for _, device_groups in shape.tiers:
        placement = choose(
            shape, index, order, forbidden | without(shape.eligible, device_groups), wherever=True, model=model
        )
        if placement is not None:
            return placement
    return choose(shape, index, order, forbidden, wherever=True, model=model) if shape.nodes > 1 else None


def groups_with_room(shape: Shape, index: Index, forbidden: DeviceGroupMask = 0) -> list[DeviceGroup]:
    """Return the device groups, at most one per node, where one part of a shape fits now."""
    seen: set[NodeId] = set()
    found = []
    for number in members(without(candidates(shape, index), forbidden)):
        device_group = index.device_group(number)
        if device_group.host.spec.id not in seen and fits_now(shape, device_group):
            seen.add(device_group.host.spec.id)
            found.append(device_group)
    return found


def _first(
    shape: Shape, index: Index, order: Sequence[int], eligible: DeviceGroupMask, model: ModelKey | None
) -> DeviceGroup | None:
    """Return the first device group with room, in the order of the score."""
    possible = candidates(shape, index) & eligible
    if shape.whole_nodes:
        possible &= index.idle
    for device_groups in _warm_first(
        _by_preference(shape, index, order, possible), index.model_cache.device_groups(model)
    ):
        fitting = _fitting(shape, index, device_groups)
        first = next(fitting, None)
        if first is not None:
            return first if shape.link is Link.ANY else _closest(shape, first, fitting)
    return None


def _fitting(shape: Shape, index: Index, device_groups: DeviceGroupMask) -> Iterator[DeviceGroup]:
    """Iterate over those of the device groups where one part of a shape fits now."""
    for number in members(device_groups):
        device_group = index.device_group(number)
        if fits_now(shape, device_group):
            yield device_group


def _by_preference(
    shape: Shape, index: Index, order: Sequence[int], possible: DeviceGroupMask
) -> list[DeviceGroupMask]:
    if shape.gpus == 0:  # CPUs only: keep nodes with GPUs free for tasks that need them
        return [possible & index.without_gpus, without(possible, index.without_gpus)]
    return [index.by_free[free] & possible for free in order if free < len(index.by_free)]


def _warm_first(sets: Iterable[DeviceGroupMask], warm: DeviceGroupMask) -> Iterator[DeviceGroupMask]:
    """Split each set into the device groups where the model ran last (`warm`) and the others."""
    for device_groups in sets:
        if here := device_groups & warm:
            yield here
        yield device_groups ^ here


def _closest(shape: Shape, first: DeviceGroup, others: Iterator[DeviceGroup]) -> DeviceGroup:
    """Of a few equally full device groups, return the one whose free GPUs are connected best."""
    best, best_pieces = first, _pieces(shape, first)
    for device_group in islice(others, LINK_CHOICES):
        if best_pieces == 1:
            break
        if (pieces := _pieces(shape, device_group)) < best_pieces:
            best, best_pieces = device_group, pieces
    return best


def _pieces(shape: Shape, device_group: DeviceGroup) -> int:
    return device_group.topology.pieces(
        device_group.topology.pick(device_group.free_mask, shape.gpus, shape.link), shape.link
    )


def _choose_gang(
    shape: Shape, index: Index, order: Sequence[int], eligible: DeviceGroupMask, model: ModelKey | None
) -> Placement | None:
    possible = candidates(shape, index) & eligible
    if shape.whole_nodes:
        possible &= index.idle
    # One device group per node: the parts of a gang run on different nodes.
    chosen: dict[NodeId, DeviceGroup] = {}
    for device_groups in _warm_first(
        _by_preference(shape, index, order, possible), index.model_cache.device_groups(model)
    ):
        for number in members(device_groups):
            device_group = index.device_group(number)
            if device_group.host.spec.id not in chosen and fits_now(shape, device_group):
                chosen[device_group.host.spec.id] = device_group
                if len(chosen) == shape.nodes:
                    return Placement(tuple(whole_slice(shape, device_group, model) for device_group in chosen.values()))
    return None


def _choose_share(shape: Shape, index: Index, eligible: DeviceGroupMask, model: ModelKey | None) -> Placement | None:
    """Take the fullest shared GPU with room; otherwise a free GPU of the device group with the fewest free ones."""
    possible, warm = candidates(shape, index) & eligible, index.model_cache.device_groups(model)
    for left in sorted(left for left in index.by_left if left >= shape.need_milli):
        for device_groups in _warm_first((index.by_left[left] & possible,), warm):
            for device_group in _fitting(shape, index, device_groups):
                gpu = gpu_for_share(shape, device_group)
                # A group with several shared GPUs is in several sets; take it only where its best GPU belongs.
                if gpu is not None and device_group.shared[gpu].milli == left:
                    return Placement((share_slice(shape, device_group, gpu),))
    for device_groups in _warm_first((device_groups & possible for device_groups in index.by_free[1:]), warm):
        for device_group in _fitting(shape, index, device_groups):
            (gpu,) = pick(device_group, 1, Link.ANY, model)
            return Placement((share_slice(shape, device_group, gpu),))
    return None


def why_not(shape: Shape, index: Index) -> no.Refusal:
    """Return why a shape does not fit now. Reasons are checked from the longest lasting to the shortest."""
    shape.refresh(index)
    if never := shape.never(index):
        return never
    device_groups = [index.device_group(number) for number in members(shape.eligible)]
    opened = [
        device_group
        for device_group in device_groups
        if device_group.host.open and (device_group.usable.bit_count() >= shape.gpus)
    ]
    hosts = len({device_group.host.spec.id for device_group in opened})
    if hosts < shape.nodes:
        return no.NodesClosed(shape.nodes, len(index.hosts_of(shape.eligible)), hosts)
    if shape.nodes > 1:
        return no.GangIncomplete(shape.nodes, len(groups_with_room(shape, index)))
    if shape.gpus or shape.share:
        enough = [
            device_group
            for device_group in opened
            if device_group.free >= max(shape.gpus, 1)
            or (shape.share and gpu_for_share(shape, device_group) is not None)
        ]
        if not enough:
            needed = shape.need_milli / MILLI if shape.share else shape.gpus
            return no.NoRoom(needed, len(opened), max(device_group.free for device_group in opened))
    return no.NoCpuRoom(shape.cpus, shape.memory_mib)
