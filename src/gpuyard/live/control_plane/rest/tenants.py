"""Tenants: who pays, and how much they may use."""

from gpuyard.core.domain.commands import SetTenant
from gpuyard.core.domain.tenant import Budget, Tenant
from gpuyard.core.domain.values import TaskStatus, TenantId
from gpuyard.core.engine.state import State
from gpuyard.input.strict import Strict, WrongRequest
from gpuyard.live.control_plane.access.who import Action, may
from gpuyard.live.control_plane.rest.answer import Answer, say
from gpuyard.live.control_plane.rest.call import Call, Desk
from gpuyard.live.control_plane.rest.gpus import gpus_in
from gpuyard.live.wire.answers import TenantAnswer, TenantList, TenantRequest, read_tenant
from gpuyard.live.wire.limits import TenantName

USUAL_PERIOD_SECONDS = 30 * 86400.0
_read_name = Strict(TenantName, what="The tenant's name").plain


async def list_tenants(desk: Desk, call: Call) -> Answer:
    """Those one sees."""
    tenants = [tenant for tenant in await tenants_of(desk) if may(call.who, Action.SEE, TenantId(tenant.id))]
    return say(TenantList(tenants, len(tenants)))


async def get_tenant(desk: Desk, call: Call) -> Answer:
    """One of them."""
    return say(await find_tenant(desk, call, call.named["id"]))


async def find_tenant(desk: Desk, call: Call, name: str) -> TenantAnswer:
    """A tenant, if there is one and the caller sees it."""
    if may(call.who, Action.SEE, TenantId(name)):
        for tenant in await tenants_of(desk):
            if tenant.id == name:
                return tenant
    raise WrongRequest("UnknownTenant", f"There is no tenant {name[:64]}.", "tenant_id", status=404)


async def put_tenant(desk: Desk, call: Call) -> Answer:
    """Give a tenant these limits; one that is not known is there from then on."""
    name = _read_name(call.named["id"])
    asked = read_tenant(await call.body())
    await desk.tell(call, SetTenant(_tenant(TenantId(name), asked)))
    return await get_tenant(desk, call)


def _tenant(name: TenantId, asked: TenantRequest) -> Tenant:
    if asked.gpu_hours_period is not None and asked.gpu_hours is None:
        raise WrongRequest("Contradiction", "gpu_hours_period needs gpu_hours beside it.", "gpu_hours")
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


async def tenants_of(desk: Desk) -> list[TenantAnswer]:
    """All tenants, by name, with what they use."""
    counts = desk.yard.views.counts

    def ask(state: State, now: float) -> list[TenantAnswer]:  # noqa: ARG001
        return [_told(book.tenant, book.used, counts.get(name, {})) for name, book in sorted(state.tenants.items())]

    return await desk.yard.look(ask)


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
