"""The node has as many GPUs of one model as the task needs on each node."""

from gpuyard.core.domain.refusals import Never, NodeTooSmall
from gpuyard.core.domain.task import Resources
from gpuyard.core.placement.device_group_mask import DeviceGroupMask
from gpuyard.core.placement.index import Index


def _needed(ask: Resources) -> int:
    return 1 if ask.share else ask.gpus


def device_groups(ask: Resources, index: Index) -> DeviceGroupMask:
    """Return the device groups with enough GPUs; for a task without GPUs, the first device group of every node."""
    needed = _needed(ask)
    return index.by_gpu_count.at_least(needed) if needed else index.primary


def refusal(ask: Resources, index: Index, among: DeviceGroupMask) -> Never:
    """Name the GPU count of the largest device group."""
    return NodeTooSmall(_needed(ask), index.by_gpu_count.largest(among))
