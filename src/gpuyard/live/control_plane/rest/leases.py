"""Leases: GPUs without a process, held until they are released or time out. A lease is a task without a command."""

from gpuyard.core.domain.values import ENDED
from gpuyard.input.strict import WrongRequest
from gpuyard.live.control_plane.access.principal import Action, may
from gpuyard.live.control_plane.rest.context import AppContext
from gpuyard.live.control_plane.rest.lookup import find_answer, read_answer
from gpuyard.live.control_plane.rest.request import Request
from gpuyard.live.control_plane.rest.responses import Response, json_response
from gpuyard.live.control_plane.rest.submit import accept, submission_of
from gpuyard.live.control_plane.rest.tasks import cancel
from gpuyard.live.control_plane.views import TaskView
from gpuyard.live.wire.answers import LeaseAnswer, LeaseList, lease_of_task, read_lease, task_of_lease
from gpuyard.live.wire.limits import instant_of
from gpuyard.live.wire.task_answers import TaskAnswer
from gpuyard.live.wire.tasks import parse_task_id


async def post_lease(context: AppContext, request: Request) -> Response:
    """Request GPUs."""
    body = await request.body()
    submission = submission_of(context, request, task_of_lease(read_lease(body)))
    [answer] = await accept(context, request, [submission], body)
    return json_response(_lease(context, read_answer(answer)), 201)


async def list_leases(context: AppContext, request: Request) -> Response:
    """List leases that hold or wait for GPUs, newest first."""

    def wanted(view: TaskView) -> bool:
        lease = view.spec.command is None and view.status not in ENDED
        return lease and may(request.principal, Action.SEE, view.spec.tenant)

    leases = [_lease(context, view.answer()) for view in await context.scheduler.views.newest(wanted)]
    return json_response(LeaseList(leases, len(leases)))


async def get_lease(context: AppContext, request: Request) -> Response:
    """Return one lease, also after its end."""
    return json_response(await _find(context, request))


async def delete_lease(context: AppContext, request: Request) -> Response:
    """Release the GPUs."""
    await _find(context, request)
    return json_response(await cancel(context, request, done="released", doing="released"))


async def _find(context: AppContext, request: Request) -> LeaseAnswer:
    _, encoded = await find_answer(context, request)
    answer = read_answer(encoded)
    if answer.command is not None:
        raise WrongRequest("UnknownLease", f"{answer.id} is not a lease: it runs a command.", "id", status=404)
    return _lease(context, answer)


def _lease(context: AppContext, task: TaskAnswer) -> LeaseAnswer:
    view = context.scheduler.views.tasks.get(parse_task_id(task.id))
    ends_at = None
    if view is not None and view.started_at is not None and view.spec.timeout_seconds is not None:
        ends_at = instant_of(view.started_at + view.spec.timeout_seconds)
    return lease_of_task(task, expires_at=ends_at)
