"""Whether one part of a shape finds room in a bay, and what it takes there."""

from gpuyard.core.domain.placement import Slice
from gpuyard.core.placement.device_group_mask import DeviceGroupMask
from gpuyard.core.placement.index import DeviceGroup, Index
from gpuyard.core.placement.model_cache_affinity import ModelKey, pick
from gpuyard.core.placement.shape import Shape


def fits_now(shape: Shape, bay: DeviceGroup) -> bool:
    """Whether one part of a shape finds room in a bay as it is."""
    host = bay.host
    if host.lost or host.away or host.cordoned or host.cpus_free < shape.cpus or host.memory_free < shape.memory_mib:
        return False
    if shape.share is not None:
        return share_card(shape, bay) is not None or bay.free > 0
    if shape.whole_nodes:
        return bay.free_mask == bay.usable and bay.free >= shape.gpus
    return bay.free >= shape.gpus


def candidates(shape: Shape, index: Index) -> DeviceGroupMask:
    """Every eligible bay that may have the CPUs and memory; the few at the border have to be looked at."""
    bays = shape.eligible
    if shape.cpus:
        bays &= index.by_cpus_free.may_have(shape.cpus)
    if shape.memory_mib:
        bays &= index.by_memory_free.may_have(shape.memory_mib)
    return bays


def share_card(shape: Shape, bay: DeviceGroup, left: int | None = None) -> int | None:
    """The fullest shared card of a bay with room for the share; or one with exactly so many thousandths left."""
    milli, memory_mib = shape.share_of(bay)
    fitting = [
        (card.milli, gpu)
        for gpu, card in bay.shared.items()
        if bay.usable >> gpu & 1
        and card.milli >= milli
        and card.memory_mib >= memory_mib
        and (left is None or card.milli == left)
    ]
    return min(fitting)[1] if fitting else None


def whole_slice(shape: Shape, bay: DeviceGroup, model: ModelKey | None) -> Slice:
    """What a part with whole GPUs, or none, takes."""
    count = bay.free if shape.whole_nodes else shape.gpus
    gpus = pick(bay, count, shape.link, model) if count else ()
    return Slice(bay.host.spec.id, gpus, cpus=shape.cpus, memory_mib=shape.memory_mib)


def share_slice(shape: Shape, bay: DeviceGroup, card: int) -> Slice:
    """What a share takes."""
    milli, memory_mib = shape.share_of(bay)
    return Slice(bay.host.spec.id, (card,), milli, memory_mib, shape.cpus, shape.memory_mib)
