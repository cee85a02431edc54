"""Rules: what a node must be, whatever runs on it at the moment. One rule a file, all of them in this list.

A rule is a module with two functions: `device_groups(ask, index)` gives every device group that obeys it, and
`refusal(ask, index, among)` says what is wrong when none of `among` does, naming what would change that.
The order is the order in which a refusal looks for its reason: what users get wrong most often comes first.
"""

from typing import Protocol

from gpuyard.core.domain.refusals import Never
from gpuyard.core.domain.task import Resources
from gpuyard.core.placement.device_group_mask import DeviceGroupMask
from gpuyard.core.placement.index import Index
from gpuyard.core.placement.rules import accounts, cpus, gpu_count, gpu_memory, gpu_model, host_memory, labels


class Rule(Protocol):
    """The two functions of a rule's module."""

    def device_groups(self, ask: Resources, index: Index) -> DeviceGroupMask:
        """Every device group that obeys the rule."""

    def refusal(self, ask: Resources, index: Index, among: DeviceGroupMask) -> Never:
        """Why none of `among` does."""


RULES: tuple[Rule, ...] = (gpu_model, gpu_memory, gpu_count, labels, cpus, host_memory, accounts)
