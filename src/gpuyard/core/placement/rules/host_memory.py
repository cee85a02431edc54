"""The node has the host memory the task needs."""

from gpuyard.core.domain.refusals import HostMemoryTooSmall, Never
from gpuyard.core.domain.task import Resources
from gpuyard.core.placement.device_group_mask import DeviceGroupMask
from gpuyard.core.placement.index import Index


def device_groups(ask: Resources, index: Index) -> DeviceGroupMask:
    """Return the device groups of nodes with enough installed memory."""
    return index.by_memory.at_least(ask.memory_mib) if ask.memory_mib else index.everywhere


def refusal(ask: Resources, index: Index, among: DeviceGroupMask) -> Never:
    """Name the memory of the largest node."""
    return HostMemoryTooSmall(ask.memory_mib, index.by_memory.largest(among))
