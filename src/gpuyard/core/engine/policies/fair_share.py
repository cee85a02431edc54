"""The tenant with the least usage relative to its weight first; within a tenant, by priority, then in order of submission.

Promise: over several half-lives, tenants that always have work get GPUs in proportion to their weights. Past usage decays,
so a busy month is not held against a tenant permanently. Each GPU in use counts as one more hour of usage, so that a
single pass over an empty cluster already divides the GPUs evenly.
Choose it where groups pay for a cluster together. It is not fair between the users of one tenant, and it does not
consider run times.

Usage decays at the same rate for all tenants, so the key is the logarithm of usage in units that shrink at that rate: time
alone does not change the order of tenants that use nothing, and keys computed at different times can be compared.
"""

from math import log2

from gpuyard.core.domain.settings import Settings
from gpuyard.core.domain.values import MILLI
from gpuyard.core.engine.policies.policy import Policy
from gpuyard.core.engine.quota import TenantUsage
from gpuyard.core.engine.task import OpenTask

HELD_COUNTS_FOR_SECONDS = 3600.0
USED_NOTHING = -1e12
"""The key of a tenant without usage: before every tenant with usage."""


def _tenant_key(usage: TenantUsage, now: float, settings: Settings) -> float:
    half_life = settings.fair_share_half_life_seconds
    use, since = usage.decayed_gpu_seconds, usage.since
    if usage.used:
        passed = max(0.0, now - since)
        use = use * 2.0 ** (-passed / half_life) + usage.used / MILLI * (HELD_COUNTS_FOR_SECONDS + passed)
        since += passed
    by_weight = use / usage.tenant.weight
    return log2(by_weight) + since / half_life if by_weight else USED_NOTHING


def _key(task: OpenTask, now: float, settings: Settings) -> float:  # noqa: ARG001
    return task.submitted_at - task.priority * settings.aging_seconds


POLICY: Policy = Policy("fair_share", starts_all=True, key=_key, tenant_key=_tenant_key)
