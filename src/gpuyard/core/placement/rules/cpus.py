"""The node has the CPUs the task needs."""

from gpuyard.core.domain.refusals import Never, TooFewCpus
from gpuyard.core.domain.task import Resources
from gpuyard.core.placement.device_group_mask import DeviceGroupMask
from gpuyard.core.placement.index import Index


def device_groups(ask: Resources, index: Index) -> DeviceGroupMask:
    """Return the device groups of nodes with enough installed CPUs."""
    return index.by_cpus.at_least(ask.cpus) if ask.cpus else index.everywhere


def refusal(ask: Resources, index: Index, among: DeviceGroupMask) -> Never:
    """Name the CPU count of the largest node."""
    return TooFewCpus(ask.cpus, index.by_cpus.largest(among))
