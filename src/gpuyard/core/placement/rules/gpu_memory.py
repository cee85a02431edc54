"""Each GPU has the memory the task needs; a share needs a GPU with at least its memory."""

from gpuyard.core.domain.refusals import GpuMemoryTooSmall, Never
from gpuyard.core.domain.task import Resources
from gpuyard.core.placement.device_group_mask import DeviceGroupMask
from gpuyard.core.placement.index import Index


def _needed_mib(ask: Resources) -> int:
    return max(ask.gpu_memory_mib, ask.share.memory_mib if ask.share else 0)


def device_groups(ask: Resources, index: Index) -> DeviceGroupMask:
    """Return the device groups whose GPUs have enough memory."""
    needed = _needed_mib(ask)
    return index.by_gpu_memory.at_least(needed) if needed else index.everywhere


def refusal(ask: Resources, index: Index, among: DeviceGroupMask) -> Never:
    """Name the largest GPU memory."""
    return GpuMemoryTooSmall(_needed_mib(ask), index.by_gpu_memory.largest(among))
