"""The scheduler, settings and stores that all handlers share."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from gpuyard.core.domain.commands import Command
from gpuyard.core.domain.refusals import Refusal
from gpuyard.core.domain.values import TenantId
from gpuyard.core.engine.engine import Events
from gpuyard.core.engine.state import State
from gpuyard.live.control_plane.access.principal import (
    ROLE_SCOPES,
    Action,
    Denied,
    Principal,
    Scope,
    forbidden,
    issuer_of,
    may,
)
from gpuyard.live.control_plane.access.store import AccessStore
from gpuyard.live.control_plane.rest.errors import AccessDenied, CommandRefused
from gpuyard.live.control_plane.rest.open_streams import OpenStreams
from gpuyard.live.control_plane.rest.overview_cache import Overviews
from gpuyard.live.control_plane.rest.request import Request
from gpuyard.live.control_plane.scheduler import Scheduler
from gpuyard.live.control_plane.settings import DEFAULT_TENANT, ServerSettings


@dataclass(slots=True)
class AppContext:
    """The scheduler as the REST handlers use it."""

    scheduler: Scheduler
    access: AccessStore
    settings: ServerSettings
    overviews: Overviews = field(default_factory=Overviews)
    streams: OpenStreams = field(default_factory=OpenStreams)

    async def tell(self, request: Request, order: Command | Callable[[State], Command]) -> Events:
        """Have the engine handle a command on behalf of the caller; return its events, or raise its refusal."""
        answer = await self.scheduler.loop.tell(order, issuer_of(request.principal), request_id=request.request_id)
        if isinstance(answer, Refusal):
            raise CommandRefused(answer)
        return answer

    def tenant_of(self, request: Request, action: Action, named: str | None) -> TenantId:
        """Return the tenant a request is about: the one it names, or the caller's own, or `default`."""
        principal = request.principal
        tenant = TenantId(named or principal.tenant or DEFAULT_TENANT)
        if not may(principal, action, tenant):
            raise AccessDenied(_not_for_that_tenant(principal, action))
        return tenant


def _not_for_that_tenant(principal: Principal, action: Action) -> Denied:
    if ROLE_SCOPES[action][principal.role] is not Scope.OWN:
        return forbidden(principal, action)
    return Denied(403, "Forbidden", f"{principal.username} may do this only for tenant {principal.tenant}.")


async def in_thread(context: AppContext, work: Callable[..., Any], *arguments: Any) -> Any:
    """Change users or tokens in a thread, because this writes to disk; raise a refusal."""
    answer = await context.scheduler.worker_pools.access.run(work, *arguments)
    if isinstance(answer, Refusal):
        raise CommandRefused(answer)
    return answer
