"""The tenant that has used least for its weight goes first; within a tenant, priority and then order of submission.

Promise: over some half-lives, tenants that always have work get GPUs in proportion to their weights. Use fades, so
nobody pays for ever for a busy month. GPUs held at the moment count as an hour of use, so that one pass over an
empty cluster already deals them out evenly.
Choose it where groups pay for the cluster together. Within a tenant it is not fair, and it does not look at run times.

Use fades for everybody at the same pace, so the key is the logarithm of use in units that shrink at that pace: time alone
changes no order between tenants that use nothing, and a key written down yesterday can be compared with one of today.
"""

from math import log2

from gpuyard.core.domain.settings import Settings
from gpuyard.core.domain.values import MILLI
from gpuyard.core.engine.policies.policy import Policy
from gpuyard.core.engine.quota import TenantUsage
from gpuyard.core.engine.task import Task

HELD_COUNTS_FOR_SECONDS = 3600.0
USED_NOTHING = -1e12
"""Before everybody who ever used anything."""


def _tenant_key(usage: TenantUsage, now: float, settings: Settings) -> float:
    half_life = settings.fair_share_half_life_seconds
    use, since = usage.decayed_gpu_seconds, usage.since
    if usage.used:
        passed = max(0.0, now - since)
        use = use * 2.0 ** (-passed / half_life) + usage.used / MILLI * (HELD_COUNTS_FOR_SECONDS + passed)
        since += passed
    by_weight = use / usage.tenant.weight
    return log2(by_weight) + since / half_life if by_weight else USED_NOTHING


def _key(task: Task, now: float, settings: Settings) -> float:  # noqa: ARG001
    return task.submitted_at - task.priority * settings.aging_seconds


POLICY: Policy = Policy("fair_share", starts_all=True, key=_key, tenant_key=_tenant_key)
