"""Find a task for a caller. A missing task and a task of another tenant give the same error.

Task numbers repeat if a data folder is replaced by another one or by an older copy. A caller that remembers a task can
therefore also give the time of its submission (`created_at`): a different task with that number is then refused within
the request that would have shown or changed it.
"""

import msgspec

from gpuyard.core.domain.values import TaskId, TenantId
from gpuyard.input.strict import WrongRequest
from gpuyard.live.control_plane.access.principal import Action, forbidden, may
from gpuyard.live.control_plane.rest.context import AppContext
from gpuyard.live.control_plane.rest.errors import AccessDenied
from gpuyard.live.control_plane.rest.query import Parameter, instant
from gpuyard.live.control_plane.rest.request import Request
from gpuyard.live.control_plane.scheduler import Scheduler
from gpuyard.live.wire.limits import instant_of
from gpuyard.live.wire.task_answers import TaskAnswer
from gpuyard.live.wire.tasks import format_task_id, parse_task_id

SAME = (
    Parameter(
        "created_at",
        "Only the task that was submitted at this time; 404 if the number belongs to another task.",
        instant,
    ),
)
"""Query parameters of every path that names one task or lease."""

_read_answer = msgspec.json.Decoder(TaskAnswer).decode


def unknown_task(task: TaskId) -> WrongRequest:
    """Return the error for a missing task and for a task of another tenant."""
    return WrongRequest("UnknownTask", f"Task {format_task_id(task)} does not exist.", "task_id", status=404)


def _check_same(request: Request, task: TaskId, created_at: str) -> None:
    """Refuse a task that is not the one that the caller remembers."""
    meant = instant_of(request.query["created_at"])
    if meant != created_at:
        message = f"{format_task_id(task)} is another task: it was submitted at {created_at}, not at {meant}."
        raise WrongRequest("AnotherTask", message, "created_at", status=404)


class _Created(msgspec.Struct):
    """The part of a task's answer that is needed here."""

    created_at: str


async def tenant_of_task(scheduler: Scheduler, task: TaskId) -> TenantId | None:
    """Return the tenant of a task, open or ended; None if the task is unknown."""
    view = scheduler.views.tasks.get(task)
    if view is not None:
        return view.spec.tenant
    answer = await scheduler.queries.answer(task)
    return answer[0] if answer else None


async def find_task(context: AppContext, request: Request, action: Action) -> TaskId:
    """Return the task that the path names, if the caller may perform this action on it."""
    task = parse_task_id(request.path_params["id"])
    tenant = await tenant_of_task(context.scheduler, task)
    if tenant is None or not may(request.principal, Action.SEE, tenant):
        raise unknown_task(task)
    if not may(request.principal, action, tenant):
        raise AccessDenied(forbidden(request.principal, action))
    if "created_at" in request.query:
        await find_answer(context, request)
    return task


async def find_answer(context: AppContext, request: Request) -> tuple[TaskId, bytes]:
    """Return the task that the path names, as JSON, if the caller may see it."""
    task = parse_task_id(request.path_params["id"])
    answer = await context.scheduler.queries.answer(task)
    if answer is None or not may(request.principal, Action.SEE, answer[0]):
        raise unknown_task(task)
    if "created_at" in request.query:
        _check_same(request, task, msgspec.json.decode(answer[1], type=_Created).created_at)
    return task, answer[1]


def read_answer(encoded: bytes) -> TaskAnswer:
    """Decode a task's answer so that it can be converted to another form."""
    return _read_answer(encoded)
