"""The node has a system account for the task.

An agent that runs as root and does not share its own account runs only tasks that are mapped to a system account. Its
node carries a label for this, and one more label for each tenant and user that the agent's own settings map.
"""

from gpuyard.core.domain.node import MAPPED_ONLY, tenant_account_label, user_account_label
from gpuyard.core.domain.refusals import Never, NoSystemUser
from gpuyard.core.domain.task import Resources
from gpuyard.core.placement.device_group_mask import DeviceGroupMask, without
from gpuyard.core.placement.index import Index


def device_groups(ask: Resources, index: Index) -> DeviceGroupMask:
    """Return the device groups of nodes that run tasks of every tenant, or map this tenant or user."""
    if ask.account is None:
        return index.everywhere
    tenant, user = ask.account
    mapped = index.by_label.get(tenant_account_label(tenant), 0) | index.by_label.get(user_account_label(user), 0)
    return without(index.everywhere, index.by_label.get(MAPPED_ONLY, 0)) | mapped


def refusal(ask: Resources, index: Index, among: DeviceGroupMask) -> Never:  # noqa: ARG001
    """Name the user, the tenant and the command that maps the user."""
    assert ask.account is not None
    tenant, user = ask.account
    return NoSystemUser(tenant, user)
