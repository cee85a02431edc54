"""The timeline of the GPUs, aggregated for a picture of a given width."""

from gpuyard.core.domain.values import NodeId, TenantId
from gpuyard.input.strict import WrongRequest
from gpuyard.live.control_plane.access.principal import Denied, visible_tenant
from gpuyard.live.control_plane.rest.context import AppContext
from gpuyard.live.control_plane.rest.errors import AccessDenied
from gpuyard.live.control_plane.rest.query import Parameter, counted, instant, text
from gpuyard.live.control_plane.rest.request import Request
from gpuyard.live.control_plane.rest.responses import Response, encode

USUAL_SECONDS = 6 * 3600.0
USUAL_WIDTH, MOST_WIDTH = 1200, 4000

PARAMETERS = (
    Parameter(
        "from", "Beginning: 2026-01-31T12:00:00Z, or seconds since 1970 (default: six hours before `to`).", instant
    ),
    Parameter("to", "End (default: now).", instant),
    counted("width", f"Width of the picture in pixels (default: {USUAL_WIDTH}).", 1, MOST_WIDTH),
    Parameter("node", "Only GPUs of this node.", text),
    Parameter("tenant", "Only tasks of this tenant.", text),
)


async def get_timeline(context: AppContext, request: Request) -> Response:
    """Return which task held which GPU when; members and viewers see the tasks of their tenant."""
    asked, seen = request.query, visible_tenant(request.principal)
    end = asked.get("to", context.scheduler.loop.clock())
    start = asked.get("from", max(0.0, end - USUAL_SECONDS))
    if start >= end:
        raise WrongRequest("WrongParameter", "from must be before to.", "from")
    tenant = asked.get("tenant")
    if seen is not None and tenant not in {None, seen}:
        raise AccessDenied(
            Denied(403, "Forbidden", f"{request.principal.username} may see only tasks of tenant {seen}.")
        )
    node = asked.get("node")
    if node is not None and node not in context.scheduler.views.nodes:
        raise WrongRequest("UnknownNode", f"Node {node[:64]} does not exist.", "node", status=404)
    answer = await context.scheduler.timelines.between(
        start,
        end,
        asked.get("width", USUAL_WIDTH),
        node=None if node is None else NodeId(node),
        tenant=seen if tenant is None else TenantId(tenant),
    )
    return Response(await context.scheduler.worker_pools.archive.run(encode, answer))
