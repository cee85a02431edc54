"""Effects of events about the whole cluster: scheduler epochs, limits of tenants and classes, settings."""

from collections.abc import Container

from msgspec.structs import replace

from gpuyard.core.domain import events
from gpuyard.core.domain.causes import Cause, CauseKind
from gpuyard.core.domain.errors import UnknownEvent
from gpuyard.core.domain.tenant import QuotaMode, Tenant
from gpuyard.core.domain.values import TaskId, TenantId
from gpuyard.core.engine.phases import HOLDING, Running
from gpuyard.core.engine.quota import BATCH, ONLINE, TenantUsage
from gpuyard.core.engine.state import DEFAULT_TENANT, State, holds_gpus
from gpuyard.core.engine.waiting.queue import LIMITS_CHANGED
from gpuyard.core.engine.waiting.sort_key import GUARANTEED

MOST_ORIGINS = 10_000
"""Maximum number of schedulers whose attempts are recognized as this cluster's own."""


def apply_cluster_created(state: State, event: events.ClusterCreated) -> None:
    """Set the name of the cluster; the first event of a journal."""
    if state.cluster_id:
        raise UnknownEvent(f"YardFounded refers to a cluster that already has the ID {state.cluster_id}.")
    state.cluster_id = event.cluster_id


def apply_epoch_began(state: State, event: events.EpochBegan) -> None:
    """Begin the epoch of a new scheduler; every node is away until it registers with it."""
    state.epoch, state.origin = event.epoch, event.origin
    state.origins[event.origin] = None
    while len(state.origins) > MOST_ORIGINS:
        del state.origins[next(iter(state.origins))]
    state.offline_after_seconds = event.offline_after_seconds
    _skip(state, event.last_task)
    for node in state.index.hosts:
        state.index.set_state(node, away=True)  # until it registers with this scheduler
    state.queue.quotas_changed(Cause(CauseKind.NODES_CHANGED))


def apply_task_numbers_skipped(state: State, event: events.TaskNumbersSkipped) -> None:
    """Skip numbers that were used by tasks unknown to this journal."""
    _skip(state, event.last_task)


def _skip(state: State, last: TaskId) -> None:
    """Record the numbers up to `last` as a gap, or extend the last gap."""
    if last <= state.last_task:
        return
    if state.gaps and state.gaps[-1][1] == state.last_task:
        state.gaps[-1] = (state.gaps[-1][0], last)
    else:
        state.gaps.append((TaskId(state.last_task + 1), last))
    state.last_task = last


def apply_epoch_ended(state: State, event: events.EpochEnded) -> None:
    """Note until when nodes do not count as lost because the scheduler has stopped."""
    state.scheduler_back_by = event.scheduler_back_by


def apply_access_changed(state: State, event: events.AccessChanged) -> None:
    """Do nothing: no scheduling decision depends on access."""


def apply_tenant_set(state: State, event: events.TenantSet) -> None:
    """Set the limits of a tenant; those of the default tenant apply to all tenants without limits of their own."""
    at = state.now
    tenant = event.tenant
    for class_index in (ONLINE, BATCH):
        state.queue.class_quota_freed(class_index, LIMITS_CHANGED)
    usage = state.tenants.get(tenant.id)
    if usage is None:
        usage = state.tenants[tenant.id] = TenantUsage(tenant, at)
    usage.given = True
    changed = {tenant.id: tenant}
    if tenant.id == DEFAULT_TENANT:
        state.default_tenant = tenant
        changed.update((name, replace(tenant, id=name)) for name, other in state.tenants.items() if not other.given)
    for name, limits in changed.items():
        _limit(state, state.tenants[name], limits, at)
    _count_models(state, changed.keys())
    state.note_guarantees()
    for reservation in state.reservations.values():
        if reservation.tenant_key == GUARANTEED and reservation.task.tenant_usage.id in changed:
            reservation.tenant_key = 0.0  # renewed with the rank that the new limits give it
    state.queue.reservation_ended(LIMITS_CHANGED)
    state.doubt_claims()


def _limit(state: State, usage: TenantUsage, tenant: Tenant, at: float) -> None:
    """Set the limits of a tenant; its budget period restarts only if the length of the period changes."""
    usage.settle(at, state.settings.fair_share_half_life_seconds)
    if (
        tenant.budget is None
        or usage.tenant.budget is None
        or tenant.budget.period_seconds != usage.tenant.budget.period_seconds
    ):
        usage.period_began, usage.spent_gpu_seconds = at, 0.0
    usage.set(tenant)
    state.watch_budget(usage, at)
    usage.used_by_model = {}
    state.queue.tenant_quota_freed(usage.id, LIMITS_CHANGED)


def _count_models(state: State, tenants: Container[TenantId]) -> None:
    """Recount what tenants use of the GPU models on which they have limits."""
    for task in state.tasks.values():
        usage = task.tenant_usage
        if usage.model_limits and usage.id in tenants and isinstance(task.phase, HOLDING) and holds_gpus(task.phase):
            for part in task.phase.placement.slices:
                if part.gpus:
                    model = state.index.hosts[part.node].device_group_of[part.gpus[0]].model
                    usage.used_by_model[model] = usage.used_by_model.get(model, 0) + len(part.gpus) * part.milli


def apply_split_set(state: State, event: events.SplitSet) -> None:
    """Set how the classes share the GPUs."""
    state.split = event.split
    if event.split.mode is not QuotaMode.BORROW:
        for reservation in state.reservations.values():
            reservation.borrowed = False  # without borrowing, no reservation ranks lower for it
    state.queue.reservation_ended(LIMITS_CHANGED)
    state.note_guarantees()
    state.divide()
    state.doubt_claims()  # a class that borrows may not preempt the other; without borrowing it may


def apply_settings_changed(state: State, event: events.SettingsChanged) -> None:
    """Apply new settings: requeue all waiting tasks and publish all wake-ups."""
    at = state.now
    state.use_settings(event.settings)
    state.weak.clear()
    state.orders.clear()
    if not event.settings.model_affinity:
        for device_group in state.index.all_device_groups():
            state.index.model_cache.forget(device_group)
    waiting = [task for task in state.tasks.values() if task.group is not None or task.shelf is not None]
    for task in waiting:
        state.requeue(task, at)
    for task in state.tasks.values():
        if isinstance(task.phase, Running):
            state.watch(task, at)
    state.queue.everything_changed(Cause(CauseKind.SETTINGS_CHANGED))
