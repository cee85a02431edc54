"""Liveness and readiness, for people, load balancers and service managers; no login is needed."""

import asyncio

from gpuyard.core.domain.errors import StandbyUnreachable, StorageUnreachable
from gpuyard.live.control_plane.rest.context import AppContext
from gpuyard.live.control_plane.rest.errors import Unavailable, error
from gpuyard.live.control_plane.rest.request import Request
from gpuyard.live.control_plane.rest.responses import Response, json_response
from gpuyard.live.control_plane.scheduler import Scheduler
from gpuyard.live.wire.answers import HealthAnswer, HealthStatus
from gpuyard.version import __version__

PROMOTE_SECONDS, PROMOTE_LOOK_SECONDS = 10.0, 0.01
_CODES = {
    "storage_full": "StorageFull",
    "storage_unreachable": "StorageUnreachable",
    "standby_unreachable": "StandbyUnreachable",
    "starting": "NotReady",
    "stopping": "NotReady",
}


async def get_health(context: AppContext, request: Request) -> Response:  # noqa: ARG001
    """Answer 200 while the server responds; the status in the body gives the details."""
    return json_response(health_of(context.scheduler))


async def promote(context: AppContext, request: Request) -> Response:  # noqa: ARG001
    """Let this standby lead: the scheduler that leads hands over to it."""
    scheduler = context.scheduler
    role = scheduler.role
    if not role.shared:
        message = (
            "This scheduler has its journal for itself and always leads. See replication.enabled and "
            "storage.shared_storage."
        )
        return error(409, "AlreadyLeads", message)
    if role.leads:
        return error(409, "AlreadyLeads", f"This scheduler leads already (epoch {role.epoch}).")
    before = role.epoch
    if role.replicating is not None and (why_not := role.replicating.why_not_leading()):
        raise Unavailable("NotPromoted", why_not)
    if isinstance(scheduler.loop.unwritable, StorageUnreachable):
        raise Unavailable("StorageUnreachable", f"No scheduler can lead. {scheduler.loop.unwritable}")
    if role.ask_for_lead is None or not await role.ask_for_lead():
        raise Unavailable("NotReady", "No scheduler leads at present; one takes over in a moment. Try again.")
    for _ in range(round(PROMOTE_SECONDS / PROMOTE_LOOK_SECONDS)):
        if role.may_answer and scheduler.ready:
            return json_response(health_of(scheduler))
        await asyncio.sleep(PROMOTE_LOOK_SECONDS)
    leads = f"{role.leader_url} leads" if role.leader_url else "no scheduler leads"
    state = "still" if role.epoch == before else "now"
    message = f"This scheduler did not become the leader within {PROMOTE_SECONDS:g} s; {leads} {state}. Try again."
    raise Unavailable("NotPromoted", message)


async def get_replication(context: AppContext, request: Request) -> Response:  # noqa: ARG001
    """Return how two schedulers replicate the journal."""
    replicating = context.scheduler.role.replicating
    if replicating is None:
        return _not_replicated()
    return json_response(replicating.answer())


async def detach_standby(context: AppContext, request: Request) -> Response:  # noqa: ARG001
    """The operator's word: go on without the standby until it has caught up. Events are then on one disk only."""
    replicating = context.scheduler.role.replicating
    if replicating is None:
        return _not_replicated()
    if why_not := await asyncio.to_thread(replicating.write_alone):
        return error(409, "StandbyNotDetached", why_not)
    return json_response(replicating.answer())


def _not_replicated() -> Response:
    return error(
        409, "NotReplicated", "This scheduler does not replicate its journal to another one. See replication.enabled."
    )


async def get_ready(context: AppContext, request: Request) -> Response:  # noqa: ARG001
    """Answer 200 only if work is accepted."""
    health = health_of(context.scheduler)
    if health.status != "ok":
        raise Unavailable(_CODES[health.status], health.message or "")
    return json_response(health)


def health_of(scheduler: Scheduler) -> HealthAnswer:
    """Return the health as one word, with a message if it is not ok."""
    status, message = _status(scheduler)
    role = scheduler.role
    return HealthAnswer(
        status,
        __version__,
        message,
        round(scheduler.clock.ahead_seconds(), 1),
        "master" if role.may_answer else "standby",
        role.epoch,
        role.leader_url,
        0.0 if role.leads else round(role.behind_seconds, 3),
    )


def _status(scheduler: Scheduler) -> tuple[HealthStatus, str | None]:
    if isinstance(scheduler.loop.unwritable, StandbyUnreachable):
        return "standby_unreachable", str(scheduler.loop.unwritable)
    if isinstance(scheduler.loop.unwritable, StorageUnreachable):
        return "storage_unreachable", str(scheduler.loop.unwritable)
    if scheduler.loop.unwritable is not None:  # the route needs no login, so only the log names the folder
        return "storage_full", "The journal cannot be written: no disk space or file descriptor is left. See the log."
    if scheduler.ready:
        return "ok", None
    if scheduler.stopping:
        return "stopping", "The scheduler is stopping; try again after its restart."
    return "starting", "The scheduler is starting; try again in a few seconds."
