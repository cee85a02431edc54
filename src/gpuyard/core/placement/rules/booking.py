"""The GPUs belong to the booking that the task names.

A booking that has ended restricts nothing: its remaining tasks compete for all GPUs like tasks without a booking.
"""

from gpuyard.core.domain.refusals import BookedNodesUnsuitable, Never
from gpuyard.core.domain.task import Resources
from gpuyard.core.placement.device_group_mask import DeviceGroupMask
from gpuyard.core.placement.index import Index


def device_groups(ask: Resources, index: Index) -> DeviceGroupMask:
    """Return the device groups of the booking; all device groups if the task names none, or one that has ended."""
    if not ask.booking:
        return index.everywhere
    return index.booked.get(ask.booking, index.everywhere)


def refusal(ask: Resources, index: Index, among: DeviceGroupMask) -> Never:  # noqa: ARG001
    """Name the booking."""
    return BookedNodesUnsuitable(ask.booking)
