"""Check whether one part of a shape fits in a device group, and build its slice there."""

from gpuyard.core.domain.placement import Slice
from gpuyard.core.placement.device_group_mask import DeviceGroupMask
from gpuyard.core.placement.index import DeviceGroup, Index
from gpuyard.core.placement.model_cache_affinity import ModelKey, pick
from gpuyard.core.placement.shape import Shape


def fits_now(shape: Shape, device_group: DeviceGroup) -> bool:
    """Whether one part of a shape fits in a device group now."""
    host = device_group.host
    if not host.open or host.cpus_free < shape.cpus or host.memory_free < shape.memory_mib:
        return False
    if shape.share is not None:
        return gpu_for_share(shape, device_group) is not None or device_group.free > 0
    if shape.whole_nodes:
        return device_group.free_mask == device_group.usable and device_group.free >= shape.gpus
    return device_group.free >= shape.gpus


def candidates(shape: Shape, index: Index) -> DeviceGroupMask:
    """Return the eligible device groups that may have enough CPUs and memory; `fits_now` must confirm each one."""
    device_groups = shape.eligible
    if shape.cpus:
        device_groups &= index.by_cpus_free.may_have(shape.cpus)
    if shape.memory_mib:
        device_groups &= index.by_memory_free.may_have(shape.memory_mib)
    return device_groups


def gpu_for_share(shape: Shape, device_group: DeviceGroup, left: int | None = None) -> int | None:
    """Return the index of the fullest shared GPU with room for the share, or None.

    `left`: consider only GPUs with exactly this many thousandths left.
    """
    milli, memory_mib = shape.share_of(device_group)
    fitting = [
        (shared.milli, gpu)
        for gpu, shared in device_group.shared.items()
        if device_group.usable >> gpu & 1
        and shared.milli >= milli
        and shared.memory_mib >= memory_mib
        and (left is None or shared.milli == left)
    ]
    return min(fitting)[1] if fitting else None


def whole_slice(shape: Shape, device_group: DeviceGroup, model: ModelKey | None) -> Slice:
    """Build the slice for one part of a shape that uses whole GPUs or none."""
    count = device_group.free if shape.whole_nodes else shape.gpus
    gpus = pick(device_group, count, shape.link, model) if count else ()
    return Slice(device_group.host.spec.id, gpus, cpus=shape.cpus, memory_mib=shape.memory_mib)


def share_slice(shape: Shape, device_group: DeviceGroup, gpu: int) -> Slice:
    """Build the slice of a share on the GPU with index `gpu`."""
    milli, memory_mib = shape.share_of(device_group)
    return Slice(device_group.host.spec.id, (gpu,), milli, memory_mib, shape.cpus, shape.memory_mib)
