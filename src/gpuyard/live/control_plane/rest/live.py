"""The live stream of the cluster, as server-sent events: see live_feed.py."""

from gpuyard.live.control_plane.access.principal import visible_tenant
from gpuyard.live.control_plane.rest.context import AppContext
from gpuyard.live.control_plane.rest.request import Request
from gpuyard.live.control_plane.rest.responses import StreamingResponse


async def get_live(context: AppContext, request: Request) -> StreamingResponse:
    """Stream a snapshot of the cluster, then a sample each second."""
    return StreamingResponse(
        context.scheduler.live.watch(visible_tenant(request.principal)),
        {"content-type": "text/event-stream", "x-accel-buffering": "no"},
        endless=True,
    )
