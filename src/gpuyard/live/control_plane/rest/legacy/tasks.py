"""Tasks and tenants in the legacy API."""

from collections.abc import Mapping
from math import ceil

from gpuyard.core.domain.values import ENDED, NodeId, TaskStatus, TenantId
from gpuyard.input.strict import WrongRequest
from gpuyard.live.control_plane.access.principal import Action, may
from gpuyard.live.control_plane.queries import TaskPage
from gpuyard.live.control_plane.rest.context import AppContext
from gpuyard.live.control_plane.rest.legacy.messages import (
    STATUS_WORDS,
    CurrentTenant,
    LegacyCancelled,
    LegacyTask,
    StatsAnswer,
    TenantStats,
    device_numbers,
    in_legacy_words,
    read_legacy_task,
    task_request_of,
)
from gpuyard.live.control_plane.rest.lookup import find_answer, read_answer
from gpuyard.live.control_plane.rest.request import Request
from gpuyard.live.control_plane.rest.responses import Response, json_response
from gpuyard.live.control_plane.rest.submit import accept, submission_of
from gpuyard.live.control_plane.rest.tasks import cancel, cursor_of, find_page
from gpuyard.live.control_plane.rest.tenants import find_tenant, tenants_of
from gpuyard.live.control_plane.settings import DEFAULT_TENANT
from gpuyard.live.wire.answers import TenantAnswer
from gpuyard.live.wire.task_answers import TaskAnswer
from gpuyard.live.wire.tasks import HIGH, LOW

OPEN = (TaskStatus.PENDING, TaskStatus.RUNNING, TaskStatus.SUSPENDED)


async def post_task(context: AppContext, request: Request) -> Response:
    """Submit a task; without a command it is a lease."""
    body = await request.body()
    try:
        submission = submission_of(context, request, task_request_of(read_legacy_task(body)))
    except WrongRequest as wrong:
        raise in_legacy_words(wrong) from None
    [answer] = await accept(context, request, [submission], body)
    return json_response(_told(read_answer(answer), _numbers(context)), 201)


async def list_tasks(context: AppContext, request: Request) -> Response:
    """List a page of tasks as a plain list; the total and the next page are in headers."""
    return _list(context, await find_page(context, request))


async def list_tasks_of_tenant(context: AppContext, request: Request) -> Response:
    """List a tenant's tasks that have not ended, unless the query asks for others."""
    tenant = TenantId(request.path_params["id"])
    if not may(request.principal, Action.SEE, tenant):
        raise WrongRequest("UnknownTenant", f"Tenant {tenant[:64]} does not exist.", "tenant_id", status=404)
    asked = {"status": OPEN, **request.query, "tenant": tenant}
    return _list(context, await find_page(context, request, asked))


def _list(context: AppContext, page: TaskPage) -> Response:
    numbers = _numbers(context)
    headers = {"x-total-count": str(page.total)}
    if page.next_cursor is not None:
        headers["x-next-cursor"] = cursor_of(page.next_cursor)
    return json_response([_told(read_answer(bytes(answer)), numbers) for answer in page.answers], 200, headers)


async def get_task(context: AppContext, request: Request) -> Response:
    """Return one task."""
    _, answer = await find_answer(context, request)
    return json_response(_told(read_answer(answer), _numbers(context)))


async def cancel_task(context: AppContext, request: Request) -> Response:
    """Cancel a task. The legacy API has no state in between: a task that is being stopped is cancelled."""
    status = (await cancel(context, request, done="cancelled", doing="stopped")).status
    return json_response(LegacyCancelled(STATUS_WORDS[status] if status in ENDED else "cancelled"))


async def current_tenant(context: AppContext, request: Request) -> Response:
    """Return the tenant whose limits apply to the caller's submissions."""
    name = request.principal.tenant or DEFAULT_TENANT
    entry = context.settings.tenant_entry(name)
    try:
        told = await find_tenant(context, request, name)
    except WrongRequest:
        told = _untouched(name, entry.max_gpus)
    return json_response(
        CurrentTenant(
            id=name,
            name=name,
            description="",
            max_gpus=_gpus_in_cluster(context) if told.max_gpus is None else told.max_gpus,
            max_memory=entry.max_memory_per_gpu,
            priority=entry.priority,
            created_at="",
            active=True,
            tenant_id=name,
            max_memory_per_gpu=entry.max_memory_per_gpu,
            used_gpus=told.used_gpus,
            pending_tasks=told.pending_tasks,
            running_tasks=told.running_tasks,
        )
    )


def _untouched(name: str, max_gpus: int | None) -> TenantAnswer:
    """Return the answer for a tenant without any activity."""
    return TenantAnswer(
        id=name,
        max_gpus=max_gpus,
        max_gpus_by_model={},
        max_open_tasks=None,
        guaranteed_gpus=None,
        weight=1.0,
        gpu_hours=None,
        gpu_hours_period=None,
        used_gpus=0,
        pending_tasks=0,
        running_tasks=0,
    )


async def get_stats(context: AppContext, request: Request) -> Response:
    """Return the number of tasks by tenant."""
    seen = [tenant for tenant in await tenants_of(context) if may(request.principal, Action.SEE, TenantId(tenant.id))]
    tenants = {tenant.id: _stats(context, tenant) for tenant in seen}
    pending = sum(tenant.pending_tasks for tenant in seen)
    return json_response(StatsAnswer(pending, sum(tenant.running_tasks for tenant in seen), tenants))


def _stats(context: AppContext, tenant: TenantAnswer) -> TenantStats:
    most = _gpus_in_cluster(context) if tenant.max_gpus is None else tenant.max_gpus
    return TenantStats(
        max_gpus=most,
        used_gpus=ceil(tenant.used_gpus),
        max_memory_per_gpu=context.settings.tenant_entry(tenant.id).max_memory_per_gpu,
        usage_percent=round(100.0 * tenant.used_gpus / most, 3) if most else 0.0,
        pending_tasks=tenant.pending_tasks,
        running_tasks=tenant.running_tasks,
    )


def _gpus_in_cluster(context: AppContext) -> int:
    return sum(len(view.spec.gpus) for view in context.scheduler.views.nodes.values())


def _numbers(context: AppContext) -> dict[NodeId, int]:
    return device_numbers(view.spec for view in context.scheduler.views.nodes.values())


def _told(task: TaskAnswer, numbers: Mapping[NodeId, int]) -> LegacyTask:
    """Convert the answer of /api/v1."""
    devices = []
    placed = task.status is not TaskStatus.PENDING  # legacy clients expect no device before the start
    for gpu in task.allocated_gpus if placed else ():
        node, _, index = gpu.rpartition("/")
        if NodeId(node) in numbers:
            devices.append(numbers[NodeId(node)] + int(index))
    return LegacyTask(
        id=task.id,
        tenant_id=task.tenant_id,
        name=task.name,
        description=task.description,
        gpu_request=task.gpu_count * task.nodes or int(task.gpu_fraction is not None),
        memory_mb=task.gpu_memory_mb or 0,
        priority=_number(task.priority),
        status=STATUS_WORDS[task.status],
        created_at=task.created_at,
        started_at=task.started_at,
        finished_at=task.finished_at,
        device_ids=devices,
        timeout=ceil(task.timeout or 0),
        created_by=task.created_by,
    )


def _number(priority: str | int) -> int:
    if isinstance(priority, int):
        return priority
    return HIGH[1] if priority == "high" else LOW[1]
