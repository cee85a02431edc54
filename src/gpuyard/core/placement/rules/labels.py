"""The node carries every label the task names."""

from gpuyard.core.domain.refusals import Never, NoNodeWithLabels
from gpuyard.core.domain.task import Resources
from gpuyard.core.placement.device_group_mask import DeviceGroupMask
from gpuyard.core.placement.index import Index


def device_groups(ask: Resources, index: Index) -> DeviceGroupMask:
    """Return the device groups of nodes that carry all the labels."""
    found = index.everywhere
    for label in ask.labels:
        found &= index.by_label.get(label, 0)
    return found


def refusal(ask: Resources, index: Index, among: DeviceGroupMask) -> Never:
    """Name the labels that no node of `among` carries; all of them if each exists, but no node carries all."""
    missing = [f"{key}={value}" for key, value in ask.labels if not index.by_label.get((key, value), 0) & among]
    return NoNodeWithLabels(tuple(missing or [f"{key}={value}" for key, value in ask.labels]))
