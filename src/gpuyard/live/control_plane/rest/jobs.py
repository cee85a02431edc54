"""Background jobs over REST: plans and simulations. Members and viewers see those of their tenant."""

from collections.abc import Callable
from typing import Any

from msgspec.structs import asdict

from gpuyard.input.strict import WrongRequest
from gpuyard.live.control_plane.access.principal import Action, Denied, may, visible_tenant
from gpuyard.live.control_plane.jobs import BackgroundJob, JobKind
from gpuyard.live.control_plane.rest.context import AppContext
from gpuyard.live.control_plane.rest.errors import AccessDenied
from gpuyard.live.control_plane.rest.query import instant
from gpuyard.live.control_plane.rest.request import MAX_PROBLEM_BYTES, Request
from gpuyard.live.control_plane.rest.responses import Response, json_response
from gpuyard.live.control_plane.rest.route import Handler
from gpuyard.live.wire.answers import MessageAnswer
from gpuyard.live.wire.job_answers import (
    GenerateJobs,
    JobOrder,
    JobRow,
    PlanAnswer,
    PlanList,
    SimulationAnswer,
    SimulationList,
    read_plan_request,
    read_simulation_request,
)
from gpuyard.live.wire.limits import instant_of

MOST_SEARCH_SECONDS = 90.0
"""Of all strategies together: the whole job has 120 s."""


async def post_plan(context: AppContext, request: Request) -> Response:
    """Queue a plan."""
    body = await request.body(MAX_PROBLEM_BYTES)
    asked = await context.scheduler.worker_pools.archive.run(read_plan_request, body)
    searches = len(set(asked.strategies)) + ("pareto" in asked.strategies)
    if searches * asked.seconds > MOST_SEARCH_SECONDS:
        message = (
            f"seconds is {asked.seconds:g} for each of {searches} searches; together they may take "
            f"{MOST_SEARCH_SECONDS:g} s."
        )
        raise WrongRequest("OutOfRange", message, "seconds")
    return _queued(context, request, "plan", JobOrder(plan=asked))


async def post_simulation(context: AppContext, request: Request) -> Response:
    """Queue a simulation. The past of the cluster is that of all tenants, so only those who see all may use it."""
    asked = read_simulation_request(await request.body())
    scheduler = context.scheduler
    if isinstance(asked.source, GenerateJobs):
        if asked.nodes is None:
            message = "nodes is missing; generated jobs need nodes, such as 4x8 for four nodes of eight GPUs."
            raise WrongRequest("MissingField", message, "nodes")
        for name in ("since", "until", "quota"):
            if getattr(asked, name) is not None:
                raise WrongRequest("Contradiction", f'{name} is only valid with "source": "journal".', name)
        if "same" in asked.policies:
            message = '"same" is the policy of the journal; generated jobs have none.'
            raise WrongRequest("Contradiction", message, "policies")
    elif not may(request.principal, Action.SEE):
        sentence = (
            f"The journal has the tasks of all tenants; {request.principal.username} may simulate generated jobs."
        )
        raise AccessDenied(Denied(403, "Forbidden", sentence))
    since, until = _read_instant("since", asked.since), _read_instant("until", asked.until)
    if since is not None and until is not None and since >= until:
        raise WrongRequest("WrongParameter", "since must be before until.", "since")
    order = JobOrder(
        simulation=asked,
        journal=context.settings.database or str(scheduler.stores.journal_folder),
        archive=str(scheduler.stores.archive.path),
        nodes=[view.spec for view in scheduler.views.nodes.values()],
        since=since,
        until=until,
    )
    return _queued(context, request, "simulation", order)


def _read_instant(name: str, value: float | str | None) -> float | None:
    if value is None:
        return None
    try:
        return instant(str(value))
    except ValueError as error:
        raise WrongRequest("WrongParameter", f"{name} is {str(value)[:60]!r}; {error}.", name) from None


def _queued(context: AppContext, request: Request, kind: JobKind, order: JobOrder) -> Response:
    who = request.principal
    return json_response(_row(context.scheduler.jobs.submit(kind, order, who.username, who.tenant)), 202)


async def list_plans(context: AppContext, request: Request) -> Response:
    """List recent plans."""
    return json_response(PlanList(_rows(context, request, "plan")))


async def list_simulations(context: AppContext, request: Request) -> Response:
    """List recent simulations."""
    return json_response(SimulationList(_rows(context, request, "simulation")))


async def get_plan(context: AppContext, request: Request) -> Response:
    """Return one plan."""
    job = _find(context, request, "plan")
    more: dict[str, Any] = {}
    if job.status == "done":
        told = (await context.scheduler.worker_pools.archive.run(job.result)).plan
        assert told is not None
        more = {"results": told.results, "pareto": told.pareto, "notes": told.notes}
    return await _encoded(context, PlanAnswer(**asdict(_row(job)), **more))


async def get_simulation(context: AppContext, request: Request) -> Response:
    """Return one simulation."""
    job = _find(context, request, "simulation")
    more: dict[str, Any] = {}
    if job.status == "done":
        told = (await context.scheduler.worker_pools.archive.run(job.result)).simulation
        assert told is not None
        more = {"policies": told.policies, "notes": told.notes}
    return await _encoded(context, SimulationAnswer(**asdict(_row(job)), **more))


def remover(kind: JobKind) -> Handler:
    """Make the handler that cancels a job of this kind, or removes one that has ended."""

    async def remove(context: AppContext, request: Request) -> Response:
        job = _find(context, request, kind)
        cancelled = context.scheduler.jobs.cancel(job)
        return json_response(MessageAnswer(f"{job.id} was {'cancelled' if cancelled else 'removed'}."))

    return remove


async def _encoded(context: AppContext, answer: PlanAnswer | SimulationAnswer) -> Response:
    make: Callable[[object], Response] = json_response
    return await context.scheduler.worker_pools.archive.run(make, answer)


def _rows(context: AppContext, request: Request, kind: JobKind) -> list[JobRow]:
    return [_row(job) for job in context.scheduler.jobs.all(kind) if _sees(request, job)]


def _find(context: AppContext, request: Request, kind: JobKind) -> BackgroundJob:
    name = request.path_params["id"]
    job = context.scheduler.jobs.get(kind, name)
    if job is None or not _sees(request, job):
        raise WrongRequest(
            "UnknownJob", f"The {kind} {name[:64]} does not exist; the last 20 of a tenant are kept.", "id", status=404
        )
    return job


def _sees(request: Request, job: BackgroundJob) -> bool:
    seen = visible_tenant(request.principal)
    return seen is None or job.tenant == seen


def _row(job: BackgroundJob) -> JobRow:
    return JobRow(
        id=job.id,
        kind=job.kind,
        status=job.status,
        error=job.error,
        username=job.username,
        tenant_id=job.tenant,
        created_at=instant_of(job.created_at),
        started_at=None if job.started_at is None else instant_of(job.started_at),
        finished_at=None if job.finished_at is None else instant_of(job.finished_at),
    )
