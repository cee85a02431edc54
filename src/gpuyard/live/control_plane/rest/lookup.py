"""Finding a task for somebody: one that is not there and one of another tenant are the same to them.

Numbers of tasks repeat where a data folder is replaced by another one or by an older copy. A caller that remembers a
task can therefore name the instant of its submission, too (`created_at`): another task under its number is then refused,
in the same request that would have shown or changed it.
"""

import msgspec

from gpuyard.core.domain.values import TaskId, TenantId
from gpuyard.input.strict import WrongRequest
from gpuyard.live.control_plane.access.principal import Action, forbidden, may
from gpuyard.live.control_plane.rest.context import AppContext
from gpuyard.live.control_plane.rest.errors import NotAllowed
from gpuyard.live.control_plane.rest.query import Parameter, instant
from gpuyard.live.control_plane.rest.request import Request
from gpuyard.live.control_plane.scheduler import Scheduler
from gpuyard.live.wire.limits import instant_of
from gpuyard.live.wire.task_answers import TaskAnswer
from gpuyard.live.wire.tasks import format_task_id, parse_task_id

SAME = (
    Parameter(
        "created_at", "Only the task that was submitted at this instant; 404 if the number is another's.", instant
    ),
)
"""What every address of one task or lease takes."""

_read_answer = msgspec.json.Decoder(TaskAnswer).decode


def unknown_task(task: TaskId) -> WrongRequest:
    """The sentence for both."""
    return WrongRequest("UnknownTask", f"There is no task {format_task_id(task)}.", "task_id", status=404)


def _check_same(request: Request, task: TaskId, created_at: str) -> None:
    """Refuse another task than the one that the caller remembers."""
    meant = instant_of(request.query["created_at"])
    if meant != created_at:
        message = f"{format_task_id(task)} is another task here: it was submitted at {created_at}, not at {meant}."
        raise WrongRequest("AnotherTask", message, "created_at", status=404)


class _Created(msgspec.Struct):
    """As much of an answer as is needed here."""

    created_at: str


async def tenant_of_task(yard: Scheduler, task: TaskId) -> TenantId | None:
    """Whose task it is, open or ended."""
    view = yard.views.tasks.get(task)
    if view is not None:
        return view.spec.tenant
    answer = await yard.answer(task)
    return answer[0] if answer else None


async def find_task(context: AppContext, request: Request, action: Action) -> TaskId:
    """The task that the path names, if the caller may do this to it."""
    task = parse_task_id(request.path_params["id"])
    tenant = await tenant_of_task(context.yard, task)
    if tenant is None or not may(request.principal, Action.SEE, tenant):
        raise unknown_task(task)
    if not may(request.principal, action, tenant):
        raise NotAllowed(forbidden(request.principal, action))
    if "created_at" in request.query:
        await find_answer(context, request)
    return task


async def find_answer(context: AppContext, request: Request) -> tuple[TaskId, bytes]:
    """The task that the path names, as JSON, if the caller sees it."""
    task = parse_task_id(request.path_params["id"])
    answer = await context.yard.answer(task)
    if answer is None or not may(request.principal, Action.SEE, answer[0]):
        raise unknown_task(task)
    if "created_at" in request.query:
        _check_same(request, task, msgspec.json.decode(answer[1], type=_Created).created_at)
    return task, answer[1]


def read_answer(encoded: bytes) -> TaskAnswer:
    """A task's answer, to be told in another way."""
    return _read_answer(encoded)
