"""Finding a task for somebody: one that is not there and one of another tenant are the same to them."""

import msgspec

from gpuyard.control_plane.access.who import Action, forbidden, may
from gpuyard.control_plane.rest.call import Call, Desk
from gpuyard.control_plane.rest.errors import NotAllowed
from gpuyard.control_plane.yard import Yard
from gpuyard.domain.values import TaskId, TenantId
from gpuyard.wire.strict import WrongRequest
from gpuyard.wire.task_answers import TaskAnswer
from gpuyard.wire.tasks import parse_task_id, spoken_task_id

_read_answer = msgspec.json.Decoder(TaskAnswer).decode


def unknown_task(task: TaskId) -> WrongRequest:
    """The sentence for both."""
    return WrongRequest("UnknownTask", f"There is no task {spoken_task_id(task)}.", "task_id", status=404)


async def tenant_of_task(yard: Yard, task: TaskId) -> TenantId | None:
    """Whose task it is, open or ended."""
    view = yard.views.tasks.get(task)
    if view is not None:
        return view.spec.tenant
    answer = await yard.answer(task)
    return answer[0] if answer else None


async def find_task(desk: Desk, call: Call, action: Action) -> TaskId:
    """The task that the path names, if the caller may do this to it."""
    task = parse_task_id(call.named["id"])
    tenant = await tenant_of_task(desk.yard, task)
    if tenant is None or not may(call.who, Action.SEE, tenant):
        raise unknown_task(task)
    if not may(call.who, action, tenant):
        raise NotAllowed(forbidden(call.who, action))
    return task


async def find_answer(desk: Desk, call: Call) -> tuple[TaskId, bytes]:
    """The task that the path names, as JSON, if the caller sees it."""
    task = parse_task_id(call.named["id"])
    answer = await desk.yard.answer(task)
    if answer is None or not may(call.who, Action.SEE, answer[0]):
        raise unknown_task(task)
    return task, answer[1]


def read_answer(encoded: bytes) -> TaskAnswer:
    """A task's answer, to be told in another way."""
    return _read_answer(encoded)
