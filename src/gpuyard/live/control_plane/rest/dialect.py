"""002's addresses below /api: the same tasks and tenants in its words."""

from collections.abc import Mapping
from math import ceil

from gpuyard.core.domain.values import ENDED, NodeId, TaskStatus, TenantId
from gpuyard.input.strict import WrongRequest
from gpuyard.live.control_plane.access.who import Action, may
from gpuyard.live.control_plane.rest.answer import Answer, say
from gpuyard.live.control_plane.rest.call import Call, Desk
from gpuyard.live.control_plane.rest.lookup import find_answer, read_answer
from gpuyard.live.control_plane.rest.submit import accept, fitted
from gpuyard.live.control_plane.rest.tasks import cancel, cursor_of, find_page
from gpuyard.live.control_plane.rest.tenants import find_tenant, tenants_of
from gpuyard.live.control_plane.scheduler import Page, Submission
from gpuyard.live.control_plane.settings import DEFAULT_TENANT
from gpuyard.live.wire.answers import TenantAnswer
from gpuyard.live.wire.dialect import (
    STATUS_WORDS,
    CurrentTenant,
    DialectCancelled,
    DialectTask,
    StatsAnswer,
    TenantStats,
    device_numbers,
    dialect_spec_of,
    read_dialect_task,
)
from gpuyard.live.wire.task_answers import TaskAnswer
from gpuyard.live.wire.tasks import HIGH, LOW

OPEN = (TaskStatus.PENDING, TaskStatus.RUNNING, TaskStatus.SUSPENDED)


async def post_task(desk: Desk, call: Call) -> Answer:
    """A task in 002's words: without a command a lease."""
    body = await call.body()
    request = read_dialect_task(body)
    tenant = desk.tenant_of(call, Action.SUBMIT, request.tenant_id)
    entry = desk.settings.tenant_entry(tenant)
    spec = dialect_spec_of(
        request,
        default_tenant=tenant,
        default_class=entry.task_class,
        default_priority=entry.priority,
        default_timeout=desk.settings.task_timeout_seconds,
        max_gpu_memory_mib=entry.max_memory_per_gpu,
        user=call.who.username,
    )
    [answer] = await accept(desk, call, [Submission(fitted(desk, call, [spec]), {})], body)
    return say(_told(read_answer(answer), _numbers(desk)), 201)


async def list_tasks(desk: Desk, call: Call) -> Answer:
    """A page of them, as a plain list; how many there are, and the next page, stand in headers."""
    return _list(desk, await find_page(desk, call))


async def list_tasks_of_tenant(desk: Desk, call: Call) -> Answer:
    """A tenant's tasks that are not over, as 002 has it, unless the query asks for others."""
    tenant = TenantId(call.named["id"])
    if not may(call.who, Action.SEE, tenant):
        raise WrongRequest("UnknownTenant", f"There is no tenant {tenant[:64]}.", "tenant_id", status=404)
    asked = {"status": OPEN, **call.asked, "tenant": tenant}
    return _list(desk, await find_page(desk, call, asked))


def _list(desk: Desk, page: Page) -> Answer:
    numbers = _numbers(desk)
    headers = [(b"x-total-count", b"%d" % page.total)]
    if page.next_cursor is not None:
        headers.append((b"x-next-cursor", cursor_of(page.next_cursor).encode()))
    return say([_told(read_answer(bytes(answer)), numbers) for answer in page.answers], 200, tuple(headers))


async def get_task(desk: Desk, call: Call) -> Answer:
    """One of them."""
    _, answer = await find_answer(desk, call)
    return say(_told(read_answer(answer), _numbers(desk)))


async def cancel_task(desk: Desk, call: Call) -> Answer:
    """End it. 002 knows no state in between: what is being stopped is cancelled."""
    status = (await cancel(desk, call, done="cancelled", doing="stopped")).status
    return say(DialectCancelled(STATUS_WORDS[status] if status in ENDED else "cancelled"))


async def current_tenant(desk: Desk, call: Call) -> Answer:
    """The tenant whose limits count for what one submits."""
    name = call.who.tenant or DEFAULT_TENANT
    entry = desk.settings.tenant_entry(name)
    try:
        told = await find_tenant(desk, call, name)
    except WrongRequest:
        told = _untouched(name, entry.max_gpus)
    return say(
        CurrentTenant(
            id=name,
            name=name,
            description="",
            max_gpus=_gpus_in_yard(desk) if told.max_gpus is None else told.max_gpus,
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
    """A tenant that has done nothing yet."""
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


async def get_stats(desk: Desk, call: Call) -> Answer:
    """How many tasks there are, by tenant."""
    seen = [tenant for tenant in await tenants_of(desk) if may(call.who, Action.SEE, TenantId(tenant.id))]
    tenants = {tenant.id: _stats(desk, tenant) for tenant in seen}
    pending = sum(tenant.pending_tasks for tenant in seen)
    return say(StatsAnswer(pending, sum(tenant.running_tasks for tenant in seen), tenants))


def _stats(desk: Desk, tenant: TenantAnswer) -> TenantStats:
    most = _gpus_in_yard(desk) if tenant.max_gpus is None else tenant.max_gpus
    return TenantStats(
        max_gpus=most,
        used_gpus=ceil(tenant.used_gpus),
        max_memory_per_gpu=desk.settings.tenant_entry(tenant.id).max_memory_per_gpu,
        usage_percent=round(100.0 * tenant.used_gpus / most, 3) if most else 0.0,
        pending_tasks=tenant.pending_tasks,
        running_tasks=tenant.running_tasks,
    )


def _gpus_in_yard(desk: Desk) -> int:
    return sum(len(view.spec.gpus) for view in desk.yard.views.nodes.values())


def _numbers(desk: Desk) -> dict[NodeId, int]:
    return device_numbers(view.spec for view in desk.yard.views.nodes.values())


def _told(task: TaskAnswer, numbers: Mapping[NodeId, int]) -> DialectTask:
    """What /api/v1 says of a task, in 002's words."""
    devices = []
    placed = task.status is not TaskStatus.PENDING  # 002 lists no device before the start
    for gpu in task.allocated_gpus if placed else ():
        node, _, index = gpu.rpartition("/")
        if NodeId(node) in numbers:
            devices.append(numbers[NodeId(node)] + int(index))
    return DialectTask(
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
