"""The tenant that has used least for its weight goes first; within a tenant, priority and then order of submission.

Promise: over some half-lives, tenants that always have work get GPUs in proportion to their weights. Use fades, so
nobody pays for ever for a busy month. GPUs held at the moment count as an hour of use, so that one pass over an
empty yard already deals them out evenly.
Choose it where groups pay for the yard together. Within a tenant it is not fair, and it does not look at run times.
"""

from gpuyard.domain.settings import Settings
from gpuyard.domain.values import MILLI
from gpuyard.engine.policies.policy import Policy
from gpuyard.engine.quota import TenantBook
from gpuyard.engine.task import Task

HELD_COUNTS_FOR_SECONDS = 3600.0


def _tenant_key(book: TenantBook, now: float, settings: Settings) -> float:
    faded: float = book.usage * 2.0 ** (-max(0.0, now - book.since) / settings.fair_share_half_life_seconds)
    held = book.used / MILLI * (HELD_COUNTS_FOR_SECONDS + max(0.0, now - book.since))
    return (faded + held) / book.tenant.weight


def _key(task: Task, now: float, settings: Settings) -> float:  # noqa: ARG001
    return task.submitted_at - task.priority * settings.ageing_seconds


POLICY: Policy = Policy("fair_share", starts_all=True, key=_key, tenant_key=_tenant_key)
