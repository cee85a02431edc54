"""Tenants: their limits and usage."""

from gpuyard.core.domain.commands import SetTenant
from gpuyard.core.domain.tenant import Budget, Tenant
from gpuyard.core.domain.values import TaskStatus, TenantId
from gpuyard.core.engine.state import State
from gpuyard.input.strict import Strict, WrongRequest
from gpuyard.live.control_plane.access.principal import Action, may
from gpuyard.live.control_plane.rest.context import AppContext
from gpuyard.live.control_plane.rest.gpus import gpus_in
from gpuyard.live.control_plane.rest.request import Request
from gpuyard.live.control_plane.rest.responses import Response, json_response
from gpuyard.live.wire.answers import TenantAnswer, TenantList, TenantRequest, read_tenant
from gpuyard.live.wire.limits import TenantName

USUAL_PERIOD_SECONDS = 30 * 86400.0
_read_name = Strict(TenantName, what="The tenant's name").plain


async def list_tenants(context: AppContext, request: Request) -> Response:
    """List the tenants that the caller may see."""
    tenants = [
        tenant for tenant in await tenants_of(context) if may(request.principal, Action.SEE, TenantId(tenant.id))
    ]
    return json_response(TenantList(tenants, len(tenants)))


async def get_tenant(context: AppContext, request: Request) -> Response:
    """Return one tenant."""
    return json_response(await find_tenant(context, request, request.path_params["id"]))


async def find_tenant(context: AppContext, request: Request, name: str) -> TenantAnswer:
    """Return a tenant if it exists and the caller may see it."""
    if may(request.principal, Action.SEE, TenantId(name)):
        for tenant in await tenants_of(context):
            if tenant.id == name:
                return tenant
    raise WrongRequest("UnknownTenant", f"Tenant {name[:64]} does not exist.", "tenant_id", status=404)


async def put_tenant(context: AppContext, request: Request) -> Response:
    """Set the limits of a tenant; an unknown tenant is created."""
    name = _read_name(request.path_params["id"])
    asked = read_tenant(await request.body())
    await context.tell(request, SetTenant(_tenant(TenantId(name), asked)))
    return await get_tenant(context, request)


def _tenant(name: TenantId, asked: TenantRequest) -> Tenant:
    if asked.gpu_hours_period is not None and asked.gpu_hours is None:
        raise WrongRequest("Contradiction", "gpu_hours_period also needs gpu_hours.", "gpu_hours")
    budget = Budget(asked.gpu_hours, asked.gpu_hours_period or USUAL_PERIOD_SECONDS) if asked.gpu_hours else None
    return Tenant(
        name,
        max_gpus=asked.max_gpus,
        max_gpus_by_model=tuple(sorted((asked.max_gpus_by_model or {}).items())),
        guaranteed_gpus=asked.guaranteed_gpus,
        max_open_tasks=asked.max_open_tasks,
        weight=1.0 if asked.weight is None else asked.weight,
        budget=budget,
    )


async def tenants_of(context: AppContext) -> list[TenantAnswer]:
    """Return all tenants with their usage, by name."""
    counts = context.scheduler.views.counts

    def ask(state: State, now: float) -> list[TenantAnswer]:  # noqa: ARG001
        return [_told(book.tenant, book.used, counts.get(name, {})) for name, book in sorted(state.tenants.items())]

    return await context.scheduler.queries.look(ask)


def _told(tenant: Tenant, used_milli: int, counts: dict[TaskStatus, int]) -> TenantAnswer:
    budget = tenant.budget
    return TenantAnswer(
        id=tenant.id,
        max_gpus=tenant.max_gpus,
        max_gpus_by_model=dict(tenant.max_gpus_by_model),
        guaranteed_gpus=tenant.guaranteed_gpus,
        max_open_tasks=tenant.max_open_tasks,
        weight=tenant.weight,
        gpu_hours=budget.gpu_hours if budget else None,
        gpu_hours_period=budget.period_seconds if budget else None,
        used_gpus=gpus_in(used_milli),
        pending_tasks=counts.get(TaskStatus.PENDING, 0),
        running_tasks=counts.get(TaskStatus.RUNNING, 0),
    )
