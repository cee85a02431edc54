"""Choose a placement, or say why there is none at the moment.

`choose` is the fast path: it returns a placement or nothing, and has no time for reasons. `why_not` is asked
afterwards, by `explain` only, and looks at everything again.
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
from gpuyard.core.placement.room import candidates, fits_now, share_card, share_slice, whole_slice
from gpuyard.core.placement.scores import NodeOrder
from gpuyard.core.placement.scores.fragmentation import FragmentationCosts
from gpuyard.core.placement.shape import Shape

LINK_CHOICES = 16
"""How many equally full nodes are compared for a task that wishes for NVLink or one NUMA domain."""


def choose(
    shape: Shape,
    index: Index,
    order: NodeOrder,
    forbidden: DeviceGroupMask = 0,
    *,
    wherever: bool = False,
    model: ModelKey | None = None,
) -> Placement | None:
    """Find room for a shape outside the forbidden bays, where it is fastest, in the score's order; of what is equal in
    both, where the model ran last. `wherever`: how fast is all one.
    """
    if shape.speeds is not None and not wherever:
        return _choose_fast(shape, index, order, forbidden, model)
    eligible = shape.eligible
    if forbidden:
        eligible = without(eligible, forbidden)
    if isinstance(order, FragmentationCosts):
        if shape.nodes == 1 and not shape.whole_nodes and shape.link is Link.ANY:
            return find_cheapest(shape, index, order, eligible, model)
        order = order.counts(shape.gpus)
    if shape.plain and shape.link is Link.ANY:
        by_free, most = index.by_free, len(index.by_free)
        for free in order:
            if free < most and (found := by_free[free] & eligible):
                if model is not None:
                    found = found & index.model_cache.bays(model) or found
                bay = index.bays[found.bit_length() - 1]
                assert bay is not None
                return Placement((Slice(bay.host.spec.id, pick(bay, shape.gpus, Link.ANY, model)),))
        return None
    if shape.share is not None:
        return _choose_share(shape, index, eligible, model)
    if shape.nodes > 1:
        return _choose_gang(shape, index, order, eligible, model)
    bay = _first(shape, index, order, eligible, model)
    return None if bay is None else Placement((whole_slice(shape, bay, model),))


def _choose_fast(
    shape: Shape, index: Index, order: NodeOrder, forbidden: DeviceGroupMask, model: ModelKey | None
) -> Placement | None:
    """Each speed has its bays; a gang takes bays of several speeds only if none of them has room for all of it."""
    for _, bays in shape.tiers:
        placement = choose(shape, index, order, forbidden | without(shape.eligible, bays), wherever=True, model=model)
        if placement is not None:
            return placement
    return choose(shape, index, order, forbidden, wherever=True, model=model) if shape.nodes > 1 else None


def groups_with_room(shape: Shape, index: Index, forbidden: DeviceGroupMask = 0) -> list[DeviceGroup]:
    """All bays, one a node, where one part of a shape finds room now."""
    seen: set[NodeId] = set()
    found = []
    for number in members(without(candidates(shape, index), forbidden)):
        bay = index.bay(number)
        if bay.host.spec.id not in seen and fits_now(shape, bay):
            seen.add(bay.host.spec.id)
            found.append(bay)
    return found


def _first(
    shape: Shape, index: Index, order: Sequence[int], eligible: DeviceGroupMask, model: ModelKey | None
) -> DeviceGroup | None:
    """The first bay with room, in the score's order."""
    possible = candidates(shape, index) & eligible
    if shape.whole_nodes:
        possible &= index.idle
    for bays in _warm_first(_by_preference(shape, index, order, possible), index.model_cache.bays(model)):
        fitting = _fitting(shape, index, bays)
        first = next(fitting, None)
        if first is not None:
            return first if shape.link is Link.ANY else _closest(shape, first, fitting)
    return None


def _fitting(shape: Shape, index: Index, bays: DeviceGroupMask) -> Iterator[DeviceGroup]:
    """Those of the bays where one part of a shape finds room now."""
    for number in members(bays):
        bay = index.bay(number)
        if fits_now(shape, bay):
            yield bay


def _by_preference(
    shape: Shape, index: Index, order: Sequence[int], possible: DeviceGroupMask
) -> list[DeviceGroupMask]:
    if shape.gpus == 0:  # CPUs only: leave nodes with GPUs to those who need them
        return [possible & index.without_gpus, without(possible, index.without_gpus)]
    return [index.by_free[free] & possible for free in order if free < len(index.by_free)]


def _warm_first(sets: Iterable[DeviceGroupMask], warm: DeviceGroupMask) -> Iterator[DeviceGroupMask]:
    """The same sets, each cut into the bays where a model ran last and the others."""
    for bays in sets:
        if here := bays & warm:
            yield here
        yield bays ^ here


def _closest(shape: Shape, first: DeviceGroup, others: Iterator[DeviceGroup]) -> DeviceGroup:
    """Of a few equally full bays, the one whose free cards hang together best."""
    best, best_pieces = first, _pieces(shape, first)
    for bay in islice(others, LINK_CHOICES):
        if best_pieces == 1:
            break
        if (pieces := _pieces(shape, bay)) < best_pieces:
            best, best_pieces = bay, pieces
    return best


def _pieces(shape: Shape, bay: DeviceGroup) -> int:
    return bay.topology.pieces(bay.topology.pick(bay.free_mask, shape.gpus, shape.link), shape.link)


def _choose_gang(
    shape: Shape, index: Index, order: Sequence[int], eligible: DeviceGroupMask, model: ModelKey | None
) -> Placement | None:
    possible = candidates(shape, index) & eligible
    if shape.whole_nodes:
        possible &= index.idle
    chosen: dict[NodeId, DeviceGroup] = {}
    for bays in _warm_first(_by_preference(shape, index, order, possible), index.model_cache.bays(model)):
        for number in members(bays):
            bay = index.bay(number)
            if bay.host.spec.id not in chosen and fits_now(shape, bay):
                chosen[bay.host.spec.id] = bay
                if len(chosen) == shape.nodes:
                    return Placement(tuple(whole_slice(shape, bay, model) for bay in chosen.values()))
    return None


def _choose_share(shape: Shape, index: Index, eligible: DeviceGroupMask, model: ModelKey | None) -> Placement | None:
    """The fullest shared card that still has room; else a fresh card, on the node with the fewest free ones."""
    possible, warm = candidates(shape, index) & eligible, index.model_cache.bays(model)
    for left in sorted(left for left in index.by_left if left >= shape.need_milli):
        for bays in _warm_first((index.by_left[left] & possible,), warm):
            for bay in _fitting(shape, index, bays):
                card = share_card(shape, bay)
                if card is not None and bay.shared[card].milli == left:
                    return Placement((share_slice(shape, bay, card),))
    for bays in _warm_first((bays & possible for bays in index.by_free[1:]), warm):
        for bay in _fitting(shape, index, bays):
            (card,) = pick(bay, 1, Link.ANY, model)
            return Placement((share_slice(shape, bay, card),))
    return None


def why_not(shape: Shape, index: Index) -> no.Refusal:
    """Why a shape finds no room now, from the reason that lasts longest to the one that passes soonest."""
    shape.refresh(index)
    if never := shape.never(index):
        return never
    bays = [index.bay(number) for number in members(shape.eligible)]
    opened = [bay for bay in bays if bay.host.open and (bay.usable.bit_count() >= shape.gpus)]
    hosts = len({bay.host.spec.id for bay in opened})
    if hosts < shape.nodes:
        return no.NodesClosed(shape.nodes, len(index.hosts_of(shape.eligible)), hosts)
    if shape.nodes > 1:
        return no.GangIncomplete(shape.nodes, len(groups_with_room(shape, index)))
    if shape.gpus or shape.share:
        enough = [
            bay
            for bay in opened
            if bay.free >= max(shape.gpus, 1) or (shape.share and share_card(shape, bay) is not None)
        ]
        if not enough:
            needed = shape.need_milli / MILLI if shape.share else shape.gpus
            return no.NoRoom(needed, len(opened), max(bay.free for bay in opened))
    return no.NoCpuRoom(shape.cpus, shape.memory_mib)
