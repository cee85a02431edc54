"""Leases: GPUs without a process, held until they are released or their time is over. A lease is a task with no command."""

from gpuyard.core.domain.values import ENDED
from gpuyard.input.strict import WrongRequest
from gpuyard.live.control_plane.access.who import Action, may
from gpuyard.live.control_plane.rest.answer import Answer, say
from gpuyard.live.control_plane.rest.call import Call, Desk
from gpuyard.live.control_plane.rest.lookup import find_answer, read_answer
from gpuyard.live.control_plane.rest.submit import accept, submission_of
from gpuyard.live.control_plane.rest.tasks import cancel
from gpuyard.live.control_plane.views import TaskView
from gpuyard.live.wire.answers import LeaseAnswer, LeaseList, lease_of_task, read_lease, task_of_lease
from gpuyard.live.wire.limits import instant_of
from gpuyard.live.wire.task_answers import TaskAnswer
from gpuyard.live.wire.tasks import parse_task_id


async def post_lease(desk: Desk, call: Call) -> Answer:
    """Ask for GPUs."""
    body = await call.body()
    submission = submission_of(desk, call, task_of_lease(read_lease(body)))
    [answer] = await accept(desk, call, [submission], body)
    return say(_lease(desk, read_answer(answer)), 201)


async def list_leases(desk: Desk, call: Call) -> Answer:
    """Those that are held or waited for, the newest first."""

    def wanted(view: TaskView) -> bool:
        lease = view.spec.command is None and view.status not in ENDED
        return lease and may(call.who, Action.SEE, view.spec.tenant)

    leases = [_lease(desk, view.answer()) for view in await desk.yard.newest(wanted)]
    return say(LeaseList(leases, len(leases)))


async def get_lease(desk: Desk, call: Call) -> Answer:
    """One of them, also after its end."""
    return say(await _find(desk, call))


async def delete_lease(desk: Desk, call: Call) -> Answer:
    """Give the GPUs back."""
    await _find(desk, call)
    return say(await cancel(desk, call, done="released", doing="released"))


async def _find(desk: Desk, call: Call) -> LeaseAnswer:
    _, encoded = await find_answer(desk, call)
    answer = read_answer(encoded)
    if answer.command is not None:
        raise WrongRequest("UnknownLease", f"{answer.id} is no lease: it runs a command.", "id", status=404)
    return _lease(desk, answer)


def _lease(desk: Desk, task: TaskAnswer) -> LeaseAnswer:
    view = desk.yard.views.tasks.get(parse_task_id(task.id))
    ends_at = None
    if view is not None and view.started_at is not None and view.spec.timeout_seconds is not None:
        ends_at = instant_of(view.started_at + view.spec.timeout_seconds)
    return lease_of_task(task, expires_at=ends_at)
