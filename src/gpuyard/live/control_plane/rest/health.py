"""Liveness and readiness, for people, load balancers and service managers; no login is needed."""

from gpuyard.live.control_plane.rest.context import AppContext
from gpuyard.live.control_plane.rest.errors import Unavailable
from gpuyard.live.control_plane.rest.request import Request
from gpuyard.live.control_plane.rest.responses import Response, json_response
from gpuyard.live.control_plane.scheduler import Scheduler
from gpuyard.live.wire.answers import HealthAnswer
from gpuyard.version import __version__

_CODES = {"storage_full": "StorageFull", "starting": "NotReady", "stopping": "NotReady"}


async def get_health(context: AppContext, request: Request) -> Response:  # noqa: ARG001
    """Answer 200 while the server responds; the status in the body gives the details."""
    return json_response(health_of(context.scheduler))


async def get_ready(context: AppContext, request: Request) -> Response:  # noqa: ARG001
    """Answer 200 only if work is accepted."""
    health = health_of(context.scheduler)
    if health.status != "ok":
        raise Unavailable(_CODES[health.status], health.message or "")
    return json_response(health)


def health_of(scheduler: Scheduler) -> HealthAnswer:
    """Return the health as one word, with a message if it is not ok."""
    if scheduler.loop.full:  # the route needs no login, so only the log names the folder
        message = "The journal cannot be written: no disk space or file descriptor is left. See the log."
        return HealthAnswer("storage_full", __version__, message)
    if scheduler.ready:
        return HealthAnswer("ok", __version__, clock_ahead_seconds=round(scheduler.clock.ahead_seconds(), 1))
    if scheduler.stopping:
        return HealthAnswer("stopping", __version__, "The scheduler is stopping; try again after its restart.")
    return HealthAnswer("starting", __version__, "The scheduler is starting; try again in a few seconds.")
