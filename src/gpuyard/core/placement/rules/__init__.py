"""Rules: requirements on a node that do not depend on its current load. One file per rule; `RULES` lists all of them.

A rule is a module with two functions: `device_groups(ask, index)` returns every device group that meets the rule, and
`refusal(ask, index, among)` returns the reason when none of `among` does, and names what would change that.
A refusal gives the first failing rule in this order: the most frequent mistakes of users come first.
"""

from typing import Protocol

from gpuyard.core.domain.refusals import Never
from gpuyard.core.domain.task import Resources
from gpuyard.core.placement.device_group_mask import DeviceGroupMask
from gpuyard.core.placement.index import Index
from gpuyard.core.placement.rules import accounts, booking, cpus, gpu_count, gpu_memory, gpu_model, host_memory, labels


class Rule(Protocol):
    """The two functions of a rule's module."""

    def device_groups(self, ask: Resources, index: Index) -> DeviceGroupMask:
        """Return every device group that meets the rule."""

    def refusal(self, ask: Resources, index: Index, among: DeviceGroupMask) -> Never:
        """Return why no device group of `among` meets the rule."""


RULES: tuple[Rule, ...] = (gpu_model, gpu_memory, gpu_count, labels, cpus, host_memory, accounts, booking)
