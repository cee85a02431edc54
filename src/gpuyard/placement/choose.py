"""Choose a placement, or say why there is none at the moment.

`choose` is the fast path: it returns a placement or nothing, and has no time for reasons. `why_not` is asked
afterwards, by `explain` only, and looks at everything again.
"""

from collections.abc import Iterator, Sequence
from itertools import islice

from gpuyard.domain import refusals as no
from gpuyard.domain.placement import Placement, Slice
from gpuyard.domain.values import MILLI, Link, NodeId
from gpuyard.placement.bayset import BaySet, members, without
from gpuyard.placement.index import Bay, Index
from gpuyard.placement.shape import Shape

LINK_CHOICES = 16
"""How many equally full nodes are compared for a task that wishes for NVLink or one NUMA domain."""


def choose(shape: Shape, index: Index, order: Sequence[int], forbidden: BaySet = 0) -> Placement | None:
    """Find room for a shape outside the forbidden bays; `order` is the score's, over numbers of free GPUs."""
    eligible = shape.eligible
    if forbidden:
        eligible = without(eligible, forbidden)
    if shape.plain and shape.link is Link.ANY:
        by_free, most = index.by_free, len(index.by_free)
        for free in order:
            if free < most and (found := by_free[free] & eligible):
                bay = index.bays[found.bit_length() - 1]
                assert bay is not None
                return Placement((Slice(bay.host.spec.id, bay.topology.pick(bay.free_mask, shape.gpus, Link.ANY)),))
        return None
    if shape.share is not None:
        return _choose_share(shape, index, eligible)
    if shape.nodes > 1:
        return _choose_gang(shape, index, order, eligible)
    bay = _first(shape, index, order, eligible)
    return None if bay is None else Placement((_slice(shape, bay),))


def fits_now(shape: Shape, bay: Bay) -> bool:
    """Whether one part of a shape finds room in a bay as it is."""
    host = bay.host
    if host.lost or host.cordoned or host.cpus_free < shape.cpus or host.memory_free < shape.memory_mib:
        return False
    if shape.share is not None:
        return _share_card(shape, bay) is not None or bay.free > 0
    if shape.whole_nodes:
        return bay.free_mask == bay.usable and bay.free >= shape.gpus
    return bay.free >= shape.gpus


def rooms(shape: Shape, index: Index, forbidden: BaySet = 0) -> list[Bay]:
    """All bays, one a node, where one part of a shape finds room now."""
    seen: set[NodeId] = set()
    found = []
    for number in members(without(_candidates(shape, index), forbidden)):
        bay = index.bay(number)
        if bay.host.spec.id not in seen and fits_now(shape, bay):
            seen.add(bay.host.spec.id)
            found.append(bay)
    return found


def _candidates(shape: Shape, index: Index) -> BaySet:
    """Every eligible bay that may have the CPUs and memory; the few at the border have to be looked at."""
    bays = shape.eligible
    if shape.cpus:
        bays &= index.by_cpus_free.maybe(shape.cpus)
    if shape.memory_mib:
        bays &= index.by_memory_free.maybe(shape.memory_mib)
    return bays


def _first(shape: Shape, index: Index, order: Sequence[int], eligible: BaySet) -> Bay | None:
    """The first bay with room, in the score's order."""
    candidates = _candidates(shape, index) & eligible
    if shape.whole_nodes:
        candidates &= index.idle
    for bays in _by_preference(shape, index, order, candidates):
        fitting = _fitting(shape, index, bays)
        first = next(fitting, None)
        if first is not None:
            return first if shape.link is Link.ANY else _closest(shape, first, fitting)
    return None


def _fitting(shape: Shape, index: Index, bays: BaySet) -> Iterator[Bay]:
    """Those of the bays where one part of a shape finds room now."""
    for number in members(bays):
        bay = index.bay(number)
        if fits_now(shape, bay):
            yield bay


def _by_preference(shape: Shape, index: Index, order: Sequence[int], candidates: BaySet) -> list[BaySet]:
    if shape.gpus == 0:  # CPUs only: leave nodes with GPUs to those who need them
        return [candidates & index.without_gpus, without(candidates, index.without_gpus)]
    return [index.by_free[free] & candidates for free in order if free < len(index.by_free)]


def _closest(shape: Shape, first: Bay, others: Iterator[Bay]) -> Bay:
    """Of a few equally full bays, the one whose free cards hang together best."""
    best, best_pieces = first, _pieces(shape, first)
    for bay in islice(others, LINK_CHOICES):
        if best_pieces == 1:
            break
        if (pieces := _pieces(shape, bay)) < best_pieces:
            best, best_pieces = bay, pieces
    return best


def _pieces(shape: Shape, bay: Bay) -> int:
    return bay.topology.pieces(bay.topology.pick(bay.free_mask, shape.gpus, shape.link), shape.link)


def _slice(shape: Shape, bay: Bay) -> Slice:
    count = bay.free if shape.whole_nodes else shape.gpus
    gpus = bay.topology.pick(bay.free_mask, count, shape.link) if count else ()
    return Slice(bay.host.spec.id, gpus, cpus=shape.cpus, memory_mib=shape.memory_mib)


def _choose_gang(shape: Shape, index: Index, order: Sequence[int], eligible: BaySet) -> Placement | None:
    candidates = _candidates(shape, index) & eligible
    if shape.whole_nodes:
        candidates &= index.idle
    chosen: dict[NodeId, Bay] = {}
    for bays in _by_preference(shape, index, order, candidates):
        for number in members(bays):
            bay = index.bay(number)
            if bay.host.spec.id not in chosen and fits_now(shape, bay):
                chosen[bay.host.spec.id] = bay
                if len(chosen) == shape.nodes:
                    return Placement(tuple(_slice(shape, bay) for bay in chosen.values()))
    return None


def _choose_share(shape: Shape, index: Index, eligible: BaySet) -> Placement | None:
    """The fullest shared card that still has room; else a fresh card, on the node with the fewest free ones."""
    candidates = _candidates(shape, index) & eligible
    for left in sorted(left for left in index.by_left if left >= shape.need_milli):
        for bay in _fitting(shape, index, index.by_left[left] & candidates):
            card = _share_card(shape, bay)
            if card is not None and bay.shared[card].milli == left:
                return Placement((_share_slice(shape, bay, card),))
    for free in range(1, len(index.by_free)):
        for number in members(index.by_free[free] & candidates):
            bay = index.bay(number)
            if fits_now(shape, bay):
                (card,) = bay.topology.pick(bay.free_mask, 1, Link.ANY)
                return Placement((_share_slice(shape, bay, card),))
    return None


def _share_card(shape: Shape, bay: Bay) -> int | None:
    """The fullest shared card of a bay with room for the share."""
    milli, memory_mib = shape.share_of(bay)
    fitting = [
        (card.milli, gpu)
        for gpu, card in bay.shared.items()
        if bay.usable >> gpu & 1 and card.milli >= milli and card.memory_mib >= memory_mib
    ]
    return min(fitting)[1] if fitting else None


def _share_slice(shape: Shape, bay: Bay, card: int) -> Slice:
    milli, memory_mib = shape.share_of(bay)
    return Slice(bay.host.spec.id, (card,), milli, memory_mib, shape.cpus, shape.memory_mib)


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
        return no.GangIncomplete(shape.nodes, len(rooms(shape, index)))
    if shape.gpus or shape.share:
        enough = [
            bay
            for bay in opened
            if bay.free >= max(shape.gpus, 1) or (shape.share and _share_card(shape, bay) is not None)
        ]
        if not enough:
            needed = shape.need_milli / MILLI if shape.share else shape.gpus
            return no.NoRoom(needed, len(opened), max(bay.free for bay in opened))
    return no.NoCpuRoom(shape.cpus, shape.memory_mib)
